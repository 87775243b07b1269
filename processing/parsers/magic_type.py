"""The type of a content's beginning, by libmagic."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from ctypes.util import find_library
from typing import Any


@functools.cache
def load() -> Any:
    """libmagic with its database. The system's one comes first; pylibmagic brings one where there is none."""
    if find_library("magic") is None:
        importlib.import_module("pylibmagic")  # puts its copy in the way of what python-magic loads
    magic = importlib.import_module("magic")
    return magic.Magic(mime=True)


def run(params: Mapping[str, Any], data: memoryview) -> tuple[Any, bytes]:
    """value: the MIME type as libmagic names it."""
    return load().from_buffer(bytes(data)), b""
