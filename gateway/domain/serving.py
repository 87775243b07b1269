"""May this version's bytes leave? One function decides, and every read path calls it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime

from gateway.domain.objects import Resolved, State, Version
from processing.failures import retryable


@dataclass(frozen=True, slots=True)
class Serve:
    """The bytes may leave. restored: they come from the temporary copy."""

    restored: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """A verdict is awaited; nothing may leave before it."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """code is an S3 error code of the errors table."""

    code: str


def may_serve(version: Version, archived: bool, now: datetime) -> Serve | Wait | Refuse:
    """Decide for one version. archived: its storage class has to be restored before reading.

    Delete markers are not decided here: they have no bytes and answers of their own (404, 405).
    """
    if version.expires_at is not None and version.expires_at <= now:
        return Refuse("NoSuchKey")
    if version.state is State.QUARANTINED:
        return Refuse("ObjectQuarantined")
    if version.state is State.FAILED:
        return Refuse("ProcessingFailed")
    if archived:
        if version.state is State.READY and version.restored_until is not None and version.restored_until > now:
            return Serve(restored=True)
        return Refuse("InvalidObjectState")
    return Serve() if version.state is State.READY else Wait()


def state_headers(resolved: Resolved) -> dict[str, str]:
    """The ``x-sluice-*`` headers that every answer about a version carries."""
    version = resolved.version
    if version is None or version.state is State.MARKER:
        return {}
    headers = {"x-sluice-state": version.state.word}
    if version.code and version.state in (State.QUARANTINED, State.FAILED):
        headers["x-sluice-code"] = version.code
        headers["x-sluice-reason"] = ascii_only(version.detail or version.code)
        if version.state is State.FAILED:
            headers["x-sluice-retryable"] = "true" if retryable(version.code) else "false"
    if version.state is State.SCANNING and version.run_id is not None:
        headers["x-sluice-run"] = str(version.run_id)
    if resolved.newer is not None:
        headers["x-sluice-newer"] = resolved.newer.word
        if resolved.newer_run is not None:
            headers["x-sluice-run"] = str(resolved.newer_run)
    return headers


def restore_header(version: Version, now: datetime) -> str | None:
    """The value of ``x-amz-restore``, or None when nothing was asked for (S3 reference, HeadObject)."""
    if version.restoring:
        return 'ongoing-request="true"'
    if version.restored_until is not None and version.restored_until > now:
        return f'ongoing-request="false", expiry-date="{format_datetime(version.restored_until, usegmt=True)}"'
    return None


def ascii_only(text: str) -> str:
    """text fit for a header: printable ASCII, anything else as a question mark."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)
