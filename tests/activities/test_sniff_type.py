"""sniff_type and extension_policy on documents of all kinds, with the real libmagic in a real child."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from processing.activities.extension_policy import extension_policy
from processing.activities.settings import ActivitySettings
from processing.activities.sniff_type import HEAD, sniff_type
from processing.failures import Block, DependencyDown, FatalError, Retry
from processing.sandbox import Sandbox, SandboxError
from storage_tiers.tier import BlobCorrupt, TierUnavailable
from tests.activities import documents
from tests.activities.documents import DOCM, DOCX, PPTX, XLSM, XLSX, office
from tests.activities.kit import FakeSubjects, call_of


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def sandbox(loop: asyncio.Runner) -> Iterator[Sandbox]:
    pool = Sandbox()
    yield pool
    loop.run(pool.close())


Sniff = Any


@pytest.fixture
def sniff(loop: asyncio.Runner, sandbox: Sandbox) -> Sniff:
    def call(data: bytes, key: str = "file", declared: str | None = None) -> Mapping[str, Any]:
        item, ctx = call_of(data, key, declared, services={"sandbox": sandbox})
        return loop.run(sniff_type(item, ctx))

    return call


@pytest.mark.parametrize(
    "data, sniffed",
    [
        (documents.pdf(), "application/pdf"),
        (b"\x89PNG\r\n\x1a\n" + bytes.fromhex("0000000d49484452000000010000000108060000001f15c489"), "image/png"),
        (b"<!DOCTYPE html><html><body>hi</body></html>", "text/html"),
        (b'{"a": [1, 2, 3]}', "application/json"),
        (b"just words\n", "text/plain"),
        (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\x3e\x00\x01" + bytes(100), "application/x-executable"),
    ],
)
def test_common_types(sniff: Sniff, data: bytes, sniffed: str) -> None:
    result = sniff(data, declared="Image/JPEG; charset=x")
    assert result["sniffed_type"] == sniffed
    assert result["metadata"] == {"sniffed_type": sniffed, "declared_type": "image/jpeg"}


def test_empty_content_needs_no_child() -> None:
    item, ctx = call_of(b"")
    assert asyncio.run(sniff_type(item, ctx))["sniffed_type"] == "application/x-empty"


def test_unrecognized_content(sniff: Sniff) -> None:
    assert sniff(b"\x00\x01\x02\x03" * 3000)["sniffed_type"] == "application/octet-stream"


def test_only_the_beginning_is_read(loop: asyncio.Runner, sandbox: Sandbox) -> None:
    data = documents.pdf() + bytes(1 << 20)
    subjects = FakeSubjects(data)
    item, ctx = call_of(data, subjects=subjects, services={"sandbox": sandbox})
    loop.run(sniff_type(item, ctx))
    assert [(span.offset, span.length) for span in subjects.opened] == [(0, HEAD)]


@pytest.mark.parametrize("mime", [DOCX, XLSX, PPTX, DOCM, XLSM])
@pytest.mark.parametrize("order", ["first", "last", "none"])
@pytest.mark.parametrize("junk", [0, 40])
def test_b179_b181_office_documents_in_any_order(sniff: Sniff, mime: str, order: str, junk: int) -> None:
    result = sniff(office(mime, order, junk))
    assert result["sniffed_type"] == mime
    assert result["metadata"].get("macros", False) is ("macro" in mime.lower())


def test_office_document_with_a_large_directory(sniff: Sniff) -> None:
    assert sniff(office(DOCX, "last", junk=3000))["sniffed_type"] == DOCX


def test_office_document_behind_a_prefix(sniff: Sniff) -> None:
    data = b"PK\3\4" + bytes(500) + office(DOCX, "last")
    assert sniff(data)["sniffed_type"] == DOCX


def test_opendocument_with_its_mimetype_anywhere(sniff: Sniff) -> None:
    for first in (True, False):
        assert sniff(documents.opendocument(first))["sniffed_type"] == "application/vnd.oasis.opendocument.text"


@pytest.mark.parametrize("data", [documents.zipped([("a.txt", "a")]), documents.zipped([])])
def test_plain_zips(sniff: Sniff, data: bytes) -> None:
    assert sniff(data)["sniffed_type"] == "application/zip"


def test_zip_cut_short(sniff: Sniff) -> None:
    data = office(DOCX, "last", junk=40)
    assert sniff(data[: len(data) // 2])["sniffed_type"] == "application/zip"


@pytest.mark.parametrize("seed", range(20))
def test_broken_directories_do_no_harm(sniff: Sniff, seed: int) -> None:
    import random

    chance = random.Random(seed)
    data = bytearray(office(DOCM, "last", junk=3))
    for _ in range(10):
        data[chance.randrange(4, len(data))] = chance.randrange(256)
    assert sniff(bytes(data))["sniffed_type"].startswith("application/")


def test_b183_entities_are_not_unfolded(sniff: Sniff) -> None:
    begun = time.monotonic()
    result = sniff(documents.entity_tower(), "upload.bin")
    assert result["sniffed_type"] == "application/zip"
    assert result["metadata"]["suspicious"] == "doctype"
    assert time.monotonic() - begun < 5  # a second on an idle machine


def test_a_member_that_unpacks_without_end_is_cut(sniff: Sniff) -> None:
    assert sniff(documents.zip_bomb_part())["sniffed_type"] == DOCX


class Broken:
    def __init__(self, code: str) -> None:
        self.code = code

    async def call(self, *args: Any, **named: Any) -> Any:
        raise SandboxError(self.code)


def test_content_that_kills_its_parser_is_unrecognized_in_the_end() -> None:
    async def main() -> None:
        for attempt in (1, 2):
            item, ctx = call_of(b"x", services={"sandbox": Broken("killed")}, attempt=attempt)
            with pytest.raises(Retry):
                await sniff_type(item, ctx)
        item, ctx = call_of(b"x", services={"sandbox": Broken("killed")}, attempt=3)
        result = await sniff_type(item, ctx)
        assert result["metadata"]["sniff"] == "failed"
        assert result["sniffed_type"] == "application/octet-stream"
        item, ctx = call_of(b"x", services={"sandbox": Broken("start")}, attempt=3)
        with pytest.raises(SandboxError):
            await sniff_type(item, ctx)

    asyncio.run(main())


@pytest.mark.parametrize(
    "error, raised, word",
    [(TierUnavailable("x"), DependencyDown, "tier"), (BlobCorrupt("x"), FatalError, "corrupt-source")],
)
def test_errors_of_the_tier(sandbox: Sandbox, error: Exception, raised: type[Exception], word: str) -> None:
    subjects = FakeSubjects(b"x")
    subjects.fails = error
    item, ctx = call_of(b"x", subjects=subjects, services={"sandbox": sandbox})
    with pytest.raises(raised, match=word):
        asyncio.run(sniff_type(item, ctx))


def policy(data: bytes, key: str, declared: str | None, sniffed: str, settings: ActivitySettings) -> Mapping[str, Any]:
    item, ctx = call_of(data, key, declared, settings=settings, earlier={"sniff_type": {"sniffed_type": sniffed}})
    return asyncio.run(extension_policy(item, ctx))


def test_executable_named_pdf(sniff: Sniff) -> None:
    data = documents.executable()
    sniffed = sniff(data, "report.pdf", "application/pdf")["sniffed_type"]
    result = policy(data, "report.pdf", "application/pdf", sniffed, ActivitySettings())
    assert result["metadata"] == {"type_mismatch": "extension"}
    with pytest.raises(Block) as block:
        policy(data, "report.pdf", "application/pdf", sniffed, ActivitySettings(enforce_type_match=True))
    assert block.value.reason == "type-mismatch"
    assert block.value.detail == f"{sniffed} as .pdf"


@pytest.mark.parametrize("key", ["a.exe", "dir.txt/A.EXE", "a.exe.", "a.exe . ", "a.ＥＸＥ", ".exe"])
def test_blocked_extensions(key: str) -> None:
    for listed in (("builtin",), ("exe",), (".EXE", "iso")):
        with pytest.raises(Block, match="blocked-extension"):
            policy(b"", key, None, "application/x-empty", ActivitySettings(blocked_extensions=listed))
    policy(b"", key, None, "application/x-empty", ActivitySettings())
    policy(b"", key, None, "application/x-empty", ActivitySettings(blocked_extensions=("iso",)))
    policy(b"", "exe", None, "application/x-empty", ActivitySettings(blocked_extensions=("builtin",)))


def test_settings_refuse_words_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="unscannable"):
        ActivitySettings(unscannable="perhaps")
    with pytest.raises(ValueError, match="unreachable"):
        ActivitySettings(unreachable="perhaps")
    assert ActivitySettings().policy(scanner=True) != ActivitySettings().policy(scanner=False)
    builtin = ActivitySettings(blocked_extensions=("builtin",))
    assert builtin.policy(True) != ActivitySettings().policy(True)
    assert ActivitySettings(extract_seconds=1).policy(True) == ActivitySettings().policy(True)
