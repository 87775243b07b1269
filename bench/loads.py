"""The table of loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench import large, ready, small
from bench.outcome import Outcome
from bench.site import Site

CLIENTS = (1, 8, 32, 64)


@dataclass(frozen=True, slots=True)
class Load:
    """unit is that of the outcome's value; ms means that less is better.

    needs names what has to be there: small, empty, listed objects, large-N streams. plain: a web server without S3 can
    do it. ours_only: too much for others (the bytes of 10,000 parts), or there is nothing to compare.
    """

    name: str
    unit: str
    run: Callable[[Site], Outcome]
    what: str
    needs: str = ""
    plain: bool = False
    ours_only: bool = False

    @property
    def more_is_better(self) -> bool:
        return self.unit != "ms"


def _small() -> list[Load]:
    loads = []
    for clients in CLIENTS:
        loads += [
            Load(f"put-new-{clients}", "/s", partial(small.put_new, clients=clients), "PUT 4 KiB, new keys"),
            Load(f"put-over-{clients}", "/s", partial(small.put_over, clients=clients), "overwrites, 4 KiB", "small"),
            Load(f"get-{clients}", "/s", partial(small.get, clients=clients), "GET 4 KiB", "small", plain=True),
        ]
    return loads


LOADS: tuple[Load, ...] = (
    *_small(),
    Load("mixed-32", "/s", partial(small.mixed, clients=32), "70 % GET, 30 % PUT of new keys, 4 KiB", "small"),
    Load("head-32", "/s", partial(small.head, clients=32), "HEAD of empty objects", "empty", plain=True),
    Load("list-8", "/s", partial(small.listing, clients=8), "LIST of 1,000 keys", "listed"),
    Load("put-large-1", "MB/s", partial(large.put, streams=1), "PUT of a large object", plain=True),
    Load("get-large-1", "MB/s", partial(large.get, streams=1), "GET of a large object", "large-1", plain=True),
    Load("put-large-4", "MB/s", partial(large.put, streams=4), "four PUTs of large objects", plain=True),
    Load("get-large-4", "MB/s", partial(large.get, streams=4), "four GETs of large objects", "large-4", plain=True),
    Load("copy-large", "ms", large.copy, "server-side copy of a large object", "large-1"),
    Load("complete-large", "ms", large.complete, "completion of a large object in parts of 8 MiB"),
    Load("complete-10000", "ms", large.complete_many, "completion of 10,000 parts", "large-1", ours_only=True),
    Load("ready-idle", "ms", ready.idle, "PUT 4 KiB, then GET by another process"),
    Load("ready-busy", "ms", ready.busy, "the same beside PUTs at about half the maximum"),
)
QUICK = ("put-new-1", "put-new-32", "get-32", "put-large-1", "get-large-1")
BY_NAME = {load.name: load for load in LOADS}


def chosen(words: list[str]) -> list[Load]:
    """The loads with these names, or whose names start with them, in the table's order. Raises ValueError: unknown."""
    for word in words:
        if not any(_is(load.name, word) for load in LOADS):
            raise ValueError(f"no load {word}; there are {', '.join(BY_NAME)}")
    return [load for load in LOADS if any(_is(load.name, word) for word in words)]


def _is(name: str, word: str) -> bool:
    return name == word or name.startswith(word + "-")
