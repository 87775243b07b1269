"""sluice migrate: bring the database to this release's schema, or say what is missing."""

from __future__ import annotations

import argparse
import asyncio

import asyncpg

from gateway.cli.arguments import PLACE, add_output, add_settings, settings_of, talk
from gateway.cli.exits import CommandError, Exit
from gateway.cli.output import show
from gateway.cli.prepare import folders
from gateway.cli.session import find_database
from gateway.db.migrate import MigrationError, migrate, pending


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say which migrations are missing")
    add_output(parser)
    add_settings(parser, PLACE)


def run(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    folders(settings)
    dsn, end = find_database(settings)
    try:
        names = asyncio.run(_pending(dsn) if args.dry_run else migrate(dsn))
    except (OSError, asyncpg.PostgresError) as error:
        raise CommandError(Exit.UNAVAILABLE, f"The database cannot be used: {error}.") from error
    except MigrationError as error:
        raise CommandError(Exit.CONFIG, str(error)) from error
    finally:
        end()
    show(args, [{"migration": name} for name in names], ["migration"])
    talk(f"{len(names)} {'missing' if args.dry_run else 'applied'}.")
    return Exit.OK


async def _pending(dsn: str) -> list[str]:
    conn = await asyncpg.connect(dsn)
    try:
        return await pending(conn)
    finally:
        await conn.close()
