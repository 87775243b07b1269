"""What every test may use. The fixtures themselves are in tests/pg.py and tests/server.py."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import structlog

from tests import pg

pytest_plugins = ["tests.pg", "tests.server"]


def pytest_configure(config: pytest.Config) -> None:
    """The controller makes the session's folder before its workers start, so that they inherit its name."""
    if not hasattr(config, "workerinput"):
        os.environ.pop(pg.ROOT_VARIABLE, None)
        pg.session_root()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        pg.end_session()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests say themselves how a server is configured."""
    for name in list(os.environ):
        if name.startswith(("SLUICE_", "AWS_")) or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield


@pytest.fixture(autouse=True)
def _no_logs_from_before() -> Iterator[None]:
    """What a test configured of the logs ends with it: their stream is pytest's, and closed afterwards."""
    yield
    structlog.reset_defaults()
