"""What tests/operations gives (``house``, ``s3``, ``bucket``), and ``start_whole``: a gateway with its engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cases.whole import StartWhole, Whole
from tests.operations.conftest import bucket, house, s3
from tests.operations.house import ROOT, House
from tests.signing import Signer
from tests.wire.raw import signer

__all__ = ["bucket", "house", "s3"]


@pytest.fixture
def root(house: House) -> Signer:
    return signer(house.port, ROOT)


@pytest.fixture
def start_whole(new_database: Callable[[], str], tmp_path: Path) -> Iterator[StartWhole]:
    """A factory: start_whole(clamd=…, read_wait=…); the arguments are settings."""
    made: list[Whole] = []

    def start(**settings: Any) -> Whole:
        one = Whole(new_database(), tmp_path / f"data-{len(made)}", **settings)
        made.append(one)
        return one.start()

    yield start
    for each in made:
        each.stop()
