"""Documentation that fails when it is untrue: reference pages are made from the code, and prose names what exists."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from gateway.cli.main import COMMANDS
from gateway.cli.reference import pages
from gateway.db.gauges import Gauges
from gateway.settings import EngineSection, catalogue
from gateway.telemetry.metrics import TABLE
from processing.model import EngineSettings

ROOT = Path(__file__).parent.parent.parent
PROSE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", sorted(pages()))
def test_reference_page_is_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == pages()[name], "run: make docs"


def test_every_setting_says_what_it_is() -> None:
    for item in catalogue().values():
        assert item.doc.endswith("."), item.key
        assert len(item.doc) > 10, item.key


def test_every_metric_follows_the_naming_rules() -> None:
    """https://prometheus.io/docs/practices/naming/"""
    for row in TABLE:
        assert re.fullmatch(r"sluice_[a-z0-9_]+", row.name)
        assert row.name.endswith("_total") == (row.kind == "counter"), row.name
        assert row.doc.endswith("."), row.name
        if row.kind == "histogram":
            assert row.name.endswith("_seconds"), row.name
    assert len({row.name for row in TABLE}) == len(TABLE)


def test_engine_settings_are_the_engines() -> None:
    theirs = {each.name: each.default for each in fields(EngineSettings)}
    for each in fields(EngineSection):
        assert each.name in theirs
        assert each.default == theirs[each.name], each.name


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.name)
def test_prose_names_what_exists(path: Path) -> None:
    text = path.read_text()
    variables = {item.variable for item in catalogue().values()} | {"SLUICE_CONFIG"}
    files = {f"{item.variable}_FILE" for item in catalogue().values() if item.secret}
    for name in re.findall(r"\bSLUICE_[A-Z0-9_]+", text):
        assert name in variables | files, f"{path.name}: {name}"
    names = {row.name for row in TABLE}
    for name in re.findall(r"\bsluice_[a-z0-9_]+", text):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert base in names or any(each.startswith(name) for each in names), f"{path.name}: {name}"
    for name in re.findall(r"`(?:\.venv/bin/)?sluice ([a-z]+)", text):
        assert name in COMMANDS, f"{path.name}: sluice {name}"


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    for path in PROSE:
        for name in re.findall(r"(?:^|`)make ([a-z]+)\b", path.read_text(), re.M):
            assert name in targets, f"{path.name}: make {name}"


def test_scraped_metrics_are_asked_for() -> None:
    import inspect

    import gateway.http.admin as admin

    source = inspect.getsource(Gauges) + inspect.getsource(admin)
    for row in TABLE:
        if row.kind == "scraped":
            assert f'"{row.name}"' in source, row.name


def test_no_package_address_is_pinned() -> None:
    for name in ("constraints.txt", "constraints-run.txt", "pyproject.toml", "Makefile"):
        assert not re.search(r"--index-url|extra-index|--find-links|://\S*pypi", (ROOT / name).read_text()), name
