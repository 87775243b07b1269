"""The in-process server of tests/operations, attacked over raw sockets."""

from __future__ import annotations

import pytest

from tests.operations.conftest import bucket, house, s3
from tests.operations.house import ROOT, House
from tests.signing import Signer
from tests.wire.raw import signer

__all__ = ["bucket", "house", "s3"]


@pytest.fixture
def root(house: House) -> Signer:
    return signer(house.port, ROOT)
