"""Whether what stays is told from what grows."""

from __future__ import annotations

import random

import pytest

from bench.flatness import Limit, judge, slope

AT = [float(minute) for minute in range(30)]


def test_noise_around_a_level_is_flat() -> None:
    chance = random.Random(1)
    values = [300 + chance.uniform(-20, 20) for _ in AT]
    assert judge(AT, values, Limit(0.05, 10)).flat


def test_a_slow_leak_under_noise_is_seen() -> None:
    chance = random.Random(2)
    values = [300 + 2 * minute + chance.uniform(-20, 20) for minute in AT]
    verdict = judge(AT, values, Limit(0.05, 10))
    assert not verdict.flat
    assert verdict.growth == pytest.approx(58, abs=30)


def test_an_outlier_turns_nothing() -> None:
    values = [100.0] * 28 + [9000.0, 100.0]
    assert slope(AT, values) == 0.0
    assert judge(AT, values, Limit(0.05, 1)).flat


def test_what_sinks_is_flat_and_so_is_nothing() -> None:
    assert judge(AT, [500 - minute for minute in AT], Limit(0.01, 1)).flat
    assert judge([], [], Limit(0.1, 1)).flat
    assert judge([1.0], [5.0], Limit(0.1, 1)).flat
