"""Byte ranges: what S3 honours, ignores and refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.dates import http_date
from gateway.domain.ranges import content_range, parse_copy_range, parse_range, range_applies
from gateway.s3.errors import S3Error
from storage_tiers.tier import ByteSpan


@pytest.mark.parametrize(
    ("header", "span"),
    [
        ("bytes=0-0", ByteSpan(0, 1)),
        ("bytes=0-9", ByteSpan(0, 10)),
        ("bytes=4-7", ByteSpan(4, 4)),
        ("bytes=4-", ByteSpan(4, 6)),
        ("bytes=4-99", ByteSpan(4, 6)),
        ("bytes=-3", ByteSpan(7, 3)),
        ("bytes=-99", ByteSpan(0, 10)),
        ("bytes= 4 - 7 ", ByteSpan(4, 4)),
        ("Bytes=4-7", ByteSpan(4, 4)),
        (None, None),
        # B101: nonsense, B103: another unit, and several ranges are answered whole.
        ("bytes=abc", None),
        ("bytes=33-10", None),
        ("invalid", None),
        ("bytes=-", None),
        ("bytes=", None),
        ("", None),
        ("items=0-1", None),
        ("bytes=0-1,3-4", None),
        ("bytes=+1-2", None),
        ("bytes=0x1-2", None),
        ("bytes=١-٢", None),
        ("bytes=0-" + "9" * 100, None),
    ],
)
def test_of_ten_bytes(header: str | None, span: ByteSpan | None) -> None:
    assert parse_range(header, 10) == span


@pytest.mark.parametrize(
    ("header", "size"),
    [("bytes=10-", 10), ("bytes=10-20", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=0-0", 0), ("bytes=-1", 0)],
)
def test_unsatisfiable(header: str, size: int) -> None:
    """B099: also the first byte of an empty object."""
    with pytest.raises(S3Error) as caught:
        parse_range(header, size)
    error = caught.value
    assert (error.code, error.status) == ("InvalidRange", 416)
    assert error.headers == {"Content-Range": f"bytes */{size}"}
    assert error.elements == {"RangeRequested": header, "ActualObjectSize": str(size)}


@given(st.integers(1, 1000), st.integers(0, 1200), st.integers(0, 1200))
def test_spans_lie_inside(size: int, first: int, last: int) -> None:
    try:
        span = parse_range(f"bytes={first}-{last}", size)
    except S3Error:
        assert first >= size
        return
    if span is None:
        assert last < first
        return
    assert span.length is not None
    data = bytes(size)
    assert data[span.offset : span.offset + span.length] == data[first : last + 1]
    assert span.length == len(data[first : last + 1])


def test_copy_range() -> None:
    assert parse_copy_range("bytes=0-9", 10) == ByteSpan(0, 10)
    assert parse_copy_range("bytes=3-3", 10) == ByteSpan(3, 1)


def test_copy_range_past_the_source_names_its_size() -> None:
    """B095."""
    for header in ("bytes=0-99", "bytes=0-10", "bytes=10-10"):
        with pytest.raises(S3Error) as caught:
            parse_copy_range(header, 10)
        assert (caught.value.code, caught.value.status) == ("InvalidArgument", 400)
        assert caught.value.message == "Range specified is not valid for source object of size: 10"


@pytest.mark.parametrize(
    "header", ["0-2", "bytes=0", "bytes=0-", "bytes=-2", "bytes=a-b", "bytes=0-2,3-5", "bytes=5-2", "bytes=0-2 ", ""]
)
def test_copy_range_is_strict(header: str) -> None:
    with pytest.raises(S3Error) as caught:
        parse_copy_range(header, 10)
    assert caught.value.code == "InvalidArgument"
    assert caught.value.message.startswith("The x-amz-copy-source-range value must be of the form bytes=first-last")
    assert caught.value.elements["ArgumentValue"] == header


def test_content_range() -> None:
    assert content_range(ByteSpan(4, 4), 10) == "bytes 4-7/10"
    assert content_range(ByteSpan(4), 10) == "bytes 4-9/10"
    assert content_range(None, 10) == "bytes */10"


def test_if_range() -> None:
    when = datetime(2024, 5, 6, 7, 8, 9, 5, UTC)
    assert range_applies(None, "e", when)
    assert range_applies('"e"', "e", when)
    assert range_applies("e", "e", when)
    assert not range_applies('"x"', "e", when)
    assert not range_applies('W/"e"', "e", when)
    assert range_applies(http_date(when), "e", when)
    assert not range_applies(http_date(when + timedelta(seconds=1)), "e", when)
