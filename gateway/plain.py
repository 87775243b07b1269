"""Any value of ours as JSON knows it: what the commands print and the admin API answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec


def plain(value: Any) -> Any:
    """Any value of ours as JSON knows it; keys (bytes) as text, what is no UTF-8 escaped."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(each) for key, each in value.items()}
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, UUID | Path):
        return str(value)
    if (isinstance(value, Sequence) and not isinstance(value, str)) or isinstance(value, set | frozenset):
        return [plain(each) for each in value]
    return value
