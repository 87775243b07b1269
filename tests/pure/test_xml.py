"""The XML writer escapes as S3 does; the reader keeps text exactly and refuses what no request needs."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import unquote, unquote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.s3 import xml
from gateway.s3.errors import S3Error

# What XML 1.0 can hold (2.2), apart from surrogates, which no key has.
LEGAL = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=[chr(c) for c in range(32) if c not in (9, 10, 13)])
).filter(lambda text: not set(text) & {"\ufffe", "\uffff"})


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain/key", "plain/key"),
        ("R&D <x> \"q\" 'a'", "R&amp;D &lt;x&gt; &quot;q&quot; 'a'"),  # B063
        ("]]>", "]]&gt;"),
        ("a\rb\r\nc", "a&#13;b&#13;\nc"),
        ("tab\tkept", "tab\tkept"),
        ("\x00\x01\x1f", "&#x0;&#x1;&#x1f;"),
        ("\uffff", "&#xffff;"),
        ("é😀", "é😀"),
    ],
)
def test_escape(text: str, written: str) -> None:
    assert xml.escape(text) == written


@given(LEGAL)
def test_what_is_written_reads_back_exactly(text: str) -> None:
    root = ET.fromstring(xml.document("Error", (("Message", text),), namespace=None))
    assert (root.findtext("Message") or "") == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_url_keys_decode_by_both_kinds_of_decoder(text: str) -> None:
    encoded = xml.key_url(text.encode())
    assert unquote(encoded) == unquote_plus(encoded) == text
    assert xml.escape(encoded) == encoded


def test_url_keys_keep_slashes_and_use_percent_twenty() -> None:
    assert xml.key_url("quux ab/é+50%(1)*'".encode()) == "quux%20ab/%C3%A9%2B50%25%281%29%2A%27"


def test_document() -> None:
    moment = datetime(2009, 10, 12, 19, 50, 30, 987654, timezone(timedelta(hours=2)))
    tree = (
        ("Key", b" a&b "),
        ("Size", 3),
        ("IsTruncated", False),
        ("Gone", None),
        ("LastModified", moment),
        ("Owner", (("ID", "x"),)),
        ("Empty", ""),
    )
    assert xml.document("Root", tree) == (
        b'<?xml version="1.0" encoding="UTF-8"?>\n<Root xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        b"<Key> a&amp;b </Key><Size>3</Size><IsTruncated>false</IsTruncated>"
        b"<LastModified>2009-10-12T17:50:30.000Z</LastModified><Owner><ID>x</ID></Owner><Empty></Empty></Root>"
    )


def test_timestamp_is_padded() -> None:
    assert xml.timestamp(datetime(2009, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2009-01-02T03:04:05.000Z"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not xml",
        b"<Delete>",
        b"<Delete></Other>",
        b"<Other/>",
        b"<Delete/><Delete/>",
        b"<Delete>&nosuch;</Delete>",
        b"<!DOCTYPE Delete><Delete/>",
        b'<!DOCTYPE Delete [<!ENTITY a "b">]><Delete>&a;</Delete>',
        '<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE Delete><Delete/>'.encode("utf-16"),
        b"<Delete>\xff</Delete>",
        b"<Delete>\x01</Delete>",
        b"<Delete>" + b"<a>" * 20 + b"</a>" * 20 + b"</Delete>",
        b"<a>" * 300_000,
    ],
)
def test_read_refuses(body: bytes) -> None:
    with pytest.raises(S3Error) as caught:
        xml.read(body, "Delete")
    assert caught.value.code == "MalformedXML"


def test_read_refuses_a_deep_document_without_falling_over() -> None:
    deep = b"<Delete>" + b"<a>" * 100_000 + b"</a>" * 100_000 + b"</Delete>"
    with pytest.raises(S3Error):
        xml.read(deep, "Delete")


def test_read_is_limited_in_size() -> None:
    body = b"<Delete>" + b" " * 100 + b"</Delete>"
    assert xml.local(xml.read(body, "Delete", len(body))) == "Delete"
    with pytest.raises(S3Error):
        xml.read(body, "Delete", len(body) - 1)


@pytest.mark.parametrize(
    "body",
    [
        b'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>',
        b'<s3:Delete xmlns:s3="http://s3.amazonaws.com/doc/2006-03-01/"/>',
        b'\xef\xbb\xbf<?xml version="1.0" encoding="UTF-8"?>\n<Delete/>\n',
        b"<!-- hello --><Delete/>",
    ],
)
def test_read_takes_any_namespace_and_a_byte_order_mark(body: bytes) -> None:
    assert xml.local(xml.read(body, "Delete")) == "Delete"


def test_leaf_is_exact() -> None:
    root = xml.read(b"<Delete>  a<![CDATA[<b>]]><!-- c -->\r\n&#13; </Delete>", "Delete")
    assert xml.leaf(root) == "  a<b>\n\r "
