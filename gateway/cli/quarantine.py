"""sluice quarantine: content that is held back, and what becomes of it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gateway.cli.arguments import PLACE, add_output, add_settings, settings_of, talk
from gateway.cli.exits import CommandError, Exit
from gateway.cli.output import show
from gateway.cli.session import bucket_of, who, with_core
from gateway.db.errors import DatabaseError, NoSuchVersion, NotReviewable
from gateway.domain.objects import State

if TYPE_CHECKING:
    from gateway.core import Core
    from gateway.db.quarantine import Held

COLUMNS = ["bucket", "key", "version", "state", "code", "detail", "size", "modified", "run_id"]


def arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = verbs.add_parser("list", help="held versions, by bucket and key")
    listing.add_argument("--bucket", metavar="NAME")
    listing.add_argument("--prefix", default="", metavar="KEY", help="needs --bucket")
    listing.add_argument("--failed", action="store_true", help="those that failed too, not only what was blocked")
    listing.add_argument("--limit", type=int, default=100, metavar="N")
    shown = verbs.add_parser("show", help="the held versions of one key with their verdicts")
    release = verbs.add_parser("release", help="serve a quarantined version after all; recorded with who and why")
    release.add_argument("--why", required=True, metavar="TEXT", help="for the audit trail")
    release.add_argument("--allow-digest", action="store_true", help="this content passes the scan from now on")
    release.add_argument("--promote", action="store_true", help="also over a newer version of the same key")
    delete = verbs.add_parser("delete", help="delete a held version for good")
    delete.add_argument("--why", default="", metavar="TEXT", help="for the audit trail")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    for each in (shown, release, delete):
        each.add_argument("bucket", metavar="BUCKET")
        each.add_argument("key", metavar="KEY")
        each.add_argument("--version", metavar="ID", help="as list shows it; default: the newest")
    for each in verbs.choices.values():
        add_output(each)
        add_settings(each, PLACE)


def run(args: argparse.Namespace) -> int:
    if args.verb == "delete" and not (args.yes or args.dry_run):
        raise CommandError(Exit.USAGE, f"This deletes {args.bucket}/{args.key} for good; say so with --yes.")
    if args.verb == "list" and args.prefix and not args.bucket:
        raise CommandError(Exit.USAGE, "--prefix needs --bucket.")
    try:
        return with_core(settings_of(args), lambda core: _run(args, core))
    except NoSuchVersion as error:
        raise CommandError(Exit.NOT_FOUND, "The version is gone.") from error
    except NotReviewable as error:
        raise CommandError(Exit.CONFLICT, str(error)) from error
    except DatabaseError as error:
        raise CommandError(Exit.CONFLICT, f"{type(error).__name__}: {error}") from error


async def _run(args: argparse.Namespace, core: Core) -> int:
    bucket = await bucket_of(core, args.bucket) if args.bucket else None
    if args.verb == "list":
        states = frozenset((State.QUARANTINED, State.FAILED) if args.failed else (State.QUARANTINED,))
        page = await core.quarantine.list(
            bucket.id if bucket else None, prefix=args.prefix.encode(), states=states, limit=args.limit
        )
        show(args, [_row(each) for each in page.held], COLUMNS)
        if page.next is not None:
            talk("There are more: raise --limit.")
        return Exit.OK
    assert bucket is not None
    held = await core.quarantine.show(bucket.id, args.key.encode(errors="surrogateescape"), limit=1000)
    if args.version is not None:
        held = [each for each in held if args.version in (each.version_id, each.ref.version_id)]
    if args.verb == "release":
        held = [each for each in held if each.state is State.QUARANTINED]
    if not held:
        raise CommandError(Exit.NOT_FOUND, f"No version of {args.bucket}/{args.key} is held.")
    match args.verb:
        case "show":
            show(args, [_row(each) | {"processing": each.processing} for each in held], [*COLUMNS, "processing"])
        case "release":
            ref = await core.review.release(
                bucket, held[0].ref, who=who(), why=args.why, allow_digest=args.allow_digest, promote=args.promote
            )
            show(args, {"released": ref.version_id})
        case "delete":
            if not args.dry_run:
                await core.review.delete(bucket, held[0].ref, who=who(), why=args.why)
            show(args, {"would_delete" if args.dry_run else "deleted": held[0].ref.version_id})
    return Exit.OK


def _row(held: Held) -> dict[str, Any]:
    return {
        "bucket": held.bucket,
        "key": held.ref.key,
        "version": held.ref.version_id,
        "state": held.state.word,
        "code": held.code,
        "detail": held.detail,
        "size": held.size,
        "modified": held.modified,
        "run_id": held.run_id,
        "account": held.account,
        "digest": held.digest,
    }
