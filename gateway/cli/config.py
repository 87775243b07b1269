"""sluice config: what the settings are, where each came from, and whether they can be used."""

from __future__ import annotations

import argparse
import tomllib

from gateway.cli.arguments import add_output, add_settings, settings_of, talk
from gateway.cli.exits import CommandError, Exit
from gateway.cli.output import show
from gateway.plain import plain
from gateway.settings import Settings, catalogue


def arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    shown = verbs.add_parser("show", help="every setting with its value; secrets are hidden")
    shown.add_argument("--origin", action="store_true", help="only those that were set, and where")
    verbs.add_parser("check", help="read all sources; exit 78 when something cannot be used")
    verbs.add_parser("init", help="print a TOML file with every setting at its default, commented out")
    for each in verbs.choices.values():
        add_output(each)
        add_settings(each)


def run(args: argparse.Namespace) -> int:
    if args.verb == "init":
        print(template())
        return Exit.OK
    settings = settings_of(args)
    if args.verb == "check":
        check(settings)
        talk("The configuration can be used.")
        return Exit.OK
    rows = []
    for key, item in catalogue().items():
        if args.origin and key not in settings.origin:
            continue
        value = value_of(settings, key)
        hidden = item.secret and value is not None
        origin = settings.origin.get(key, "default")
        rows.append({"setting": key, "value": "(hidden)" if hidden else plain(value), "origin": origin})
    show(args, rows, ["setting", "value", "origin"])
    return Exit.OK


def value_of(settings: Settings, key: str) -> object:
    owner: object = settings
    for name in key.split("."):
        owner = getattr(owner, name)
    return owner


def check(settings: Settings) -> None:
    """What only those who use it can refuse: pipelines, activities, the scanner's address. Raises CommandError."""
    from gateway.policy import PolicyError, policy_of

    try:
        policy_of(settings)
    except PolicyError as error:
        raise CommandError(Exit.CONFIG, str(error)) from error
    for name in ("tls_cert", "tls_key"):
        path = getattr(settings, name)
        if path is not None and not path.is_file():
            raise CommandError(Exit.CONFIG, f"{name}: there is no file {path}.")


def template() -> str:
    """A file that tomllib accepts as it is, and with every comment sign in front of a setting removed."""
    lines = ["# Settings of Sluice. Everything is at its default; remove the # in front of what you change.", ""]
    section = ""
    for key, item in catalogue().items():
        table, _, name = key.rpartition(".")
        if table != section:
            section = table
            lines += [f"[{table}]", ""]
        lines += [f"# {item.doc}", f"#{name} = {_toml(item.default)}", ""]
    text = "\n".join(lines)
    tomllib.loads(text)
    return text


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    if isinstance(value, dict) or hasattr(value, "items"):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    text = "" if value is None else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
