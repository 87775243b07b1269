"""sluice key: accounts and their access keys."""

from __future__ import annotations

import argparse
from typing import Any

from gateway.cli.arguments import PLACE, add_output, add_settings, settings_of, talk
from gateway.cli.exits import CommandError, Exit
from gateway.cli.output import show
from gateway.cli.session import Session, with_database
from gateway.db.errors import DatabaseError
from gateway.db.identities import (
    AccessKeyExists,
    AccountExists,
    Identities,
    Identity,
    InvalidIdentity,
    NoSuchAccessKey,
    NoSuchAccount,
)
from gateway.db.notices import tell

ERRORS: dict[type[DatabaseError], tuple[Exit, str]] = {
    AccountExists: (Exit.CONFLICT, "there is already an account {}"),
    NoSuchAccount: (Exit.NOT_FOUND, "there is no account {}"),
    AccessKeyExists: (Exit.CONFLICT, "the access key {} is taken"),
    NoSuchAccessKey: (Exit.NOT_FOUND, "there is no access key {}"),
    InvalidIdentity: (Exit.USAGE, "{}"),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    create = verbs.add_parser("create", help="a key for an account, which is made when it is new")
    create.add_argument("--account", required=True, metavar="NAME")
    create.add_argument("--display-name", metavar="D", help="of a new account; S3 shows it of owners")
    create.add_argument("--email", default="", metavar="E", help="of a new account; grants may name it")
    create.add_argument("--access-key", metavar="AK", help="generated when not given")
    create.add_argument("--secret-key", metavar="SK", help="generated when not given")
    listing = verbs.add_parser("list", help="all keys, or those of one account; never with secrets")
    listing.add_argument("--account", metavar="NAME")
    for verb, text in (
        ("rotate", "give a key a new secret"),
        ("disable", "refuse what is signed with a key"),
        ("enable", "undo disable"),
        ("delete", "remove a key; its account and what that owns stay"),
    ):
        one = verbs.add_parser(verb, help=text)
        one.add_argument("access_key", metavar="ACCESS_KEY")
        if verb == "rotate":
            one.add_argument("--secret-key", metavar="SK")
        if verb == "delete":
            one.add_argument("--yes", action="store_true", help="do not ask")
    for each in verbs.choices.values():
        add_output(each)
        add_settings(each, PLACE)


def run(args: argparse.Namespace) -> int:
    if args.verb == "delete" and not args.yes:
        raise CommandError(Exit.USAGE, f"This removes the key {args.access_key} for good; say so with --yes.")
    try:
        return with_database(settings_of(args), lambda session: _run(args, session))
    except DatabaseError as error:
        code, text = next((row for kind, row in ERRORS.items() if isinstance(error, kind)), (Exit.FAILED, "{}"))
        raise CommandError(code, text.format(error)) from error


async def _run(args: argparse.Namespace, session: Session) -> int:
    changed: list[str] = []
    identities = Identities(session.pool, session.ring, lambda _kind, name: changed.append(name))
    match args.verb:
        case "create":
            show(args, _with_secret(await _create(args, identities)))
            talk("The secret is shown this once.")
        case "list":
            rows = await identities.list_keys(args.account)
            show(args, [
                {"access_key": row.access_key, "account": row.account.name, "display_name": row.account.display_name,
                 "email": row.account.email, "canonical_id": row.account.canonical_id, "root": row.account.is_root,
                 "enabled": row.enabled, "created": row.created}
                for row in rows
            ], ["access_key", "account", "display_name", "enabled", "root", "created"])  # fmt: skip
        case "rotate":
            show(args, _with_secret(await identities.rotate(args.access_key, args.secret_key)))
        case _:
            await getattr(identities, args.verb)(args.access_key)
            talk({"disable": "Disabled.", "enable": "Enabled.", "delete": "Deleted."}[args.verb])
    await tell(session.pool, "identity", changed)
    return Exit.OK


async def _create(args: argparse.Namespace, identities: Identities) -> Identity:
    if await identities.account_by_name(args.account) is None:
        await identities.create_account(args.account, args.display_name, args.email)
    return await identities.create_key(args.account, args.access_key, args.secret_key)


def _with_secret(identity: Identity) -> dict[str, Any]:
    return {
        "access_key": identity.access_key,
        "secret_key": identity.secret,
        "account": identity.account.name,
        "display_name": identity.account.display_name,
        "canonical_id": identity.account.canonical_id,
    }
