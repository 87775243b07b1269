"""sluice worker: process runs without serving, beside a service on the same database and tiers."""

from __future__ import annotations

import argparse
import asyncio
import os

from gateway.cli.arguments import add_settings, settings_of, talk
from gateway.cli.exits import CommandError, Exit
from gateway.cli.prepare import folders
from gateway.cli.session import find_database


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", type=int, metavar="RUN", help="execute this one run, then end")
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    import uvloop

    from gateway import app
    from gateway.keys.ring import KeyRingError
    from gateway.policy import PolicyError
    from gateway.telemetry import logs

    settings = settings_of(args)
    logs.configure(settings.log_level, settings.log_format, f"worker-{os.getpid()}")
    folders(settings)
    dsn, end = find_database(settings)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if settings.database_url is None:
                settings = settings.replace(database_url=dsn)
            return runner.run(app.work(settings, lambda: talk("Working."), args.only))
    except (PolicyError, KeyRingError) as error:
        raise CommandError(Exit.CONFIG, str(error)) from error
    finally:
        end()
