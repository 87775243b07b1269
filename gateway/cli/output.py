"""Data on standard output: a table for a person, one JSON document for a program."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.plain import plain


def show(args: argparse.Namespace, data: Any, columns: Sequence[str] = ()) -> None:
    """Print rows (a sequence of mappings) as a table of columns, one mapping as name and value; with --json as is."""
    data = plain(data)
    if getattr(args, "json", False):
        json.dump(data, sys.stdout, indent=2, ensure_ascii=False)
        print()
    elif isinstance(data, list):
        _table(data, columns)
    else:
        width = max((len(name) for name in data), default=0)
        for name, value in data.items():
            print(f"{name:<{width}}  {_cell(value)}")


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    names = list(columns) or (list(rows[0]) if rows else [])
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells)) if cells else len(name) for i, name in enumerate(names)]
    if sys.stdout.isatty() or cells:
        print("  ".join(f"{name.upper():<{width}}" for name, width in zip(names, widths, strict=True)).rstrip())
    for line in cells:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
