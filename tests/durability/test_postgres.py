"""PostgreSQL goes away in every way it can, under load, and comes back: clients wait or are told 503, nothing that was
acknowledged is lost, and everything goes on without anybody's help."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.durability.outage import TIMEOUT, Running, running, session

AWAY = 3 * TIMEOUT


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running({"SLUICE_POOL_SIZE": "4"}) as made:
        yield made


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGINT], ids=["crash", "orderly"])
def test_restarted(service: Running, how: signal.Signals) -> None:
    clients = service.clients()
    with clients.at_work():
        for _ in range(2):
            service.cluster.restart(how)
            clients.more()
    clients.check()
    service.settled()
    service.same_processes()


def test_its_connections_are_killed(service: Running) -> None:
    clients = service.clients()
    with clients.at_work(), session(service.cluster.dsn) as call:
        for _ in range(10):
            call("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'sluice'")
            clients.more(4)
    clients.check()
    service.settled()
    service.same_processes()


def test_unreachable(service: Running) -> None:
    """It says nothing: statements and new connections hang. Clients are told within the documented bound."""
    clients = service.clients()
    with clients.at_work():
        with service.cluster.frozen():
            clients.refused()
            assert service.server.get("/-/ready")[0] == 503
            assert service.server.get("/-/live")[0] == 200
            begun = time.monotonic()
            clients.until(lambda: time.monotonic() - begun > AWAY)
        clients.more()
    clients.check()
    service.settled()
    service.same_processes()
    assert service.server.get("/-/ready")[0] == 200


def test_every_connection_of_the_pool_is_taken(service: Running) -> None:
    """Statements that wait for a lock hold all connections: whoever needs one waits, then is told to come again."""
    clients = service.clients()
    clients.threads = 12
    with clients.at_work():
        with session(service.cluster.dsn) as call:
            call("BEGIN")
            call("LOCK TABLE head IN ACCESS EXCLUSIVE MODE")
            clients.refused(20)
            call("ROLLBACK")
        clients.more()
    clients.check()
    service.settled()
    service.same_processes()
    with session(service.cluster.dsn) as call:  # statements nobody waits for any more do not stay
        end = time.monotonic() + 30
        while call(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'sluice' AND wait_event_type = 'Lock'"
        ):
            assert time.monotonic() < end
