"""sluice verify: read blobs again, compare them with their digests, and say which objects are damaged."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING
from uuid import UUID

from gateway.cli.arguments import PLACE, add_output, add_settings, settings_of, talk
from gateway.cli.exits import Exit
from gateway.cli.output import show
from gateway.cli.session import with_core

if TYPE_CHECKING:
    from gateway.core import Core

COLUMNS = ["bucket", "key", "tier", "blob"]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all", action="store_true", help="every blob of the file tiers, as fast as they can be read; default: those "
        "marked as damaged, which are served again when they are right by now"
    )  # fmt: skip
    add_output(parser)
    add_settings(parser, PLACE)


def run(args: argparse.Namespace) -> int:
    return with_core(settings_of(args), lambda core: _run(args, core))


async def _run(args: argparse.Namespace, core: Core) -> int:
    from gateway.db.scrubber import everything

    async def told(last: UUID) -> None:
        talk(f"… {last}")

    scrubber = core.scrubber.unbounded()
    mended = await scrubber.marked()
    if mended:
        talk(f"{mended} blobs are right again.")
    if args.all:
        await everything(scrubber, told)
    hits = await core.damage.hits()
    rows = [{"bucket": h.bucket, "key": h.key.decode("utf-8", "replace"), "tier": h.tier, "blob": h.blob} for h in hits]
    show(args, rows, COLUMNS)
    return Exit.FAILED if rows else Exit.OK
