"""The steps of tier.recall and tier.move, called as the plain functions they are."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from processing import digests
from processing.activities.tier_await_readable import tier_await_readable
from processing.activities.tier_move import tier_move
from processing.activities.tier_recall_promote import tier_recall_promote
from processing.activities.tier_restore_request import tier_restore_request
from processing.context import Context, Item
from processing.failures import DependencyDown, FatalError, Park
from processing.model import Subject
from processing.ports import Content, Piece, Subjects
from processing.registry import Registry
from storage_tiers.file import FileTier
from storage_tiers.memory import MemoryTier
from storage_tiers.placement import Placement
from storage_tiers.staging import Staging
from storage_tiers.tier import WHOLE, ByteSpan, Tier, TierFull, TierMissing, TierUnavailable
from storage_tiers.wrappers.faulty import Fault, Faulty
from tests.tiers.places import MIB, Clock

DATA = b"content " * 300_000
PLACEMENT = Placement({"STANDARD": "warm", "GLACIER": "cold"}, frozenset({"cold"}))


class Log:
    def info(self, event: str, **fields: Any) -> None: ...
    def warning(self, event: str, **fields: Any) -> None: ...
    def error(self, event: str, **fields: Any) -> None: ...


@dataclass
class Versions:
    """The port, for one version that may vanish."""

    tiers: Mapping[str, Tier]
    gone: bool = False
    staged: list[UUID] = field(default_factory=list)
    swapped: list[tuple[UUID, str]] = field(default_factory=list)
    promoted: list[tuple[UUID, str, int]] = field(default_factory=list)

    async def stage(self, conn: object, blob: UUID, tier: str) -> None:
        self.staged.append(blob)

    async def unstage(self, blob: UUID) -> None:
        self.staged.remove(blob)
        with contextlib.suppress(TierUnavailable):
            for tier in self.tiers.values():
                await tier.delete(blob)

    async def open(self, content: Content, span: ByteSpan = WHOLE) -> AsyncIterator[bytes]:
        for piece in content.pieces:
            reader = await self.tiers[piece.tier].open(piece.blob, ByteSpan(piece.offset, piece.length))
            try:
                async for chunk in reader:
                    yield chunk
            finally:
                await reader.close()

    async def swap_pieces(self, content: Content, blob: UUID, tier: str) -> bool:
        self.swapped.append((blob, tier))
        return not self.gone

    async def promote(self, content: Content, blob: UUID, tier: str, days: int) -> bool:
        self.promoted.append((blob, tier, days))
        return not self.gone


@dataclass
class World:
    warm: Faulty
    cold: Faulty
    clock: Clock
    versions: Versions
    content: Content
    staging: Staging

    def call(
        self, step: Any, state: dict[str, Any] | None = None, settings: Any = None, **given: Any
    ) -> Coroutine[Any, Any, Mapping[str, Any]]:
        item = Item(1, "w", step.__name__, 1, self.content, {}, given)
        services = {"tiers": self.versions.tiers, "placement": PLACEMENT, "staging": self.staging}
        context = Context(item, cast(Subjects, self.versions), services, Log(), state=state or {}, settings=settings)
        return cast(Coroutine[Any, Any, Mapping[str, Any]], step(item, context))


def play(root: Path, body: Callable[[World], Coroutine[Any, Any, None]], at: str = "cold", data: bytes = DATA) -> None:
    async def main() -> None:
        clock = Clock()
        archive = FileTier("cold", root / "cold", archive=True, delay=60.0, day=1000.0, clock=clock)
        await archive.start()
        tiers = {"warm": Faulty(MemoryTier("warm")), "cold": Faulty(archive)}
        blob = uuid4()
        sink = await tiers[at].begin(blob)
        sink.write(data)
        await sink.commit()
        content = Content(
            subject=Subject(1, b"k", 1, 1),
            tenant=1,
            bucket="b",
            key=b"k",
            version_id="v",
            state="ready",
            size=len(data),
            digest=digests.whole(hashlib.sha256(data).digest()),
            declared_type=None,
            storage_class="GLACIER",
            metadata={},
            processing={},
            pieces=(Piece(blob, 0, len(data), at),) if data else (),
        )
        staging = Staging(tiers, threads=2)
        try:
            await body(World(tiers["warm"], tiers["cold"], clock, Versions(tiers), content, staging))
        finally:
            staging.close()
            await archive.close()

    asyncio.run(main())


async def names(tier: Tier) -> set[UUID]:
    return {blob async for blob in tier.names()}


def test_the_workflows_are_complete() -> None:
    registry = Registry.load(["processing.workflows.tier_recall", "processing.workflows.tier_move"], discover=False)
    assert registry.definition("tier.recall").names == (
        "tier_restore_request",
        "tier_await_readable",
        "tier_recall_promote",
    )
    assert registry.definition("tier.move").names == ("tier_move",)


def test_a_recall_from_request_to_copy(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        assert await world.call(tier_restore_request, days=3) == {"blobs": 1, "days": 3}
        with pytest.raises(Park) as parked:
            await world.call(tier_await_readable, days=3)
        assert parked.value.after == 15.0
        assert parked.value.state == {"polls": 1}
        with pytest.raises(Park) as parked:
            await world.call(tier_await_readable, state={"polls": 1}, days=3)
        assert parked.value.state == {"polls": 2}
        world.clock.now += 60
        done = await world.call(tier_await_readable, state={"polls": 2}, days=3)
        assert done["polls"] == 3
        result = await world.call(tier_recall_promote, days=3)
        blob = UUID(result["blob"])
        assert world.versions.promoted == [(blob, "warm", 3)]
        assert world.versions.staged == [blob]
        assert cast(MemoryTier, world.warm.inner).blobs[blob] == DATA
        assert world.content.pieces[0].blob in await names(world.cold)

    play(tmp_path, body)


def test_bytes_at_home_are_recalled_without_waiting(tmp_path: Path) -> None:
    """B207: a restore asked for while the move to the archive is still to come."""

    async def body(world: World) -> None:
        await world.call(tier_restore_request, days=1)
        assert (await world.call(tier_await_readable, days=1))["until"] is None
        await world.call(tier_recall_promote, days=1)
        assert len(world.versions.promoted) == 1

    play(tmp_path, body, at="warm")


def test_polling_ends(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.call(tier_restore_request)
        with pytest.raises(Park):
            await world.call(tier_await_readable, state={"polls": 598})
        with pytest.raises(FatalError) as failed:
            await world.call(tier_await_readable, state={"polls": 599})
        assert failed.value.code == "recall-timeout"
        quick = SimpleNamespace(recall_poll=0.15, recall_window=3.0)
        with pytest.raises(Park) as parked:
            await world.call(tier_await_readable, settings=quick)
        assert parked.value.after == pytest.approx(0.15)

    play(tmp_path, body)


def test_a_request_that_was_lost_is_made_again(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        with pytest.raises(Park):
            await world.call(tier_await_readable)
        assert world.cold.calls["restore"] == 1
        world.clock.now += 60
        assert (await world.call(tier_await_readable))["polls"] == 1

    play(tmp_path, body)


def test_a_version_that_is_not_decided_is_waited_for(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        world.content = replace(world.content, state="scanning")
        with pytest.raises(Park) as parked:
            await world.call(tier_restore_request)
        assert parked.value.after is not None
        for state in ("quarantined", "failed"):
            world.content = replace(world.content, state=state)
            for step in (tier_restore_request, tier_recall_promote):
                with pytest.raises(FatalError) as failed:
                    await world.call(step)
                assert failed.value.code == "superseded"
        assert world.versions.staged == []

    play(tmp_path, body)


def test_a_restore_that_expired_before_promotion(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.call(tier_restore_request, days=1)
        world.clock.now += 60 + 1000
        with pytest.raises(FatalError) as failed:
            await world.call(tier_recall_promote, days=1)
        assert failed.value.code == "recall-expired"
        assert await names(world.warm) == set()

    play(tmp_path, body)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TierUnavailable("x"), DependencyDown("tier:cold")),
        (TierMissing("x"), FatalError("configuration")),
    ],
)
def test_an_archive_that_is_away_or_gone(tmp_path: Path, error: TierUnavailable, expected: Exception) -> None:
    async def body(world: World) -> None:
        world.cold.faults += [Fault("restore", error), Fault("readable", error), Fault("open", error)]
        for step in (tier_restore_request, tier_await_readable, tier_recall_promote):
            with pytest.raises(type(expected)) as raised:
                await world.call(step)
            assert raised.value.args == expected.args
        assert await names(world.warm) == set()

    play(tmp_path, body)


def test_a_version_deleted_meanwhile(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.call(tier_restore_request)
        world.clock.now += 60
        world.versions.gone = True
        with pytest.raises(FatalError) as failed:
            await world.call(tier_recall_promote)
        assert failed.value.code == "superseded"
        assert await names(world.warm) == set()

    play(tmp_path, body)


@pytest.mark.parametrize("kind", ["short", "changed"])
def test_bytes_that_differ_are_never_promoted(tmp_path: Path, kind: str) -> None:
    async def body(world: World) -> None:
        await world.call(tier_restore_request)
        world.clock.now += 60
        path = cast(FileTier, world.cold.inner).path(world.content.pieces[0].blob)
        path.write_bytes(DATA[:-1] if kind == "short" else b"X" + DATA[1:])
        with pytest.raises(FatalError) as failed:
            await world.call(tier_recall_promote)
        assert failed.value.code == "corrupt-source"
        assert world.versions.promoted == []
        assert await names(world.warm) == set()

    play(tmp_path, body)


def test_a_composite_is_verified_part_by_part(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        half = len(DATA) // 2
        parts = [DATA[:half], DATA[half:]]
        world.content = replace(
            world.content,
            digest=digests.tree(hashlib.sha256(part).digest() for part in parts),
            part_sizes=tuple(map(len, parts)),
        )
        assert (await world.call(tier_move))["moved"]
        world.content = replace(world.content, digest="sha256-tree:" + "0" * 64)
        with pytest.raises(FatalError) as failed:
            await world.call(tier_move)
        assert failed.value.code == "corrupt-source"

    play(tmp_path, body, at="warm")


def test_a_move_goes_to_the_tier_of_the_class_and_only_once(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        result = await world.call(tier_move)
        blob = UUID(result["blob"])
        assert world.versions.swapped == [(blob, "cold")]
        assert (await world.cold.stat(blob)).size == len(DATA)
        world.content = replace(world.content, pieces=(Piece(blob, 0, len(DATA), "cold"),))
        assert await world.call(tier_move) == {"moved": False, "tier": "cold"}
        assert len(await names(world.warm)) == 1  # the old blob is the collector's

    play(tmp_path, body, at="warm")


def test_a_lost_swap_leaves_no_blob(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        world.versions.gone = True
        assert await world.call(tier_move) == {"moved": False, "tier": "cold"}
        assert await names(world.cold) == set()

    play(tmp_path, body, at="warm")


@pytest.mark.parametrize("operation", ["begin", "write", "commit"])
def test_a_full_archive_makes_the_move_wait(tmp_path: Path, operation: str) -> None:
    async def body(world: World) -> None:
        world.cold.faults.append(Fault(operation, TierFull("x")))
        with pytest.raises(DependencyDown):
            await world.call(tier_move)
        assert await names(world.cold) == set()
        assert (await world.call(tier_move))["moved"]

    play(tmp_path, body, at="warm")


def test_an_empty_object_is_restored_but_never_moved(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        assert not (await world.call(tier_move))["moved"]
        assert (await world.call(tier_restore_request))["blobs"] == 0
        await world.call(tier_await_readable)
        assert (await world.call(tier_recall_promote))["bytes"] == 0
        assert len(world.versions.promoted) == 1  # its restore is a fact too, with an end

    play(tmp_path, body, at="warm", data=b"")


def test_a_tier_that_is_configured_no_more(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        world.content = replace(world.content, pieces=(Piece(uuid4(), 0, MIB, "lost"),))
        with pytest.raises(FatalError) as failed:
            await world.call(tier_restore_request)
        assert failed.value.code == "configuration"

    play(tmp_path, body)
