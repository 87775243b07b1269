"""sluice doctor: check everything the service depends on, one line each, and say what to do about what is wrong."""

from __future__ import annotations

import argparse
import os
import shutil
import ssl
from typing import TYPE_CHECKING, Any

from gateway.cli.arguments import PLACE, add_output, add_settings, settings_of
from gateway.cli.config import check as check_config
from gateway.cli.exits import CommandError, Exit
from gateway.cli.output import show
from gateway.cli.session import with_core
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.core import Core

LOW = 0.05  # share of a file system below which free space is worth a warning
LIMIT = 4096  # open files a busy process may want
SLOW = 300.0  # seconds the questions below may take: they look at every version

# Versions that wait for a verdict no run will bring; rows whose bytes are marked corrupt.
LOST = """
SELECT (SELECT count(*) FROM version v WHERE v.state = 1 AND NOT EXISTS
          (SELECT FROM workflow_run r WHERE r.run_id = v.run_id AND r.state IN (1, 2, 3))) AS scanning,
       (SELECT count(*) FROM blob WHERE corrupt AND state = 2) AS corrupt,
       (SELECT count(*) FROM blob_queue WHERE due_at < now() - interval '1 hour') AS overdue
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    add_settings(parser, PLACE)


def run(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    rows = [*_local(settings)]
    try:
        rows += with_core(settings, _remote)
    except CommandError as error:
        rows.append(_row("database", "failed", str(error)))
    show(args, rows, ["check", "state", "reason"])
    return Exit.FAILED if any(row["state"] == "failed" for row in rows) else Exit.OK


def _row(check: str, state: str = "ok", reason: str = "") -> dict[str, Any]:
    return {"check": check, "state": state, "reason": reason}


def _local(settings: Settings) -> list[dict[str, Any]]:
    """What can be seen without the database."""
    rows = []
    try:
        check_config(settings)
        rows.append(_row("configuration"))
    except CommandError as error:
        rows.append(_row("configuration", "failed", str(error)))
    for name, folder in (("data_dir", settings.data_dir), ("blob_dir", settings.blobs)):
        rows.append(_folder(name, folder))
    if settings.tls_cert is not None and settings.tls_key is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(settings.tls_cert, settings.tls_key)
            rows.append(_row("certificate"))
        except (OSError, ssl.SSLError) as error:
            rows.append(_row("certificate", "failed", str(error)))
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    state = "ok" if hard >= LIMIT or hard == resource.RLIM_INFINITY else "degraded"
    rows.append(_row("open files", state, "" if state == "ok" else f"the limit is {hard}; ulimit -Hn {LIMIT} or more"))
    return rows


def _folder(name: str, folder: Any) -> dict[str, Any]:
    if not folder.exists():
        return _row(name, "degraded", f"{folder} does not exist yet; serve makes it")
    if not os.access(folder, os.W_OK | os.X_OK):
        return _row(name, "failed", f"{folder} cannot be written")
    usage = shutil.disk_usage(folder)
    if usage.free < usage.total * LOW:
        return _row(name, "degraded", f"{usage.free / 2**30:.1f} GiB left on {folder}")
    return _row(name)


async def _remote(core: Core) -> list[dict[str, Any]]:
    from gateway.http.checks import checks
    from gateway.http.health import Health

    await core.writable.look()
    _, report = await Health(checks(core), started=True).ready()
    rows = [_row(name, row["state"], row.get("reason", "")) for name, row in report["checks"].items()]
    lost = await core.services.pool.fetchrow(LOST, timeout=SLOW)
    assert lost is not None
    for name, text in (
        ("scanning", "versions wait for a verdict without a run: sluice reprocess them"),
        ("corrupt", "blobs are missing or damaged: restore them from a backup; sluice verify names the objects"),
        ("overdue", "blobs should have been collected an hour ago: is a service running?"),
    ):
        rows.append(
            _row(f"lost:{name}", "degraded" if lost[name] else "ok", f"{lost[name]} {text}" if lost[name] else "")
        )
    return rows
