"""Statistics, targets and the report."""

from __future__ import annotations

import math

import pytest

from bench import loads, report, stats, targets
from bench.outcome import Outcome, Sample, of_times

NAN = stats.NAN


def sample(value: float, *, p50: float = 1.0, cpu: float = 1e-4, settled: float = NAN, errors: int = 0) -> Sample:
    return Sample(Outcome(value, 10, p50, 2.0, 1.0, errors), cpu=cpu, pss=float(1 << 20), settled=settled)


def test_the_median_leaves_out_what_was_not_measured() -> None:
    assert stats.middle([1.0, NAN, 3.0]) == 2.0
    assert math.isnan(stats.middle([NAN]))
    assert math.isnan(stats.middle([]))


@pytest.mark.parametrize(("share", "value"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.0, 1.0)])
def test_percentiles_are_values_that_occurred(share: float, value: float) -> None:
    assert stats.percentile([float(number) for number in range(100, 0, -1)], share) == value


def test_percentile_of_nothing() -> None:
    assert math.isnan(stats.percentile([], 0.5))


def test_ratios_are_of_the_same_round() -> None:
    assert stats.ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert math.isnan(stats.ratios([2.0], [0.0])[0])
    assert math.isnan(stats.ratios([2.0], [NAN])[0])


def test_the_best_is_chosen_round_by_round() -> None:
    assert stats.best([[1.0, 5.0], [2.0, NAN]]) == [2.0, 5.0]
    assert stats.best([[1.0], [2.0]], more_is_better=False) == [1.0]
    assert stats.best([]) == []


def test_times_become_milliseconds() -> None:
    found = of_times(7.0, [0.1, 0.3, 0.2], 1.0)
    assert (found.p50, found.p99, found.done) == (200.0, 300.0, 3)


def test_a_target_is_a_median_of_ratios_to_the_best_peer() -> None:
    samples = {
        "sluice": [sample(200.0, settled=90.0), sample(400.0, settled=90.0)],
        "minio": [sample(10.0), sample(100.0)],
        "versitygw": [sample(100.0), sample(100.0)],
    }
    target = targets.Target("put-new-32", "value", 2.5, ("minio", "versitygw"))
    assert targets.reached(target, samples) == 3.0
    assert targets.verdict(target, 3.0) == "reached"
    assert targets.verdict(target, 2.4) == "within 5 %"
    assert targets.verdict(target, 2.0) == "MISSED"
    settled = targets.Target("put-new-32", "settled", 0.8, ("versitygw",))
    assert targets.reached(settled, samples) == 0.9


def test_a_target_without_peers_is_absolute() -> None:
    target = targets.Target("copy-large", "value", 50.0, at_least=False)
    assert targets.reached(target, {"sluice": [sample(60.0), sample(40.0), sample(45.0)]}) == 45.0
    assert targets.verdict(target, 45.0) == "reached"
    assert targets.verdict(target, 60.0) == "MISSED"
    assert targets.verdict(target, targets.reached(target, {})) == "not measured"


def test_every_target_names_a_load() -> None:
    assert {target.load for target in targets.TARGETS} <= set(loads.BY_NAME)


def test_loads_are_chosen_by_name_and_beginning() -> None:
    assert [load.name for load in loads.chosen(["put-large", "get-32"])] == ["get-32", "put-large-1", "put-large-4"]
    assert [load.name for load in loads.chosen(["put-large-1"])] == ["put-large-1"]
    assert len(loads.chosen(list(loads.QUICK))) == len(loads.QUICK)
    with pytest.raises(ValueError, match="no load nothing"):
        loads.chosen(["nothing"])


def test_the_report_shows_ratios_and_errors() -> None:
    samples = {"put-new-32": {"sluice": [sample(300.0)], "minio": [sample(100.0, errors=3)]}}
    text = report.document(samples, {"sluice": "fsync=on"}, "1 round")
    row = next(line for line in text.splitlines() if line.startswith("| minio"))
    assert "| 3.00 |" in row
    assert "| 3 |" in row
    assert "| sluice | fsync=on |" in text
    assert report.plain(samples)["put-new-32"]["minio"][0]["cpu"] == 1e-4


@pytest.mark.parametrize(("seconds", "text"), [(NAN, "–"), (2.5, "2.50 s"), (0.000123, "123 µs")])
def test_cpu_time_has_a_unit_that_fits(seconds: float, text: str) -> None:
    assert report.took(seconds) == text
