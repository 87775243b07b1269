"""Vectors for the passages of a document. Off unless an endpoint is configured and search is on for the bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from processing.context import Context, Item
from processing.ports import Content
from processing.registry import activity


class Embedder(Protocol):
    """Turns passages into vectors: an OpenAI-compatible endpoint, or a local model. batch: texts in one call."""

    model: str
    batch: int

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector a text, in order. Raises DependencyDown("embedder"), Retry with the service's Retry-After."""


class Passages(Protocol):
    """Where the passages of searchable versions lie, with their vectors."""

    async def lacking(self, content: Content, model: str, limit: int) -> Sequence[tuple[int, str]]:
        """Up to limit (number, text) of this version without a vector of that model; none when it is not searchable."""

    async def put(self, content: Content, model: str, vectors: Mapping[int, Sequence[float]]) -> None:
        """Store vectors by passage number. Idempotent."""


@activity("embed_text", optional=True, code="embed-failed", looks_at=("content",))
async def embed_text(item: Item, ctx: Context) -> Mapping[str, Any]:
    """Embeds every passage that lacks a vector, batch by batch: a repeated attempt goes on where the last one ended."""
    embedder: Embedder | None = ctx.services.get("embedder")
    passages: Passages | None = ctx.services.get("passages")
    if embedder is None or passages is None:
        ctx.untouched = True
        return {"skipped": "not configured"}
    done = 0
    while batch := await passages.lacking(item.content, embedder.model, embedder.batch):
        vectors = await embedder.embed([text for _, text in batch])
        numbers = [number for number, _ in batch]
        await passages.put(item.content, embedder.model, dict(zip(numbers, vectors, strict=True)))
        done += len(batch)
        ctx.progress(99.0, "Embedding", passages=done)
    return {"embedded": done, "metadata": {"vectors": {"model": embedder.model, "added": done}}} if done else {}
