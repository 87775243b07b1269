"""Conditional requests, as tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gateway.domain import conditions, etags
from gateway.domain.conditions import DeleteCondition, Present
from gateway.domain.dates import http_date, parse_date
from gateway.s3.errors import S3Error
from gateway.s3.headers import Headers

WHEN = datetime(2024, 5, 6, 7, 8, 9, 654321, UTC)
NOW, EARLIER, LATER = (http_date(WHEN + timedelta(seconds=s)) for s in (0, -10, 10))
ETAG = "abc"


def read(**fields: str) -> int:
    """The status a read of (ETAG, WHEN) gets."""
    pairs = Headers((name.replace("_", "-"), value) for name, value in fields.items())
    try:
        return 200 if conditions.check_read(conditions.read_condition(pairs), ETAG, WHEN) else 304
    except S3Error as error:
        assert error.code == "PreconditionFailed"
        return error.status


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 200),
        ({"if_match": '"abc"'}, 200),
        ({"if_match": "abc"}, 200),
        ({"if_match": "*"}, 200),
        ({"if_match": '"x", "abc"'}, 200),
        ({"if_match": '"x"'}, 412),
        ({"if_match": 'W/"abc"'}, 412),
        ({"if_match": ""}, 412),
        ({"if_none_match": '"abc"'}, 304),
        ({"if_none_match": 'W/"abc"'}, 304),
        ({"if_none_match": "*"}, 304),
        ({"if_none_match": '"x","y"'}, 200),
        ({"if_modified_since": EARLIER}, 200),
        ({"if_modified_since": NOW}, 304),
        ({"if_modified_since": LATER}, 304),
        ({"if_unmodified_since": EARLIER}, 412),
        ({"if_unmodified_since": NOW}, 200),
        ({"if_modified_since": "garbage"}, 200),
        ({"if_unmodified_since": "garbage"}, 200),
        # B109: the etag condition of each pair wins.
        ({"if_match": '"abc"', "if_unmodified_since": EARLIER}, 200),
        ({"if_match": '"x"', "if_unmodified_since": LATER}, 412),
        ({"if_none_match": '"abc"', "if_modified_since": EARLIER}, 304),
        ({"if_none_match": '"x"', "if_modified_since": LATER}, 200),
        ({"if_match": '"abc"', "if_none_match": '"abc"'}, 304),
        ({"if_match": '"x"', "if_none_match": '"abc"'}, 412),
    ],
)
def test_reads(fields: dict[str, str], status: int) -> None:
    assert read(**fields) == status


def test_a_refusal_names_its_condition() -> None:
    condition = conditions.read_condition(Headers([("If-Unmodified-Since", EARLIER)]))
    with pytest.raises(S3Error) as caught:
        conditions.check_read(condition, ETAG, WHEN)
    assert caught.value.elements["Condition"] == "If-Unmodified-Since"


@pytest.mark.parametrize(
    ("name", "value", "holds"),
    [
        ("if-match", '"abc"', True),
        ("if-match", '"x"', False),
        ("if-none-match", '"abc"', False),
        ("if-none-match", '"x"', True),
        ("if-modified-since", EARLIER, True),
        ("if-modified-since", NOW, False),
        ("if-unmodified-since", NOW, True),
        ("if-unmodified-since", EARLIER, False),
    ],
)
def test_copy_sources_know_no_304(name: str, value: str, holds: bool) -> None:
    fields = Headers([(conditions.COPY_SOURCE + name, value), ("if-match", '"of the target"')])
    condition = conditions.read_condition(fields, conditions.COPY_SOURCE)
    if holds:
        conditions.check_source(condition, ETAG, WHEN)
        return
    with pytest.raises(S3Error) as caught:
        conditions.check_source(condition, ETAG, WHEN)
    assert caught.value.status == 412
    assert caught.value.elements["Condition"].lower() == conditions.COPY_SOURCE + name


def written(etag: str | None, **fields: str) -> str:
    """What a write onto an object of this etag (None: no object) gets."""
    pairs = Headers((name.replace("_", "-"), value) for name, value in fields.items())
    try:
        conditions.check_write(conditions.write_condition(pairs), etag)
    except S3Error as error:
        return error.code
    return "ok"


@pytest.mark.parametrize(
    ("etag", "fields", "outcome"),
    [
        (None, {}, "ok"),
        (None, {"if_none_match": "*"}, "ok"),
        ("abc", {"if_none_match": "*"}, "PreconditionFailed"),  # B105
        ("abc", {"if_none_match": '"abc"'}, "PreconditionFailed"),  # B107
        ("abc", {"if_none_match": "badetag"}, "ok"),
        (None, {"if_none_match": '"abc"'}, "ok"),
        ("abc", {"if_match": '"abc"'}, "ok"),
        ("abc", {"if_match": "*"}, "ok"),
        ("abc", {"if_match": '"stale"'}, "PreconditionFailed"),
        (None, {"if_match": "*"}, "NoSuchKey"),  # B107
        (None, {"if_match": "badetag"}, "NoSuchKey"),
        ("abc", {"if_match": '"abc"', "if_none_match": "*"}, "PreconditionFailed"),
        ("abc", {"if_unmodified_since": NOW}, "NotImplemented"),
        ("abc", {"if_modified_since": LATER}, "ok"),
    ],
)
def test_writes(etag: str | None, fields: dict[str, str], outcome: str) -> None:
    assert written(etag, **fields) == outcome


MARKER = Present("", WHEN, 0)
OBJECT = Present(ETAG, WHEN, 7)


@pytest.mark.parametrize(
    ("condition", "current", "ok"),
    [
        (None, OBJECT, True),
        (DeleteCondition(("abc",)), OBJECT, True),
        (DeleteCondition(("*",)), OBJECT, True),
        (DeleteCondition(("bad",)), OBJECT, False),
        (DeleteCondition(("bad",)), None, True),
        (DeleteCondition(("*",)), MARKER, True),
        (DeleteCondition(("bad",)), MARKER, False),
        (DeleteCondition(modified=WHEN.replace(microsecond=0)), OBJECT, True),
        (DeleteCondition(modified=WHEN + timedelta(seconds=1)), OBJECT, False),
        (DeleteCondition(size=7), OBJECT, True),
        (DeleteCondition(size=8), OBJECT, False),
        (DeleteCondition(size=9999), MARKER, False),
        (DeleteCondition(("abc",), WHEN, 8), OBJECT, False),
        (DeleteCondition(size=8), None, True),
    ],
)
def test_deletes(condition: DeleteCondition | None, current: Present | None, ok: bool) -> None:
    if ok:
        conditions.check_delete(condition, current)
        return
    with pytest.raises(S3Error) as caught:
        conditions.check_delete(condition, current)
    assert caught.value.code == "PreconditionFailed"


def test_delete_headers() -> None:
    fields = Headers([("If-Match", '"e"'), ("x-amz-if-match-last-modified-time", NOW), ("x-amz-if-match-size", "12")])
    assert conditions.delete_condition(fields) == DeleteCondition(("e",), WHEN.replace(microsecond=0), 12)
    assert conditions.delete_condition(Headers()) is None
    for name in ("x-amz-if-match-last-modified-time", "x-amz-if-match-size"):
        with pytest.raises(S3Error) as caught:
            conditions.delete_condition(Headers([(name, "x")]))
        assert caught.value.code == "InvalidArgument"


@pytest.mark.parametrize(
    ("header", "strong", "weak"),
    [
        ("*", ("*",), ("*",)),
        ('"a"', ("a",), ("a",)),
        ('W/"a", "b" ,c', ("b", "c"), ("a", "b", "c")),
        ('"a,b", ,"c"', ("a,b", "c"), ("a,b", "c")),
        ('"open', (), ()),
        (",,", (), ()),
        ("", (), ()),
    ],
)
def test_etag_lists(header: str, strong: tuple[str, ...], weak: tuple[str, ...]) -> None:
    assert etags.parse_list(header, weak=False) == strong
    assert etags.parse_list(header, weak=True) == weak


def test_multipart_etag() -> None:
    import hashlib

    digests = [hashlib.md5(letter * 5, usedforsecurity=False).digest() for letter in (b"A", b"B")]
    joined = hashlib.md5(b"".join(digests), usedforsecurity=False).hexdigest()
    assert etags.multipart(digests) == f"{joined}-2"
    assert etags.quote("x") == '"x"'
    assert etags.unquote(' "x" ') == etags.unquote("x") == "x"


@pytest.mark.parametrize(
    "text",
    [
        "Mon, 06 May 2024 07:08:09 GMT",
        "Monday, 06-May-24 07:08:09 GMT",
        "Mon May  6 07:08:09 2024",
        "2024-05-06T07:08:09Z",
        "2024-05-06T07:08:09.000Z",
        "Mon, 06 May 2024 09:08:09 +0200",
    ],
)
def test_dates(text: str) -> None:
    assert parse_date(text) == WHEN.replace(microsecond=0)
    for wrong in ("", "yesterday", "Mon, 99 May 2024 07:08:09 GMT", "0"):
        assert parse_date(wrong) is None
