"""The result as Markdown, and as JSON for those who want to look closer."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.endpoint import OURS
from bench.loads import BY_NAME
from bench.outcome import Sample
from bench.rounds import Samples
from bench.stats import middle, ratios
from bench.targets import TARGETS, number, reached, verdict

MB = 1 << 20


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shown(value: float, digits: int = 2) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.{0 if abs(value) >= 100 else digits}f}"


def took(seconds: float) -> str:
    """CPU time in a unit that fits."""
    if math.isnan(seconds):
        return "–"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e6:,.0f} µs"


def brief(note: str) -> str:
    """A note as it fits in a cell."""
    return note.replace("|", "/").replace("\n", " ").strip()[:120]


def load_table(name: str, samples: Mapping[str, Sequence[Sample]]) -> str:
    load = BY_NAME[name]
    mine = [number(sample, "value") for sample in samples.get(OURS, ())]
    rows = []
    for endpoint, found in samples.items():

        def mid(field: str, found: Sequence[Sample] = found) -> float:
            return middle([number(sample, field) for sample in found])

        values = [number(sample, "value") for sample in found]
        known = [value for value in values if not math.isnan(value)]
        spread = f"{shown(min(known))}–{shown(max(known))}" if known else "–"
        notes = "; ".join(sorted({brief(sample.outcome.note) for sample in found if sample.outcome.note}))
        peak = max((sample.pss for sample in found if not math.isnan(sample.pss)), default=float("nan"))
        rows.append(
            [
                endpoint,
                shown(mid("value")),
                spread,
                shown(middle(ratios(mine, values))) if endpoint != OURS else "1",
                shown(mid("p50")),
                shown(mid("p99")),
                took(mid("cpu")),
                shown(peak / MB),
                shown(mid("settled")),
                shown(mid("flush")),
                str(sum(sample.outcome.errors for sample in found)),
                notes or "–",
            ]
        )
    head = [
        "endpoint", f"median {load.unit}", "lowest–highest", "ours / it", "p50 ms", "p99 ms", "CPU per request",
        "peak PSS MiB", f"settled {load.unit}", "flush s", "errors", "notes",
    ]  # fmt: skip
    return f"### {name}: {load.what}\n\n{table(head, rows)}\n"


def target_table(samples: Samples) -> str:
    rows = []
    for target in TARGETS:
        if target.load not in samples:
            continue
        value = reached(target, samples[target.load])
        against = " / best of " + ", ".join(target.peers) if target.peers else ""
        sign = "≥" if target.at_least else "≤"
        limit = f"{sign} {target.limit:g}"
        rows.append([target.load, f"{target.field}{against}", limit, shown(value), verdict(target, value)])
    return table(["load", "what", "target", "median of rounds", "verdict"], rows)


def machine() -> str:
    """The machine, in words."""
    facts = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    model = next((value.strip() for name, _, value in facts if name.strip() == "model name"), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return (
        f"{len(os.sched_getaffinity(0))} cores ({model}), {memory:.0f} GiB, Linux {platform.release()}, Python "
        f"{platform.python_version()}, revision {revision.stdout.strip() or 'unknown'}; load average at the end {load}"
    )


def document(samples: Samples, durability: Mapping[str, str], settings: str) -> str:
    parts = [
        f"Machine: {machine()}",
        f"Command: `python -m bench {shlex.join(sys.argv[1:])}`",
        f"Settings: {settings}",
        "## Durability\n",
        table(["endpoint", "ran with"], [[name, text] for name, text in durability.items()]),
        "## Targets\n",
        target_table(samples),
        "## Loads\n",
        *(load_table(name, found) for name, found in samples.items() if found),
    ]
    return "\n\n".join(parts).replace("\n\n\n", "\n\n")


def plain(samples: Samples) -> dict[str, dict[str, list[dict[str, object]]]]:
    """For json.dumps."""
    return {
        load: {name: [dataclasses.asdict(sample) for sample in found] for name, found in each.items()}
        for load, each in samples.items()
    }
