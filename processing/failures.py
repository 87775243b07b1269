"""Why content is not served: two tables of codes, each with one fixed sentence, and the exceptions that carry them.

The sentence is what is stored and shown; the text of an exception never is, since it may hold content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure code: whether a person may retry the run, and its sentence."""

    retryable: bool
    sentence: str


BLOCK_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "malware": "The scanner found malware in the content.",
        "blocked-extension": "Files with this extension are not accepted here.",
        "type-mismatch": "The content is not of the type its name or declaration says.",
        "unscannable": "The content could not be scanned, and policy holds back what was not scanned.",
    }
)

FAILURES: Mapping[str, Failure] = MappingProxyType(
    {
        "scanner-unavailable": Failure(True, "The malware scanner could not be reached for too long."),
        "tier-unavailable": Failure(True, "The storage tier could not be reached for too long."),
        "extract-failed": Failure(True, "The text of the content could not be extracted."),
        "embed-failed": Failure(True, "The passages of the content could not be embedded."),
        "quota": Failure(True, "The processing allowance is used up."),
        "rule-too-broad": Failure(True, "A rule matched more than it may."),
        "recall-timeout": Failure(True, "The archive did not make the content readable in time."),
        "recall-expired": Failure(True, "The restored copy expired before it was brought home."),
        "worker-lost": Failure(True, "The processes working on this run ended before it did, too many times."),
        "cancelled": Failure(True, "The run was cancelled."),
        "configuration": Failure(True, "The run does not fit the configuration of this installation."),
        "internal": Failure(True, "A step failed each time it was tried."),
        "unsupported-type": Failure(False, "Content of this type is not supported by the workflow."),
        "too-complex": Failure(False, "The content is nested too deeply or holds too many parts."),
        "empty-container": Failure(False, "The container holds nothing."),
        "empty-file": Failure(False, "The workflow needs content, and the file is empty."),
        "too-large": Failure(False, "The content is larger than the workflow accepts."),
        "corrupt-source": Failure(False, "The stored content differs from its digest."),
        "superseded": Failure(False, "The version this run worked on is gone."),
    }
)

DEPENDENCY_CODES: Mapping[str, str] = MappingProxyType({"scanner": "scanner-unavailable", "tier": "tier-unavailable"})


def sentence(code: str | None) -> str:
    """The fixed sentence of a block reason or failure code; foreign codes get a neutral one."""
    failure = FAILURES.get(code or "")
    if failure is not None:
        return failure.sentence
    return BLOCK_REASONS.get(code or "", "Processing refused the content.")


def retryable(code: str | None) -> bool:
    """Whether retrying a run that ended with this code can help. Codes of foreign activities count as retryable."""
    failure = FAILURES.get(code or "")
    return failure is None or failure.retryable


def dependency_code(name: str) -> str:
    """The failure code of a dependency that stayed away, by the part of its name before a colon ("tier:cold")."""
    return DEPENDENCY_CODES.get(name.partition(":")[0], "internal")


class Block(Exception):
    """Raised by an activity: the content must not be served. reason is a row of BLOCK_REASONS (or an activity's own
    word), detail a signature name or the like, never content."""

    def __init__(self, reason: str, detail: str | None = None, metadata: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail
        self.metadata: Mapping[str, Any] = metadata or {}


class FatalError(Exception):
    """Raised by an activity: trying again cannot help. code is a row of FAILURES; detail never holds content."""

    def __init__(self, code: str, detail: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.detail = detail


class Retry(Exception):
    """Raised by an activity: this attempt failed with a code; after is the least number of seconds to wait."""

    def __init__(self, code: str = "internal", after: float = 0.0, detail: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.after = after
        self.detail = detail


class Park(Exception):
    """Raised by an activity: give the worker back and call this step again later, with ``state`` as ``ctx.state``.

    Exactly one of until (Unix time, seconds), after (seconds from now) and event (a wait key, see ``Engine.signal``)
    says when; deadline (seconds from now) bounds it, else the engine's default does. Costs no attempt.
    """

    def __init__(
        self,
        *,
        until: float | None = None,
        after: float | None = None,
        event: str | None = None,
        state: Mapping[str, Any] | None = None,
        deadline: float | None = None,
    ) -> None:
        if sum(given is not None for given in (until, after, event)) != 1:
            raise ValueError("Park takes exactly one of until, after and event")
        super().__init__("parked")
        self.until = until
        self.after = after
        self.event = event
        self.state = state
        self.deadline = deadline


class DependencyDown(Exception):
    """Raised by an activity: what it needs cannot be reached, which is no failure of this run.

    name is the breaker ("scanner", "tier:cold"); code is what the run fails with when the dependency stays away
    beyond ``dependency_deadline``.
    """

    def __init__(self, name: str, code: str | None = None) -> None:
        super().__init__(name)
        self.name = name
        self.code = code or dependency_code(name)


class Conflict(Exception):
    """An operator's wish that the run's state does not allow (409). code is a word, text a sentence."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
