"""Writes the reference pages from the tables in the code: settings, metrics, commands, error codes, operations.

``python -m gateway.cli.reference docs`` writes them; a test compares them, so that they cannot fall behind.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.cli.exits import MEANING
from gateway.cli.main import COMMANDS, parser_for
from gateway.http.admin import ROUTES
from gateway.s3.errors import AWS, OWN
from gateway.s3.operations import BY_NAME
from gateway.settings import Item, catalogue
from gateway.telemetry.metrics import TABLE
from processing.failures import BLOCK_REASONS, FAILURES

NOTE = "<!-- Made from the code by `make docs`; do not edit. -->\n\n"


def pages() -> dict[str, str]:
    """File name to content."""
    return {
        "settings.md": NOTE + settings_page(),
        "metrics.md": NOTE + metrics_page(),
        "cli.md": NOTE + cli_page(),
        "errors.md": NOTE + errors_page(),
        "operations-s3.md": NOTE + operations_page(),
        "admin-api.md": NOTE + admin_page(),
    }


def settings_page() -> str:
    rows = [(f"`{i.key}`", f"`{i.variable}`", _default(i), _doc(i)) for i in catalogue().values()]
    return (
        "# Settings\n\n"
        "A TOML file (`--config FILE` or `SLUICE_CONFIG`), then environment variables, then flags (`--s3-port`): the "
        "later wins. `sluice config show --origin` tells where each value came from. An unknown name is refused. "
        "Times are in seconds, sizes in bytes. In a variable a list is separated by commas, a table is JSON; keys with "
        "a dot belong to a table of the file (`[engine]`). A *secret* can also be given as `NAME_file` (variable "
        "`…_FILE`), the path of a file that holds it, and is never a flag.\n\n"
        + _table(("Setting", "Variable", "Default", "Meaning"), rows)
    )


def _default(item: Item) -> str:
    if item.key == "data_dir":
        return "`~/.local/share/sluice`, as root `/var/lib/sluice`"
    value = item.default
    if value is None or value == () or value == {}:
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Mapping):
        return ", ".join(f"`{name} = {each}`" for name, each in value.items())
    if isinstance(value, tuple):
        return f"`{', '.join(value)}`"
    return f"`{value:g}`" if isinstance(value, float) and value < 1e6 else f"`{value}`"


def _doc(item: Item) -> str:
    extra = f" One of {', '.join(f'`{each}`' for each in item.choices)}." if item.choices else ""
    return f"{item.doc}{extra}{' *Secret.*' if item.secret else ''}"


def metrics_page() -> str:
    kinds = {"scraped": "gauge"}
    rows = [
        (f"`{r.name}`", kinds.get(r.kind, r.kind), ", ".join(f"`{n}`" for n in r.labels) or "–", r.doc) for r in TABLE
    ]
    return (
        "# Metrics\n\n`/metrics` on the admin port. Any process answers for all of them. Labels come from closed sets; "
        "what clients or activities make up is shown as `other`.\n\n"
        + _table(("Metric", "Kind", "Labels", "Meaning"), rows)
    )


def errors_page() -> str:
    own = [(f"`{code}`", status, text) for code, (status, text) in sorted(OWN.items())]
    aws = [(f"`{code}`", status, text) for code, (status, text) in sorted(AWS.items())]
    blocks = [(f"`{code}`", text) for code, text in BLOCK_REASONS.items()]
    failures = [(f"`{code}`", "yes" if row.retryable else "no", row.sentence) for code, row in FAILURES.items()]
    return (
        "# Error codes\n\n## Sluice's own\n\n"
        + _table(("Code", "Status", "Message"), own)
        + "\n## Why content is quarantined (`x-sluice-code`)\n\n"
        + _table(("Code", "Meaning"), blocks)
        + "\n## Why processing failed\n\n"
        + _table(("Code", "Retry helps", "Meaning"), failures)
        + "\n## Amazon S3's\n\n"
        + _table(("Code", "Status", "Message"), aws)
    )


def operations_page() -> str:
    rows = [
        (
            f"`{o.name}`",
            o.method,
            o.target.name.lower(),
            f"`{o.action}`" if o.action else "–",
            "yes" if o.handler else "501",
        )
        for o in BY_NAME.values()
    ]
    return "# S3 operations\n\nWhat is not implemented answers `501 NotImplemented` by name.\n\n" + _table(
        ("Operation", "Method", "Target", "Action", "Implemented"), rows
    )


ADMIN = """# The admin port

Port 9001, bound to loopback. Health and metrics are open; everything below `/api` needs `Authorization: Bearer TOKEN`
(the setting `admin_token`) or an access key of the root account by HTTP Basic (`curl -u ACCESS_KEY:SECRET_KEY`). After
ten wrong credentials a minute an address is answered 429. Bodies and answers are JSON; an error is
`{"error": {"code": …, "message": …}}`. A key in a path is percent-encoded once, its slashes may stay.

"""
EXAMPLES = """
```sh
curl -u "$KEY:$SECRET" 'localhost:9001/api/v1/runs?state=parked'
curl -u "$KEY:$SECRET" -X POST localhost:9001/api/v1/runs/17/retry
curl -u "$KEY:$SECRET" -X POST -d '{"why": "false alarm"}' localhost:9001/api/v1/quarantine/first/a.exe/release
```
"""


def admin_page() -> str:
    rows = [(r.method, f"`{r.path}`", "open" if r.open else "", r.doc) for r in ROUTES]
    return ADMIN + _table(("Method", "Path", "", "Meaning"), rows) + EXAMPLES


def cli_page() -> str:
    """Every command and verb; settings as flags are left to the settings page."""
    parser = parser_for(list(COMMANDS))
    parts = ["# Commands\n\nData goes to standard output (`--json`: as one JSON document), words to standard error.\n"]
    for name, command in _subparsers(parser).items():
        parts.append(f"\n## `sluice {name}`\n\n{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.\n")
        verbs = _subparsers(command)
        for verb, each in (verbs or {"": command}).items():
            parts.append(f"\n`{' '.join(['sluice', name, *([verb] if verb else []), *_usage(each)])}`\n")
            described = [(word, text) for word, text in _described(each) if text]
            if described:
                parts.append("\n" + "".join(f"- `{word}`: {text}\n" for word, text in described))
    codes = _table(("Code", "Meaning"), [(code.value, text) for code, text in MEANING.items()])
    return "".join(parts) + "\n## Exit codes\n\n" + codes


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _own(parser: argparse.ArgumentParser) -> Iterable[argparse.Action]:
    for action in parser._actions:
        if not action.dest.startswith("set:") and action.dest not in ("help", "config", "verb"):
            yield action


def _usage(parser: argparse.ArgumentParser) -> list[str]:
    words = []
    for action in _own(parser):
        value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
        if action.choices:
            value = "|".join(map(str, action.choices))
        word = f"{action.option_strings[0]} {value}".strip() if action.option_strings else str(value)
        words.append(word if action.required and action.nargs != "?" else f"[{word}]")
    return words


def _described(parser: argparse.ArgumentParser) -> Iterable[tuple[str, str]]:
    for action in _own(parser):
        yield (
            (action.option_strings[0] if action.option_strings else str(action.metavar or action.dest)),
            action.help or "",
        )


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def main() -> None:
    folder = Path(sys.argv[1])
    for name, text in pages().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
