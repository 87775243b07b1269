"""Every operation of the sandboxed children, by name."""

from __future__ import annotations

from processing.parsers import Operation, magic_type, text_model, zip_type

OPERATIONS: dict[str, Operation] = {"magic": magic_type.run, "zip": zip_type.run, "text": text_model.run}


def load() -> dict[str, Operation]:
    """With everything they need loaded: after this a child may lose its file system."""
    magic_type.load()
    return OPERATIONS
