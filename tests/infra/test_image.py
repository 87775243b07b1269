"""The Dockerfile, as far as it can be judged without an engine: what it copies exists, what it runs is not root."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LINES = [
    line
    for line in re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text()).splitlines()
    if line.strip() and not line.startswith("#")
]


def instructions(name: str) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in LINES if line.split()[0] == name]


def test_what_it_copies_exists() -> None:
    copied = [words.split()[:-1] for words in instructions("COPY") if not words.startswith("--from")]
    names = {name for group in copied for name in group}
    assert names and all((ROOT / name).exists() for name in names)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    wanted = packages["find"]["include"] if isinstance(packages, dict) else packages
    assert {name.split(".")[0].rstrip("*") for name in wanted} <= names


def test_the_last_stage_is_not_root_and_checks_its_health() -> None:
    assert len(instructions("FROM")) == 2
    user = instructions("USER")[-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)  # numeric, so that runAsNonRoot can tell
    check = instructions("HEALTHCHECK")[-1]
    assert json.loads(check[check.index("CMD") + 3 :]) == ["sluice", "health"]
    assert json.loads(instructions("ENTRYPOINT")[-1]) == ["sluice"]
    assert json.loads(instructions("CMD")[-1]) == ["serve"]


def test_installation_is_pinned_by_hash() -> None:
    installs = [words for words in instructions("RUN") if "pip install" in words]
    assert "--require-hashes -r constraints-run.txt" in installs[0]
    assert all("--no-deps" in words for words in installs[1:])
