"""The command ``sluice``: one table of commands, each in a file of its own, imported when it is called.

Data goes to standard output (with --json as one JSON document), words for a person to standard error; the exit codes
are in gateway/cli/exits.py.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from gateway.cli.exits import MEANING, CommandError, Exit

COMMANDS: dict[str, str] = {
    "serve": "start the service: database, S3 port, admin port, processing",
    "worker": "process runs without serving; needs the database of a service",
    "migrate": "bring the database to this release's schema",
    "key": "access keys and their accounts: create, list, rotate, disable, enable, delete",
    "bucket": "buckets as the operator sees them: list, create, set",
    "run": "runs: list, show, why, retry, requeue, cancel",
    "quarantine": "held content: list, show, release, delete",
    "reprocess": "run the current pipeline again over an object",
    "verify": "read stored bytes again and compare them with their digests",
    "config": "settings: show, check, init",
    "doctor": "check everything the service depends on, and say what is wrong",
    "health": "ask a running service whether it is ready (for container health checks)",
}


def parser_for(names: Sequence[str]) -> argparse.ArgumentParser:
    """The parser with the arguments of the named commands filled in (one for a call, all for the documentation)."""
    epilog = "exit codes: " + "; ".join(f"{code.value} {text}" for code, text in MEANING.items())
    parser = argparse.ArgumentParser(
        prog="sluice", description="An S3-compatible gateway that processes every object.", epilog=epilog
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name in names:
            importlib.import_module(f"gateway.cli.{name}").arguments(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    named = next((word for word in words if not word.startswith("-")), None)
    parser = parser_for([named] if named in COMMANDS else [])
    args = parser.parse_args(words)
    if args.version:
        from gateway import __version__

        print(__version__)
        return Exit.OK
    if args.command is None:
        parser.print_help(sys.stderr)
        return Exit.USAGE
    try:
        return int(importlib.import_module(f"gateway.cli.{args.command}").run(args))
    except CommandError as error:
        print(f"sluice {args.command}: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED


if __name__ == "__main__":
    sys.exit(main())
