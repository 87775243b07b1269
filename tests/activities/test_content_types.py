"""Which types contradict each other, and which extractor a content gets. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processing.content_types import CODINGS, EXTENSIONS, UNRECOGNIZED, agree, contradiction, extension, families
from processing.text_kinds import kind_of
from tests.activities.documents import DOCM, DOCX, XLSX

AGREEING = [
    ("text/html", "text/plain", "txt"),
    ("text/x-python", "text/plain", "py"),
    ("text/csv", "application/vnd.ms-excel", "csv"),
    ("text/xml", "image/svg+xml", "svg"),
    ("application/json", "text/plain", "json"),
    ("application/zip", DOCX, "docx"),
    (DOCX, "application/zip", "zip"),
    (DOCX, "application/octet-stream", "docx"),
    ("application/java-archive", "application/zip", "jar"),
    ("application/CDFV2", "application/msword", "doc"),
    ("application/vnd.ms-office", "application/vnd.ms-excel", "xls"),
    ("text/rtf", "application/msword", "doc"),
    ("application/gzip", "text/html", "html"),
    ("application/gzip", "application/x-tar", "gz"),
    ("application/x-xz", "application/x-tar", "xz"),
    ("audio/x-m4a", "audio/mp4", "m4a"),
    ("video/mp4", "video/quicktime", "mov"),
    ("application/pdf", None, "unknown-extension"),
    ("application/pdf", None, ""),
    ("text/plain", "image/png", "png"),  # nothing recognized
    ("application/octet-stream", "image/png", "png"),
    ("application/x-empty", "image/png", "png"),
    ("application/x-something-new", "image/png", "png"),
    ("application/pdf", "binary/octet-stream", "pdf"),
    (None, "image/png", "png"),
]
CONTRADICTING = [
    ("application/x-dosexec", "application/pdf", "pdf", "extension"),
    ("application/x-dosexec", "application/pdf", "", "declared"),
    ("application/x-executable", "image/png", "", "declared"),
    ("application/pdf", "image/png", "pdf", "declared"),
    ("image/png", "image/jpeg", "jpg", "extension"),
    ("text/html", "application/pdf", "pdf", "extension"),
    ("text/html", "image/png", "", "declared"),
    (DOCX, XLSX, "xlsx", "extension"),
    (DOCM, DOCX, "docx", "extension"),
    ("application/java-archive", DOCX, "docx", "extension"),
    ("application/x-dosexec", "text/plain", "", "declared"),
    ("application/pdf", "text/html", "html", "extension"),
]


@pytest.mark.parametrize("sniffed, declared, name", AGREEING)
def test_no_contradiction(sniffed: str | None, declared: str | None, name: str) -> None:
    assert contradiction(sniffed, declared, name) is None


@pytest.mark.parametrize("sniffed, declared, name, against", CONTRADICTING)
def test_contradiction(sniffed: str, declared: str, name: str, against: str) -> None:
    assert contradiction(sniffed, declared, name) == against


@pytest.mark.parametrize("name", sorted(EXTENSIONS))
def test_every_listed_extension_says_something_and_agrees_with_itself(name: str) -> None:
    assert agree(EXTENSIONS[name], EXTENSIONS[name])
    assert families(EXTENSIONS[name]) or EXTENSIONS[name] in CODINGS


@given(
    st.sampled_from(sorted(EXTENSIONS.values())), st.sampled_from([*sorted(EXTENSIONS.values()), *sorted(UNRECOGNIZED)])
)
def test_agreement_is_symmetric_among_what_is_recognized(one: str, other: str) -> None:
    if not {one, other} & (UNRECOGNIZED | CODINGS):
        assert agree(one, other) == agree(other, one)


@given(st.binary(max_size=60))
def test_any_key_has_an_extension_without_dots_or_slashes(key: bytes) -> None:
    assert not set(extension(key)) & {".", "/"}


@pytest.mark.parametrize(
    "key, name",
    [
        ("a.txt", "txt"),
        ("a.exe\n", "exe"),
        ("a.exe::$DATA", "exe"),
        ("a.e\u200bxe", "exe"),
        ("a.tar.gz", "gz"),
        ("a", ""),
        ("a.b/c", ""),
        ("A.TXT", "txt"),
        ("a.", ""),
        ("a.exe..", "exe"),
        ("", ""),
        ("...", ""),
    ],
)
def test_extension(key: str, name: str) -> None:
    assert extension(key.encode()) == name


@pytest.mark.parametrize(
    "sniffed, declared, key, kind",
    [
        ("text/plain", None, "a", "text"),
        ("text/plain", "application/json", "a", "json"),
        ("text/plain", "application/json", "a.txt", "text"),
        ("text/plain", None, "a.json", "json"),
        ("text/plain", None, "a.csv", "csv"),
        ("text/csv", None, "a", "csv"),
        ("text/csv", None, "letter.txt", "text"),
        ("text/csv", None, "data.json", "json"),
        ("text/html", "application/json", "a.json", "html"),
        ("application/json", None, "a", "json"),
        ("text/x-python", None, "a.py", "text"),
        ("image/svg+xml", None, "a.svg", "text"),
        ("application/pdf", "text/plain", "a.txt", None),
        ("application/octet-stream", "text/plain", "a.txt", None),
        ("application/x-dosexec", "text/html", "a.html", None),
        (None, "text/plain", "a.txt", None),
    ],
)
def test_kind(sniffed: str | None, declared: str | None, key: str, kind: str | None) -> None:
    assert kind_of(sniffed, declared, key.encode()) == kind
