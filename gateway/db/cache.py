"""What is looked up on every request and changes rarely: kept for a while, dropped when word of a change comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

TTL = 30.0  # seconds a value outlives a lost notification
CAPACITY = 10_000

Publish = Callable[[str, str], None]  # kind and payload; leaves soon after, from a connection of its own

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Values looked up lately, each for TTL seconds, the oldest leaving first.

    epoch moves with every drop: a value whose lookup began before a drop may be stale and is not kept.
    """

    def __init__(self, clock: Callable[[], float], ttl: float = TTL, capacity: int = CAPACITY) -> None:
        self._clock, self._ttl, self._capacity = clock, ttl, capacity
        self._values: dict[Key, tuple[float, Value]] = {}
        self.epoch = 0

    def get(self, key: Key) -> Value | None:
        found = self._values.get(key)
        if found is None:
            return None
        until, value = found
        if until > self._clock():
            return value
        del self._values[key]
        return None

    def put(self, key: Key, value: Value, epoch: int) -> None:
        if epoch != self.epoch:
            return
        self._values.pop(key, None)
        if len(self._values) >= self._capacity:
            del self._values[next(iter(self._values))]
        self._values[key] = (self._clock() + self._ttl, value)

    def drop(self, key: Key) -> None:
        self.epoch += 1
        self._values.pop(key, None)

    def clear(self) -> None:
        self.epoch += 1
        self._values.clear()
