"""The order of the work: prepare, then each load in interleaved rounds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from bench import large
from bench.endpoint import OURS, Refused
from bench.loads import Load
from bench.outcome import Outcome, Sample
from bench.site import Site
from bench.stats import NAN
from bench.wrk import WrkFailed

# samples[load name][endpoint name] = one per round
Samples = dict[str, dict[str, list[Sample]]]
Say = Callable[[str], None]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def fits(load: Load, site: Site) -> bool:
    return (site.endpoint.signed or load.plain) and (site.name == OURS or not load.ours_only or site.knobs.everywhere)


def prepare(sites: Sequence[Site], loads: Sequence[Load]) -> list[Site]:
    """Fill the endpoints; returns those that could be filled."""
    needs = {load.needs for load in loads}
    usable = []
    for site in sites:
        say(f"preparing {site.name}")
        try:
            site.buckets()
            site.fill(small="small" in needs, empty="empty" in needs, listed="listed" in needs)
            usable.append(site)
        except (Refused, WrkFailed, OSError, subprocess.SubprocessError) as error:
            say(f"{site.name} is left out: {error!r}")
        os.sync()
    return usable


def measure(sites: Sequence[Site], loads: Sequence[Load], rounds: int) -> Samples:
    """Every load, in each round on all endpoints one after the other; who is first changes from round to round."""
    samples: Samples = {load.name: {} for load in loads}
    for load in loads:
        able = [site for site in sites if fits(load, site)]
        for site in able:
            if load.needs.startswith("large-"):
                _tolerant(lambda site=site, load=load: large.ensure(site, int(load.needs[6:])))  # type: ignore[misc]
        for number in range(rounds):
            turn = number % len(able) if able else 0
            for site in [*able[turn:], *able[:turn]]:
                sample = one(site, load)
                samples[load.name].setdefault(site.name, []).append(sample)
                outcome = sample.outcome
                say(
                    f"{load.name} round {number + 1}/{rounds} {site.name}: {outcome.value:.1f} {load.unit} "
                    f"p50 {outcome.p50:.2f} p99 {outcome.p99:.2f} ms, {outcome.errors} errors {outcome.note}"
                )
    return samples


def one(site: Site, load: Load) -> Sample:
    """One load on one endpoint. What fails is an outcome with an error, so that the others go on."""
    family = site.endpoint.family
    if family is None:
        return Sample(_outcome(site, load), flush=_flush())
    with family.peak() as highest:
        before = family.cpu()
        outcome = _outcome(site, load)
        late = site.settle()
        spent = family.cpu() - before
    site.rates[load.name] = max(site.rates.get(load.name, 0.0), outcome.value)
    whole = outcome.seconds + late
    return Sample(
        outcome,
        cpu=spent / outcome.done if outcome.done else NAN,
        pss=float(highest[0]),
        settled=outcome.value * outcome.seconds / whole if whole and load.more_is_better else NAN,
        flush=_flush(),
    )


def _outcome(site: Site, load: Load) -> Outcome:
    try:
        return load.run(site)
    except (Refused, WrkFailed, OSError, subprocess.SubprocessError) as error:
        return Outcome(NAN, 0, NAN, NAN, 0.0, 1, f"failed: {error!r}"[:300])


def _tolerant(work: Callable[[], None]) -> None:
    try:
        work()
    except (Refused, OSError) as error:
        say(f"not prepared: {error!r}")


def _flush() -> float:
    """What one endpoint leaves unwritten must not cost the next one; seconds."""
    start = time.monotonic()
    os.sync()
    return time.monotonic() - start
