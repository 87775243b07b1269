"""extract_text and embed_text, with real children; and the extractors as plain functions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processing.activities.embed_text import embed_text
from processing.activities.extract_text import extract_text
from processing.activities.settings import ActivitySettings
from processing.failures import DependencyDown, FatalError, Retry
from processing.parsers.encoding import decode
from processing.parsers.passages import MOST, Block, cut, model
from processing.parsers.text_model import EXTRACTORS
from processing.parsers.text_model import run as extract
from processing.ports import Content
from processing.sandbox import Sandbox, SandboxLimits
from tests.activities.kit import FakePlacement, FakeSubjects, FakeTier, call_of

SECRET = "the-secret-of-the-content"


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def sandbox(loop: asyncio.Runner) -> Iterator[Sandbox]:
    pool = Sandbox(SandboxLimits(cpu=2))
    yield pool
    loop.run(pool.close())


class Bench:
    """Runs the activity over one content and keeps what it wrote."""

    def __init__(self, loop: asyncio.Runner, sandbox: Sandbox) -> None:
        self.loop = loop
        self.tier = FakeTier()
        self.services = {"sandbox": sandbox, "placement": FakePlacement(), "tiers": {"warm": self.tier}}

    def __call__(
        self, data: bytes, sniffed: str, key: str = "file", declared: str | None = None, **more: Any
    ) -> Mapping[str, Any]:
        self.subjects = more.pop("subjects", None) or FakeSubjects(data)
        item, ctx = call_of(
            data,
            key,
            declared,
            subjects=self.subjects,
            services=self.services,
            earlier={"sniff_type": {"sniffed_type": sniffed}},
            **more,
        )
        return self.loop.run(extract_text(item, ctx))

    @property
    def model(self) -> Any:
        (kind, blob, tier, size) = self.subjects.sidecars[-1]
        assert (kind, tier) == ("text", "warm")
        assert self.subjects.staged[-1] == (blob, "warm"), "the row comes before the bytes"
        assert len(self.tier.blobs[blob]) == size
        return json.loads(self.tier.blobs[blob])


@pytest.fixture
def bench(loop: asyncio.Runner, sandbox: Sandbox) -> Bench:
    return Bench(loop, sandbox)


@pytest.mark.parametrize(
    "data, sniffed, key, kind, text",
    [
        (f"Hello {SECRET}\n\nSecond".encode(), "text/plain", "a.txt", "text", f"Hello {SECRET}\nSecond"),
        (b'{"a": {"b": [1, "%s"]}}' % SECRET.encode(), "application/json", "a", "json", f"a.b: 1\na.b: {SECRET}"),
        (f"name;age\n{SECRET};7\n".encode(), "text/csv", "a.csv", "csv", f"name | age\nname: {SECRET}\nage: 7"),
        (
            f"<title>T</title><script>no</script><p>{SECRET}<p>b&amp;c".encode(),
            "text/html",
            "a",
            "html",
            f"{SECRET}\nb&c",
        ),
    ],
)
def test_each_kind(bench: Bench, data: bytes, sniffed: str, key: str, kind: str, text: str) -> None:
    result = bench(data, sniffed, key)
    found = bench.model
    assert found["kind"] == kind
    assert "\n".join(p["text"] for p in found["passages"]) == text
    assert result["metadata"]["text"] == {
        "kind": kind,
        "pages": 1,
        "passages": 1,
        "chars": len(text),
        "truncated": False,
    }
    assert SECRET not in json.dumps(result), "no step output holds content"


@pytest.mark.parametrize(
    "sniffed", ["application/pdf", "image/png", "application/octet-stream", "application/x-dosexec"]
)
def test_other_types_cost_nothing(sniffed: str) -> None:
    item, ctx = call_of(b"x", "a.txt", "text/plain", earlier={"sniff_type": {"sniffed_type": sniffed}})
    assert asyncio.run(extract_text(item, ctx)) == {}


def test_too_large_is_skipped_not_failed(bench: Bench) -> None:
    result = bench(b"x" * 11, "text/plain", settings=ActivitySettings(extract_bytes=10))
    assert result["metadata"]["text"]["skipped"] == "too-large"
    assert not bench.subjects.opened


def test_no_text_no_sidecar(bench: Bench) -> None:
    assert bench(b" \n ", "text/plain")["metadata"]["text"]["passages"] == 0
    assert not bench.subjects.staged


def test_text_of_a_version_that_is_gone_is_given_up(bench: Bench) -> None:
    subjects = FakeSubjects(b"some text")
    subjects.gone = True
    with pytest.raises(FatalError, match="superseded"):
        bench(b"some text", "text/plain", subjects=subjects)
    assert subjects.sidecars and not subjects.staged


def test_source_is_verified_before_it_is_parsed(bench: Bench) -> None:
    with pytest.raises(FatalError, match="corrupt-source"):
        bench(b"text", "text/plain", digest="sha256:" + "0" * 64)
    with pytest.raises(FatalError, match="corrupt-source"):
        bench(b"text", "text/plain", subjects=FakeSubjects(b"tex"), size=3)
    bench(b"text", "text/plain", digest="sha256-tree:" + "0" * 64)


def test_errors_of_the_tier_and_a_version_gone(bench: Bench) -> None:
    bench.tier.down = True
    with pytest.raises(DependencyDown, match="tier"):
        bench(b"text", "text/plain")
    bench.tier.down = False
    subjects = FakeSubjects(b"text")
    subjects.gone = True
    with pytest.raises(FatalError, match="superseded"):
        bench(b"text", "text/plain", subjects=subjects)


def test_large_document_in_pieces(bench: Bench) -> None:
    data = b"word " * 1_000_000
    result = bench(data, "text/plain")
    assert result["metadata"]["text"]["chars"] > 4_000_000
    assert all(len(p["text"]) <= MOST for p in bench.model["passages"])


def test_deep_nesting_is_read_as_lines_or_refused(bench: Bench) -> None:
    assert bench(b"[" * 100_000, "application/json")["metadata"]["text"]["kind"] == "json"


def test_memory_bound(loop: asyncio.Runner) -> None:
    async def main() -> None:
        pool = Sandbox(SandboxLimits(memory=96 << 20))
        data = b"[" + b"[1]," * 4_000_000 + b"1]"
        services = {"sandbox": pool, "placement": FakePlacement(), "tiers": {"warm": FakeTier()}}
        sniffed = {"sniff_type": {"sniffed_type": "application/json"}}
        item, ctx = call_of(data, subjects=FakeSubjects(data), services=services, earlier=sniffed)
        with pytest.raises(Retry) as retry:
            await extract_text(item, ctx)
        assert retry.value.code == "extract-failed"
        assert retry.value.detail in ("memory", "killed")
        await pool.close()

    loop.run(main())


# --- the extractors, called as functions: the same code that runs in the children ---


def texts(kind: str, data: bytes) -> list[str]:
    _, payload = extract({"kind": kind}, memoryview(data))
    return [passage["text"] for passage in json.loads(payload)["passages"]]


@given(st.sampled_from(sorted(EXTRACTORS)), st.binary(max_size=2000))
@settings(deadline=None)
def test_no_bytes_break_an_extractor(kind: str, data: bytes) -> None:
    value, payload = extract({"kind": kind}, memoryview(data))
    document = json.loads(payload)
    assert value["passages"] == len(document["passages"])
    assert sum(page["count"] for page in document["pages"]) == len(document["passages"])
    assert all(0 < len(p["text"]) <= MOST and "\0" not in p["text"] for p in document["passages"])


@given(st.text(max_size=6000))
@settings(deadline=None)
def test_cutting_loses_no_word(text: str) -> None:
    pieces = cut(text)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(len(piece) <= MOST for piece in pieces)


def test_pages_of_a_paged_and_an_unpaged_document() -> None:
    paged = model("text", [Block("one", 1), Block("two", 1), Block("three", 3)])
    assert paged["pages"] == [
        {"page": 1, "first": 0, "count": 1, "chars": 7},
        {"page": 3, "first": 1, "count": 1, "chars": 5},
    ]
    unpaged = model("text", [Block("x" * 999)] * 100)
    assert [page["page"] for page in unpaged["pages"]] == [1, 2, 3]
    assert texts("text", b"one\fthree") == ["one", "three"]


@pytest.mark.parametrize(
    "data, text",
    [
        ("ä€".encode(), "ä€"),
        ("\ufeffä".encode(), "ä"),
        ("ä".encode("utf-16"), "ä"),
        ("hello there".encode("utf-16-le"), "hello there"),
        ("hello there".encode("utf-16-be"), "hello there"),
        ("ä“".encode("cp1252"), "ä“"),
        (b"\xff\xfe", ""),
    ],
)
def test_encodings(data: bytes, text: str) -> None:
    assert decode(data).removeprefix("\ufeff") == text


def test_html_with_a_declared_encoding() -> None:
    page = '<meta charset="koi8-r"><p>привет'.encode("koi8-r")
    assert texts("html", page) == ["привет"]


def test_html_blocks_and_what_is_silent() -> None:
    page = (
        b"<h1>A</h1><div>b <b>c</b><br>d</div><style>x</style><script>y</script><img alt='pic'><template>z</template>"
    )
    assert texts("html", page) == ["A\nb c\nd\npic"]


def test_json_lines() -> None:
    assert texts("json", b'{"a":1}\n{"a":2}\nnot json') == ["a: 1\na: 2\nnot json"]


# --- embed_text ---


class Vectors:
    model, batch = "tiny", 2

    def __init__(self) -> None:
        self.waiting = dict(enumerate("abcde"))
        self.stored: dict[int, Sequence[float]] = {}

    async def lacking(self, content: Content, model: str, limit: int) -> Sequence[tuple[int, str]]:
        return [(n, t) for n, t in self.waiting.items() if n not in self.stored][:limit]

    async def put(self, content: Content, model: str, vectors: Mapping[int, Sequence[float]]) -> None:
        self.stored |= vectors

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return [[float(ord(text))] for text in texts]


def test_embedding_is_off_unless_configured() -> None:
    item, ctx = call_of(b"x")
    assert asyncio.run(embed_text(item, ctx)) == {"skipped": "not configured"}


def test_embedding_fills_what_lacks() -> None:
    vectors = Vectors()
    item, ctx = call_of(b"x", services={"embedder": vectors, "passages": vectors})
    assert asyncio.run(embed_text(item, ctx))["embedded"] == 5
    assert vectors.stored == {n: [float(ord(t))] for n, t in vectors.waiting.items()}
    assert asyncio.run(embed_text(item, ctx)) == {}
