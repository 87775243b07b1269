"""``house``: one in-process server for all tests of a worker; ``bucket``: a bucket of its own for each."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.operations.house import House

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def house(worker_dsn: str) -> Iterator[House]:
    made = House(worker_dsn).start()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def s3(house: House) -> Any:
    return house.client()


@pytest.fixture
def bucket(s3: Any) -> str:
    name = f"b-{os.getpid()}-{next(_numbers)}"
    s3.create_bucket(Bucket=name)
    return name
