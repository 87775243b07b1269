"""Loads of small requests, made by wrk."""

from __future__ import annotations

from bench import wrk
from bench.outcome import Outcome, of_wrk
from bench.site import LISTED, SMALL, Site


def put_new(site: Site, clients: int) -> Outcome:
    """New keys, each once."""
    most = site.knobs.rate if clients > 1 else site.knobs.rate // 3
    paths = site.fresh(round(most * max(1.0, site.knobs.seconds)))
    found = _run(site, clients, puts=paths, share=10, size=SMALL)
    if found.wrapped:
        return of_wrk(found, note=f"new keys ran out {found.wrapped} times: raise --rate")
    return of_wrk(found)


def put_over(site: Site, clients: int) -> Outcome:
    """Overwrites of the prepared keys, in random order."""
    return of_wrk(_run(site, clients, puts=site.known("PUT"), share=10, size=SMALL))


def get(site: Site, clients: int) -> Outcome:
    """The prepared keys in random order."""
    return _whole(_run(site, clients, gets=site.known("GET")), SMALL)


def mixed(site: Site, clients: int) -> Outcome:
    """Seven GETs of prepared keys to three PUTs of new ones."""
    paths = site.fresh(round(site.knobs.rate * max(1.0, site.knobs.seconds) * 0.3))
    return of_wrk(_run(site, clients, gets=site.known("GET"), puts=paths, share=3, size=SMALL))


def head(site: Site, clients: int) -> Outcome:
    """Of empty objects: wrk waits for the body that a Content-Length names, also after HEAD."""
    return of_wrk(_run(site, clients, gets=site.known("HEAD"), method="HEAD"))


def listing(site: Site, clients: int) -> Outcome:
    """ListObjectsV2 of a prefix with 1,000 keys."""
    return _whole(_run(site, clients, gets=site.listings()), LISTED * 100)


def _run(site: Site, clients: int, **options: object) -> wrk.WrkResult:
    return wrk.run(site.endpoint.url, clients, site.knobs.seconds, site.options(**options))


def _whole(found: wrk.WrkResult, least: int) -> Outcome:
    """Answers shorter than they can be were not what was asked for."""
    short = found.answers > 0 and found.received < found.answers * least
    return of_wrk(found, note="answers are too short" if short else "")
