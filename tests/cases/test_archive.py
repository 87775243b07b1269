"""Cases of the archive through the whole gateway: restores that meet moves, and copies that are hard to remove."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from storage_tiers.tier import Sink, Stored, TierUnavailable
from storage_tiers.wrappers.around import Around, AroundSink
from storage_tiers.wrappers.faulty import Fault
from tests.cases.whole import StartWhole, Whole
from tests.operations.asking import refused

DATA = b"frozen words " * 5_000


def put_cold(whole: Whole, client: Any, key: str = "k") -> None:
    client.put_object(Bucket="cold", Key=key, Body=DATA, StorageClass="GLACIER")
    whole.reaches(client, "cold", key, "ready")


def moved(whole: Whole) -> None:
    whole.wait(lambda: whole.value("SELECT count(*) FROM workflow_run WHERE workflow = 'tier.move' AND state = 4"))


def restored(whole: Whole, client: Any, key: str = "k") -> str:
    def shown() -> str:
        return str(client.head_object(Bucket="cold", Key=key).get("Restore", ""))

    whole.wait(lambda: 'ongoing-request="false"' in shown(), "the restore does not end")
    return shown()


def blobs(whole: Whole, tier: str) -> list[Path]:
    """The files of contents in a tier (texts lie there too, apart)."""
    folder = whole.folder / "blobs" / tier
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size == len(DATA)]


def test_b201_b203_b205_one_restore_as_a_client_sees_it(start_whole: StartWhole) -> None:
    whole = start_whole(archive_delay=1.0, recall_poll=0.1, lifecycle_day=10_000.0)
    client = whole.client()
    client.create_bucket(Bucket="cold")
    put_cold(whole, client)
    moved(whole)
    ask = {"Bucket": "cold", "Key": "k", "RestoreRequest": {"Days": 1}}
    assert refused(client.get_object, Bucket="cold", Key="k") == (403, "InvalidObjectState")
    assert client.restore_object(**ask)["ResponseMetadata"]["HTTPStatusCode"] == 202
    # While it runs: no date, still refused, HEAD answers, a second request conflicts.
    head = client.head_object(Bucket="cold", Key="k")
    assert (head["Restore"], head["StorageClass"]) == ('ongoing-request="true"', "GLACIER")
    assert refused(client.get_object, Bucket="cold", Key="k") == (403, "InvalidObjectState")
    assert refused(client.restore_object, **ask) == (409, "RestoreAlreadyInProgress")
    told = restored(whole, client)
    found = re.fullmatch(r'ongoing-request="false", expiry-date="(\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT)"', told)
    assert found and parsedate_to_datetime(found[1]) > datetime.now(UTC)
    got = client.get_object(Bucket="cold", Key="k")
    assert got["Body"].read() == DATA and got["StorageClass"] == "GLACIER" and got["Restore"] == told
    # B203: what never was archived cannot be restored.
    client.put_object(Bucket="cold", Key="warm", Body=b"x")
    warm = {**ask, "Key": "warm"}
    assert refused(client.restore_object, **warm) == (403, "InvalidObjectState")


class Gate(Around):
    """Holds commits until told."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.arrived, self.let = asyncio.Event(), asyncio.Event()

    async def begin(self, blob: Any) -> Sink:
        return GatedSink(self, await self.inner.begin(blob))


class GatedSink(AroundSink):
    def __init__(self, gate: Gate, inner: Sink) -> None:
        super().__init__(inner)
        self.gate = gate

    async def commit(self) -> Stored:
        self.gate.arrived.set()
        await self.gate.let.wait()
        return await self.inner.commit()


def test_b207_a_restore_asked_for_in_the_middle_of_the_move(start_whole: StartWhole) -> None:
    whole = start_whole()
    client = whole.client()
    client.create_bucket(Bucket="cold")
    outer: Any = whole.core.services.tiers["archive"]
    gate = outer.inner = Gate(outer.inner)
    put_cold(whole, client)
    whole.wait(gate.arrived.is_set, "the move has not begun")
    ask = {"Bucket": "cold", "Key": "k", "RestoreRequest": {"Days": 1}}
    assert client.restore_object(**ask)["ResponseMetadata"]["HTTPStatusCode"] == 202
    whole.loop.call_soon_threadsafe(gate.let.set)
    restored(whole, client)
    assert client.get_object(Bucket="cold", Key="k")["Body"].read() == DATA
    moved(whole)
    whole.run(whole.core.collector.collect())
    whole.run(whole.core.collector.unlink())
    assert client.get_object(Bucket="cold", Key="k")["Body"].read() == DATA
    assert blobs(whole, "archive") and blobs(whole, "standard")
    assert whole.value("SELECT count(*) FROM workflow_run WHERE state <> 4") == 0


def test_b209_a_hot_copy_whose_deletion_fails_once(start_whole: StartWhole) -> None:
    """The cold copy is in place first; a deletion that fails leaves the hot file to the next pass."""
    whole = start_whole()
    client = whole.client()
    client.create_bucket(Bucket="cold")
    hot = whole.faulty("standard")
    hot.faults.append(Fault("delete", TierUnavailable("no")))
    put_cold(whole, client)
    moved(whole)
    assert len(blobs(whole, "archive")) == 1 and hot.calls["delete"] == 0  # nothing goes before the cold copy is there
    assert len(blobs(whole, "standard")) == 1
    collector = whole.core.collector
    whole.wait(lambda: whole.run(collector.collect()))
    assert whole.run(collector.unlink()) == 0
    assert hot.calls["delete"] == 1 and len(blobs(whole, "standard")) == 1
    client.restore_object(Bucket="cold", Key="k", RestoreRequest={"Days": 1})
    restored(whole, client)
    assert client.get_object(Bucket="cold", Key="k")["Body"].read() == DATA  # out of the cold copy
    assert len(blobs(whole, "standard")) == 2

    def swept() -> bool:
        whole.run(collector.unlink())
        return len(blobs(whole, "standard")) == 1

    whole.wait(swept, "the hot copy stays")
    assert client.get_object(Bucket="cold", Key="k")["Body"].read() == DATA
    assert len(blobs(whole, "archive")) == 1


def test_b209_one_tier_that_is_away_holds_no_other_back(start_whole: StartWhole) -> None:
    whole = start_whole(inline_threshold=0)
    client = whole.client()
    client.create_bucket(Bucket="cold")
    put_cold(whole, client)
    moved(whole)
    whole.faulty("standard").faults.append(Fault("delete", TierUnavailable("no"), times=1000))
    assert len(blobs(whole, "archive")) == len(blobs(whole, "standard")) == 1
    client.delete_object(Bucket="cold", Key="k")
    whole.wait(lambda: whole.run(whole.core.collector.collect()) or not whole.value("SELECT count(*) FROM blob_queue"))
    whole.wait(lambda: whole.run(whole.core.collector.unlink()) or not blobs(whole, "archive"))
    assert blobs(whole, "archive") == [] and len(blobs(whole, "standard")) == 1
