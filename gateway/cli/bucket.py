"""sluice bucket: buckets of all accounts, and how their objects are processed and served."""

from __future__ import annotations

import argparse
from typing import Any

from gateway.cli.arguments import PLACE, add_output, add_settings, settings_of, talk
from gateway.cli.exits import CommandError, Exit
from gateway.cli.output import show
from gateway.cli.session import Session, with_database
from gateway.db.buckets import Buckets
from gateway.db.errors import DatabaseError
from gateway.db.identities import Identities
from gateway.db.notices import tell
from gateway.domain.names import check_bucket
from gateway.domain.objects import Account, Bucket
from gateway.s3.errors import S3Error

# Flag, what may be set, meaning. "default" removes the bucket's own setting.
CHOICES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("processing", ("async", "sync"), "when a write is answered: once durable, or once processed"),
    ("when_failed", ("previous", "refuse"), "what reads get when the newest version failed"),
    ("while_scanning", ("wait", "previous"), "what reads get while the newest version is scanned"),
)
COLUMNS = ["name", "account", "versioning", "processing", "when_failed", "while_scanning", "created"]


def arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = verbs.add_parser("list", help="buckets of all accounts, or of one")
    listing.add_argument("--account", metavar="NAME")
    create = verbs.add_parser("create", help="a bucket for an account")
    create.add_argument("name", metavar="BUCKET")
    create.add_argument("--account", default="root", metavar="NAME")
    change = verbs.add_parser("set", help="how a bucket's objects are processed and served")
    change.add_argument("name", metavar="BUCKET")
    for each in (create, change):
        for name, values, text in CHOICES:
            each.add_argument(f"--{name.replace('_', '-')}", dest=name, choices=[*values, "default"], help=text)
    for each in verbs.choices.values():
        add_output(each)
        add_settings(each, PLACE)


def run(args: argparse.Namespace) -> int:
    try:
        return with_database(settings_of(args), lambda session: _run(args, session))
    except S3Error as error:
        raise CommandError(Exit.USAGE, error.message) from error
    except DatabaseError as error:
        raise CommandError(Exit.CONFLICT, f"{type(error).__name__}: {error}") from error


async def _run(args: argparse.Namespace, session: Session) -> int:
    changed: list[str] = []
    buckets = Buckets(session.pool, lambda _kind, name: changed.append(name), blob_grace=session.settings.blob_grace)
    identities = Identities(session.pool, session.ring)
    if args.verb == "list":
        account = (await _account(identities, args.account)).id if args.account else None
        rows: list[Bucket] = []
        page = await buckets.list(account)
        rows.extend(page.buckets)
        while page.truncated:
            page = await buckets.list(account, after=rows[-1].name)
            rows.extend(page.buckets)
        show(args, [_row(each) for each in rows], COLUMNS)
        return Exit.OK
    if args.verb == "create":
        check_bucket(args.name)
        owner = await _account(identities, args.account)
        bucket, made = await buckets.create(args.name, owner, ownership=session.settings.default_ownership)
        if not made:
            raise CommandError(Exit.CONFLICT, f"There is already a bucket {args.name}.")
    else:
        found = await buckets.get(args.name, fresh=True)
        if found is None:
            raise CommandError(Exit.NOT_FOUND, f"There is no bucket {args.name}.")
        bucket = found
    changes = {name: None if value == "default" else value for name, value in _given(args).items()}
    if changes:
        bucket = await buckets.set_config(bucket, changes)
    elif args.verb == "set":
        raise CommandError(Exit.USAGE, "Say what to set; see --help.")
    await tell(session.pool, "bucket", changed)
    show(args, _row(bucket))
    talk("Done.")
    return Exit.OK


def _given(args: argparse.Namespace) -> dict[str, str]:
    return {name: getattr(args, name) for name, _, _ in CHOICES if getattr(args, name) is not None}


async def _account(identities: Identities, name: str) -> Account:
    account = await identities.account_by_name(name)
    if account is None:
        raise CommandError(Exit.NOT_FOUND, f"There is no account {name}.")
    return account


def _row(bucket: Bucket) -> dict[str, Any]:
    return {
        "name": bucket.name,
        "account": bucket.owner.name,
        "location": bucket.location,
        "versioning": bucket.versioning.name.lower(),
        **{name: bucket.config.get(name) for name, _, _ in CHOICES},
        "created": bucket.created,
    }
