"""Which steps a version goes through: declared rules, the most specific match wins. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from processing.content_types import extension
from processing.registry import ConfigurationError, Definition, Registry, Step

SCAN = "scan_malware"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a pipeline applies to; None: anything. extension without its dot, lower case; type may end in ``/*``."""

    bucket: str | None = None
    prefix: bytes | None = None
    extension: str | None = None
    type: str | None = None

    def matches(self, bucket: str, key: bytes, extension: str, declared_type: str | None) -> bool:
        return (
            (self.bucket is None or self.bucket == bucket)
            and (self.prefix is None or key.startswith(self.prefix))
            and (self.extension is None or self.extension == extension)
            and (self.type is None or type_matches(self.type, declared_type))
        )

    @property
    def weight(self) -> tuple[int, int, int, int]:
        """Order of precedence: the longest prefix, then type or extension (an exact type before a family), then
        bucket."""
        kind = 0 if self.type is None and self.extension is None else 1 if (self.type or "").endswith("/*") else 2
        both = int(self.type is not None and self.extension is not None)
        return (len(self.prefix) + 1 if self.prefix is not None else 0, kind, both, int(self.bucket is not None))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A named list of steps for a workflow.

    ready: "complete" (the verdict follows every step) or "gated" (it follows the last required one). unscanned: the
    operator's explicit word that leaving out the malware scan is meant. policy: anything else that decides a verdict
    (blocked extensions, scanner or none, its signature version), so that it is part of the fingerprint.
    """

    name: str
    steps: tuple[Step, ...]
    rule: Rule = Rule()
    workflow: str = "post_upload"
    ready: str = "complete"
    unscanned: bool = False


def type_matches(pattern: str, declared: str | None) -> bool:
    """Whether a declared content type (parameters ignored) is the pattern or of its family."""
    plain = (declared or "").partition(";")[0].strip().lower()
    return plain.startswith(pattern[:-1]) if pattern.endswith("/*") else plain == pattern


class Pipelines:
    """The declared pipelines of an installation, registered as definitions."""

    def __init__(self, registry: Registry, declared: Sequence[Pipeline] = (), policy: str = "") -> None:
        """Raises ConfigurationError for unknown steps, names used twice, or a scan left out without a word."""
        self._registry = registry
        names = [pipeline.name for pipeline in declared]
        if len(set(names)) != len(names) or "" in names:
            raise ConfigurationError("pipelines need names, each its own")
        for pipeline in declared:
            if pipeline.ready not in ("complete", "gated"):
                raise ConfigurationError(f"pipeline {pipeline.name}: ready is complete or gated")
            scans = any(step.activity == SCAN for step in pipeline.steps)
            if pipeline.workflow == "post_upload" and not scans and not pipeline.unscanned:
                raise ConfigurationError(f"pipeline {pipeline.name} leaves out {SCAN}: say unscanned = true if meant")
            registry.define(
                pipeline.workflow,
                pipeline.name,
                pipeline.steps,
                gated=pipeline.ready == "gated",
                policy=policy + ("|unscanned" if not scans else ""),
            )
        if policy:
            for name, workflow in registry.workflows.items():
                if workflow.finalize is not None:
                    registry.define(name, "", workflow.steps, policy=policy)
        # Sorted once; a stable sort keeps the order of declaration among equals.
        self._declared = sorted(declared, key=lambda p: p.rule.weight, reverse=True)

    def select(self, bucket: str, key: bytes, declared_type: str | None, workflow: str = "post_upload") -> Definition:
        """The definition for a new version: its ``pipeline`` goes into NewRun, its ``fingerprint`` into the verdict
        key."""
        suffix = extension(key)
        for pipeline in self._declared:
            if pipeline.workflow == workflow and pipeline.rule.matches(bucket, key, suffix, declared_type):
                return self._registry.definition(workflow, pipeline.name)
        return self._registry.definition(workflow)


def parse_pipelines(table: Mapping[str, Mapping[str, Any]]) -> list[Pipeline]:
    """The ``pipelines`` table of the configuration file: name → {steps, bucket, prefix, extension, type, …}.

    A step is a name or {activity, required, lazy, attempts}. Raises ConfigurationError with the path of what is wrong.
    """
    rule_keys = {"bucket", "prefix", "extension", "type"}
    known = rule_keys | {"steps", "workflow", "ready", "unscanned"}
    found = []
    for name, entry in table.items():
        if unknown := sorted(entry.keys() - known):
            raise ConfigurationError(f"pipelines.{name}.{unknown[0]} is not a setting")
        if not entry.get("steps"):
            raise ConfigurationError(f"pipelines.{name}.steps is missing")
        try:
            steps = tuple(Step(s) if isinstance(s, str) else Step(**s) for s in entry["steps"])
        except TypeError as error:
            raise ConfigurationError(f"pipelines.{name}.steps: {error}") from None
        prefix = entry.get("prefix")
        extension = entry.get("extension")
        pipeline = Pipeline(
            name,
            steps,
            Rule(
                entry.get("bucket"),
                None if prefix is None else str(prefix).encode(),
                None if extension is None else str(extension).lstrip(".").lower(),
                None if entry.get("type") is None else str(entry["type"]).lower(),
            ),
        )
        options = {key: entry[key] for key in ("workflow", "ready", "unscanned") if key in entry}
        found.append(replace(pipeline, **options))
    return found
