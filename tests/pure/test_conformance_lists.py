"""The conformance lists themselves, and how a run is judged by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.lists import Lists, compare, load, write_passing

LISTS = Lists(frozenset({"a", "b"}), {"out": "PutBucketAcl"}, {"bad": "why"})


def test_the_lists_are_disjoint_and_every_exception_has_a_reason() -> None:
    for transport in ("http", "tls"):
        lists = load(transport)
        assert lists.passing
        assert all(lists.left_out.values())
        assert all(lists.failing.values())


def test_a_good_run() -> None:
    verdict = compare(LISTS, {"a": "passed", "b": "passed", "out": "failed", "bad": "failed"})
    assert verdict.good
    assert (verdict.passed, verdict.judged) == (2, 3)


@pytest.mark.parametrize(
    ("outcomes", "lost", "missing", "unlisted"),
    [
        ({"a": "failed", "b": "passed"}, ("a",), (), ()),
        ({"a": "error", "b": "passed"}, ("a",), (), ()),
        ({"a": "passed"}, (), ("b",), ()),
        ({"a": "passed", "b": "passed", "new": "failed"}, (), (), ("new",)),
    ],
)
def test_bad_runs(
    outcomes: dict[str, str], lost: tuple[str, ...], missing: tuple[str, ...], unlisted: tuple[str, ...]
) -> None:
    verdict = compare(LISTS, outcomes)
    assert (verdict.lost, verdict.missing, verdict.unlisted) == (lost, missing, unlisted)
    assert not verdict.good


def test_what_passes_beyond_the_list_is_named_and_harmless() -> None:
    verdict = compare(LISTS, {"a": "passed", "b": "passed", "new": "passed", "bad": "passed"})
    assert verdict.gained == ("bad", "new")
    assert verdict.good


def test_a_selection_misses_nothing() -> None:
    assert compare(LISTS, {"a": "passed"}, partial=True).good


def test_lists_are_read_as_they_are_written(tmp_path: Path) -> None:
    write_passing(frozenset({"y", "x"}), tmp_path)
    (tmp_path / "left_out.txt").write_text("# head\n\nz GetObjectAcl, PutObjectAcl\n")
    (tmp_path / "failing.txt").write_text("w because\n")
    assert load("http", tmp_path) == Lists(frozenset({"x", "y"}), {"z": "GetObjectAcl, PutObjectAcl"}, {"w": "because"})
    (tmp_path / "failing.txt").write_text("x twice\n")
    with pytest.raises(ValueError, match="in two lists: x"):
        load("http", tmp_path)


def test_a_test_may_fail_over_one_transport(tmp_path: Path) -> None:
    write_passing(frozenset({"x", "y"}), tmp_path)
    (tmp_path / "left_out.txt").write_text("")
    (tmp_path / "failing.txt").write_text("x tls: the client mends it\n")
    assert load("http", tmp_path) == Lists(frozenset({"x", "y"}), {}, {})
    assert load("tls", tmp_path) == Lists(frozenset({"y"}), {}, {"x": "tls: the client mends it"})
