"""Where storage classes lie, and how configuration becomes tiers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import botocore.session
import pytest

from storage_tiers.file import FileTier
from storage_tiers.open import TierConfig, open_tiers
from storage_tiers.placement import STORAGE_CLASSES, InvalidStorageClass, Placement

PLACEMENT = Placement(
    {"STANDARD": "warm", "STANDARD_IA": "far", "GLACIER": "ice", "GLACIER_IR": "ice"}, frozenset({"ice"})
)


def test_every_class_of_the_model_is_known() -> None:
    model = botocore.session.get_session().get_service_model("s3").shape_for("StorageClass")
    assert set(STORAGE_CLASSES) == set(model.enum)


@pytest.mark.parametrize(
    ("storage_class", "tier", "landing", "archived"),
    [
        ("STANDARD", "warm", "warm", False),
        ("STANDARD_IA", "far", "far", False),
        ("ONEZONE_IA", "warm", "warm", False),
        ("GLACIER", "ice", "warm", True),
        ("DEEP_ARCHIVE", "warm", "warm", True),
        ("GLACIER_IR", "ice", "warm", False),
    ],
)
def test_placement(storage_class: str, tier: str, landing: str, archived: bool) -> None:
    assert PLACEMENT.tier_of(storage_class) == tier
    assert PLACEMENT.landing(storage_class) == landing
    assert PLACEMENT.archived(storage_class) is archived


@pytest.mark.parametrize("name", ["", "standard", "COLD", "GLACIER "])
def test_unknown_classes_are_refused(name: str) -> None:
    for ask in (PLACEMENT.tier_of, PLACEMENT.landing, PLACEMENT.archived):
        with pytest.raises(InvalidStorageClass):
            ask(name)
    with pytest.raises(InvalidStorageClass):
        Placement({"STANDARD": "a", name: "b"})


def test_standard_needs_a_tier_that_is_online() -> None:
    with pytest.raises(ValueError, match="STANDARD"):
        Placement({"GLACIER": "ice"})
    with pytest.raises(ValueError, match="archive"):
        Placement({"STANDARD": "ice"}, frozenset({"ice"}))


def test_tiers_are_opened_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        tiers = await open_tiers(
            {
                "warm": TierConfig("file", path=tmp_path / "warm"),
                "ice": TierConfig("file", path=tmp_path / "ice", archive=True, delay=2.0),
                "far": TierConfig("s3", bucket="b", endpoint="http://127.0.0.1:9", access_key="a", secret_key="s"),
                "deep": TierConfig("s3", bucket="b", storage_class="DEEP_ARCHIVE", archive=True),
                "test": TierConfig("memory"),
            }
        )
        assert {name: tier.archive for name, tier in tiers.items()} == {
            "warm": False,
            "ice": True,
            "far": False,
            "deep": True,
            "test": False,
        }
        assert all(tier.name == name for name, tier in tiers.items())
        assert isinstance(tiers["ice"], FileTier)
        assert tiers["ice"].poll_every == 0.5
        for tier in tiers.values():
            await tier.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "config",
    [
        TierConfig("file"),
        TierConfig("s3"),
        TierConfig("s3", bucket="b", archive=True),
        TierConfig("s3", bucket="b", archive=True, storage_class="STANDARD_IA"),
        TierConfig("tape"),
    ],
)
def test_configurations_that_make_no_sense(config: TierConfig) -> None:
    with pytest.raises(ValueError, match="tier x"):
        asyncio.run(open_tiers({"x": config}))
