"""The body of one GetObject as a reader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from storage_tiers.s3_errors import translate
from storage_tiers.tier import TierUnavailable

READ = 256 << 10  # bytes per piece at most; the connection reads ahead by its own buffer


class S3Reader:
    """length bytes of a response body; None for a span without bytes."""

    fd = None
    position = 0

    def __init__(self, tier: str, body: Any, length: int) -> None:
        self._tier = tier
        self._body = body
        self._length = length

    @property
    def length(self) -> int:
        return self._length

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._length
        while left:
            try:
                data: bytes = await self._body.read(min(READ, left))
            except Exception as error:
                # a body that breaks off raises what the HTTP library below the client has for it
                raise translate(error, self._tier, "read") from error
            if not data:
                # the store said how many bytes it has: a short body is a cut connection, not a short blob
                raise TierUnavailable(f"tier {self._tier}: a body ended {left} bytes early")
            left -= len(data)
            yield data

    async def close(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.close()
