"""What the settings say about processing, as the engine wants it: activities, workflows, pipelines, limits."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields

from gateway.s3.errors import AWS, OWN
from gateway.s3.operations import OPERATIONS
from gateway.settings import Settings
from gateway.telemetry.metrics import Fold, Vocabulary
from processing.activities.settings import ActivitySettings
from processing.clamd import ClamdAddress
from processing.failures import BLOCK_REASONS, FAILURES
from processing.model import EngineSettings
from processing.pipelines import Pipelines, parse_pipelines
from processing.registry import ConfigurationError, Registry

BUILT_IN = (
    "processing.workflows.post_upload",
    "processing.workflows.tier_recall",
    "processing.workflows.tier_move",
)
ISOLATE = (sys.executable, "-m", "gateway.cli.main", "worker", "--only", "{run}")


class PolicyError(Exception):
    """The settings of processing do not fit together; the text says where."""


@dataclass(frozen=True, slots=True)
class Policy:
    registry: Registry
    pipelines: Pipelines
    activities: ActivitySettings
    scanner: ClamdAddress | None
    vocabulary: Vocabulary


def policy_of(settings: Settings) -> Policy:
    """Raises PolicyError."""
    try:
        registry = Registry.load([*BUILT_IN, *settings.activities])
        activities = activity_settings(settings)
        scanner = ClamdAddress.parse(settings.clamd) if settings.clamd else None
        declared = parse_pipelines(settings.pipelines)
        pipelines = Pipelines(registry, declared, activities.policy(scanner is not None))
    except (ConfigurationError, ImportError, ValueError) as error:
        raise PolicyError(str(error)) from error
    return Policy(registry, pipelines, activities, scanner, vocabulary(registry))


def activity_settings(settings: Settings) -> ActivitySettings:
    return ActivitySettings(
        enforce_type_match=settings.enforce_type_match,
        blocked_extensions=settings.blocked_extensions,
        unscannable=settings.unscannable,
        unreachable=settings.unreachable,
        extract_bytes=settings.extract_max_bytes,
        extract_seconds=settings.extract_timeout,
    )


def engine_settings(settings: Settings, claims: bool = True) -> EngineSettings:
    """claims False: enqueue and operate only. A run that cost processes before is executed in one of its own."""
    section = {each.name: getattr(settings.engine, each.name) for each in fields(settings.engine)}
    crowd = settings.run_dir / "crowd" if claims else None
    return EngineSettings(**section, claims=claims, isolate=ISOLATE, crowd=crowd)


def vocabulary(registry: Registry) -> Vocabulary:
    """The label values of the metrics: what there is of operations, codes, workflows and steps, and nothing else."""
    finalizers = {workflow.finalize for workflow in registry.workflows.values() if workflow.finalize}
    return Vocabulary(
        operations=Fold(operation.name for operation in OPERATIONS),
        codes=Fold([*AWS, *OWN]),
        workflows=Fold(registry.workflows),
        steps=Fold({*registry.activities, *finalizers}),
        reasons=Fold([*BLOCK_REASONS, *FAILURES]),
    )
