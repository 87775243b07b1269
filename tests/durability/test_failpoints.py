"""Every named border, killed at under load, once. The long run is ``python -m tests.durability.killing``."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_tiers import failpoints
from tests import pg
from tests.durability.killing import run_round, running_site, shuffled

ROOT = Path(__file__).parents[2]
SEED = 11


def test_every_border_is_in_the_table_and_at_its_place() -> None:
    calls: set[str] = set()
    for package in ("gateway", "processing", "storage_tiers"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            calls |= set(re.findall(r'failpoints\.point\("([a-z.]+)"\)', text))
            calls |= {f"run.{name}" for name in re.findall(r'hooks\.point\("([a-z]+)"\)', text)}
    assert calls == failpoints.NAMES.keys()


def test_a_border_is_armed_for_one_passage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failpoints.point("upload.staged")  # nothing is armed, and nothing looked up
    monkeypatch.setattr(failpoints, "_folder", tmp_path)
    failpoints.arm(tmp_path, "upload.staged", "raise")
    assert failpoints.reached(tmp_path, "upload.staged") is None
    with pytest.raises(failpoints.FailPoint):
        failpoints.point("upload.staged")
    assert failpoints.reached(tmp_path, "upload.staged") is not None
    failpoints.point("upload.staged")


def test_unlikely_borders_stay_armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_folder", tmp_path)
    failpoints.arm(tmp_path, "run.claimed", "raise", 0.0)
    failpoints.point("run.claimed")
    assert failpoints.reached(tmp_path, "run.claimed") is None


@pytest.mark.parametrize(("name", "action"), [("upload.stagd", "kill"), ("upload.staged", "maim")])
def test_what_there_is_not_cannot_be_armed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, action: str
) -> None:
    with pytest.raises(KeyError):
        failpoints.arm(tmp_path, name, action)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(failpoints, "_folder", tmp_path)
    with pytest.raises(KeyError):
        failpoints.point("upload.stagd")


@pytest.mark.slow
def test_killed_at_every_border(new_database: Callable[[], str]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="k-", dir=pg.session_root()))
    folder.chmod(0o711)
    with running_site(folder, new_database(), "forked", "together") as site:
        assert run_round(site, "killed", shuffled("kill", SEED)) == {}
        assert all(site.kills.values()), site.kills
        assert site.server.wait_log(lambda line: "FAIL POINTS ARE ARMED" in line["event"])
