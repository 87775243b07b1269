"""sluice reprocess: run the current pipeline again over an object, for new signatures or new rules."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gateway.cli.arguments import PLACE, add_output, add_settings, settings_of
from gateway.cli.exits import CommandError, Exit
from gateway.cli.output import show
from gateway.cli.session import bucket_of, who, with_core
from gateway.db.errors import NoSuchVersion, NotReviewable
from gateway.domain.objects import parse_version_id

if TYPE_CHECKING:
    from gateway.core import Core


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bucket", metavar="BUCKET")
    parser.add_argument("key", metavar="KEY")
    parser.add_argument("--version", metavar="ID", help="default: what the key is now")
    parser.add_argument("--hold", action="store_true", help="do not serve it until the new verdict")
    add_output(parser)
    add_settings(parser, PLACE)


def run(args: argparse.Namespace) -> int:
    try:
        return with_core(settings_of(args), lambda core: _run(args, core))
    except NoSuchVersion as error:
        raise CommandError(Exit.NOT_FOUND, "The version is gone.") from error
    except NotReviewable as error:
        raise CommandError(Exit.CONFLICT, str(error)) from error


async def _run(args: argparse.Namespace, core: Core) -> int:
    bucket = await bucket_of(core, args.bucket)
    which: Any = None
    if args.version is not None:
        which = "null" if args.version == "null" else parse_version_id(args.version)
        if which is None:
            raise CommandError(Exit.USAGE, f"{args.version} is no version id.")
    key = args.key.encode(errors="surrogateescape")
    resolved = await core.services.versions.resolve(bucket, key, which, content=False)
    if resolved.version is None:
        raise CommandError(Exit.NOT_FOUND, f"There is no {args.bucket}/{args.key}.")
    run_id = await core.review.reprocess(bucket, resolved.version.ref, who=who(), hold=args.hold)
    show(args, {"run": run_id})
    return Exit.OK
