"""What several commands take: settings as flags, and --json."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

from gateway.cli.exits import CommandError, Exit
from gateway.settings import Settings, SettingsError, catalogue
from gateway.sources import load

PLACE = ("data_dir", "blob_dir")  # what a command has to know to find the service it works on


def add_settings(parser: argparse.ArgumentParser, keys: Container[str] | None = None) -> None:
    """--config and one flag per setting (secrets only as --NAME-file: a command line can be read by others).

    keys: only these settings; the others still come from the file and the environment.
    """
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings")
    group = parser.add_argument_group("settings (docs/settings.md)")
    for item in catalogue().values():
        if keys is not None and item.key not in keys:
            continue
        name = item.key.replace(".", "-").replace("_", "-")
        if item.secret:
            group.add_argument(f"--{name}-file", dest=f"set:{item.key}_file", metavar="FILE", help=argparse.SUPPRESS)
        else:
            group.add_argument(f"--{name}", dest=f"set:{item.key}", metavar="VALUE", help=item.doc.replace("%", "%%"))


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print data as JSON")


def given_flags(args: argparse.Namespace) -> dict[str, Any]:
    """The settings given on the command line, by key."""
    return {
        name.removeprefix("set:"): value
        for name, value in vars(args).items()
        if name.startswith("set:") and value is not None
    }


def settings_of(args: argparse.Namespace) -> Settings:
    """Raises CommandError when something in them cannot be used."""
    try:
        return load(given_flags(args), file=Path(args.config) if getattr(args, "config", None) else None)
    except SettingsError as error:
        raise CommandError(Exit.CONFIG, str(error)) from error


def talk(text: str) -> None:
    """Words for the person at the terminal; data goes to standard output."""
    print(text, file=sys.stderr, flush=True)
