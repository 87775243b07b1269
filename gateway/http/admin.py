"""The admin port: health, metrics, and the API that operators use. One table of routes, also for the documentation."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import asyncpg
import structlog
from aiohttp import web

from gateway import __version__
from gateway.db.errors import DatabaseError, NoSuchVersion, NotReviewable
from gateway.db.gauges import Gauges, Sample
from gateway.domain.objects import Bucket, State, parse_version_id
from gateway.http.health import Health
from gateway.plain import plain
from gateway.telemetry.metrics import exposition
from gateway.telemetry.tiers import space
from processing.failures import Conflict
from processing.model import RunState
from processing.scanner import Scanner, ScannerError

if TYPE_CHECKING:
    from gateway.core import Core

log = structlog.get_logger("sluice.admin")
BODY_LIMIT = 1 << 20
SCRAPE_TIMEOUT = 2.0  # seconds the scanner gets during a scrape
FAILURES = 10  # wrong credentials an address may present a minute
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Problem(Exception):
    """An answer that is no success: status, a code for programs, a sentence for people."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, taken apart. path holds the named pieces of the route, decoded once."""

    path: Mapping[str, bytes]
    query: Mapping[str, str]
    body: Mapping[str, Any]
    who: str


@dataclass(frozen=True, slots=True)
class Route:
    """open: answered without credentials (health and metrics, on a port that is bound to loopback)."""

    method: str
    path: str
    handler: str
    doc: str
    open: bool = False


ROUTES: tuple[Route, ...] = (
    Route("GET", "/-/live", "live", "The process answers.", True),
    Route("GET", "/-/startup", "startup", "The process has started.", True),
    Route("GET", "/-/ready", "ready", "Requests can be served; reasons for each check.", True),
    Route("GET", "/metrics", "metrics", "The Prometheus page.", True),
    Route("GET", "/api/v1/runs", "list_runs", "Runs, newest first: `state`, `workflow`, `bucket`, `limit`, `before`."),
    Route("GET", "/api/v1/runs/{id}", "show_run", "A run with its journal."),
    Route("GET", "/api/v1/runs/{id}/why", "why_run", "Why a run does not move."),
    Route("POST", "/api/v1/runs/{id}/retry", "retry_run", "Try a failed or cancelled run again."),
    Route("POST", "/api/v1/runs/{id}/requeue", "requeue_run", "Return a parked run to the line; `force` revokes a lease."),
    Route("POST", "/api/v1/runs/{id}/cancel", "cancel_run", "End a run that has not ended."),
    Route("GET", "/api/v1/quarantine", "list_held", "Held versions: `bucket`, `state`, `limit`."),
    Route("POST", "/api/v1/quarantine/{bucket}/{key...}/release", "release", "Serve a quarantined version: `version_id`, `why`, `allow_digest`, `promote`."),
    Route("GET", "/api/v1/objects/{bucket}/{key...}/processing", "processing", "State and verdicts of an object: `version_id`."),
    Route("POST", "/api/v1/objects/{bucket}/{key...}/reprocess", "reprocess", "Run the current pipeline again: `version_id`, `hold`."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AdminParts:
    core: Core
    health: Health
    gauges: Gauges


class Admin:
    """The handler of the admin port."""

    def __init__(self, parts: AdminParts) -> None:
        self._core, self._health, self._gauges = parts.core, parts.health, parts.gauges
        self._table = [(route, _pattern(route.path), getattr(self, f"_{route.handler}")) for route in ROUTES]
        self._refused: OrderedDict[str, list[float]] = OrderedDict()

    async def listen(self, sockets: Sequence[socket.socket]) -> AdminListener:
        server = web.Server(self.handle, access_log=None)
        loop = asyncio.get_running_loop()
        listening = [await loop.create_server(server, sock=sock) for sock in sockets]
        return AdminListener(server, listening)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            answer = await self._dispatch(request)
        except Problem as problem:
            return _json({"error": {"code": problem.code, "message": str(problem)}}, problem.status)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            log.warning("the database failed an admin request", error=type(error).__name__)
            return _json({"error": {"code": "Unavailable", "message": "The database cannot be reached."}}, 503)
        except Exception as error:  # a bug: said once, to the log
            log.error("admin request failed", exc_info=error, path=request.path)
            return _json({"error": {"code": "InternalError", "message": "See the log."}}, 500)
        return answer if isinstance(answer, web.StreamResponse) else _json(answer)

    async def _dispatch(self, request: web.BaseRequest) -> Any:
        raw_path, _, _ = request.raw_path.partition("?")
        allowed: list[str] = []
        for route, pattern, handler in self._table:
            match = pattern.fullmatch(raw_path)
            if match is None:
                continue
            if request.method != route.method:
                allowed.append(route.method)
                continue
            who = "" if route.open else await self._authenticate(request)
            pieces = {name: unquote_to_bytes(value) for name, value in match.groupdict().items()}
            body = await _body(request) if request.method == "POST" else {}
            return await handler(Asked(pieces, dict(request.query), body, who))
        if allowed:
            raise Problem(405, "MethodNotAllowed", f"This path takes {', '.join(allowed)}.")
        raise Problem(404, "NotFound", "There is no such path.")

    # --- who asks ------------------------------------------------------------------------------------------------

    async def _authenticate(self, request: web.BaseRequest) -> str:
        """The bearer token of the settings, or an access key of the root account by HTTP Basic. Raises Problem."""
        address = request.remote or ""
        self._limit(address)
        kind, _, value = request.headers.get("Authorization", "").partition(" ")
        who = None
        if kind.lower() == "bearer":
            token = self._core.services.settings.admin_token
            if token is not None and hmac.compare_digest(value.strip().encode(), token.encode()):
                who = "token"
        elif kind.lower() == "basic":
            who = await self._administrator(value)
        if who is None:
            if kind:
                self._refused.setdefault(address, []).append(time.monotonic())
            raise Problem(401, "Unauthorized", "A bearer token or an access key of the root account is needed.")
        return who

    async def _administrator(self, value: str) -> str | None:
        try:
            access_key, _, secret = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        identity = await self._core.services.identities.find(access_key)
        if identity is None or not hmac.compare_digest(secret.encode(), identity.secret.encode()):
            return None
        return access_key if identity.account.is_root else None

    def _limit(self, address: str) -> None:
        """Guessing is slow: after FAILURES wrong credentials a minute an address has to wait."""
        recent = [at for at in self._refused.get(address, ()) if at > time.monotonic() - 60]
        if recent:
            self._refused[address] = recent
        else:
            self._refused.pop(address, None)
        while len(self._refused) > 1000:
            self._refused.popitem(last=False)
        if len(recent) >= FAILURES:
            raise Problem(429, "TooManyRequests", "Too many wrong credentials from this address; wait a minute.")

    # --- health and metrics --------------------------------------------------------------------------------------

    async def _live(self, _: Asked) -> web.Response:
        status, report = self._health.live()
        return _json(report, status)

    async def _startup(self, _: Asked) -> web.Response:
        status, report = self._health.startup()
        return _json(report, status)

    async def _ready(self, _: Asked) -> web.Response:
        status, report = await self._health.ready()
        return _json(report, status)

    async def _metrics(self, _: Asked) -> web.Response:
        fold = self._core.policy.vocabulary.workflows
        asked: dict[str, Sequence[Sample]] = {"sluice_build_info": [((__version__,), 1)]}
        try:
            asked |= await self._gauges.ask(fold, self._core.policy.registry.workflows)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            log.warning("the database did not answer a scrape")  # the processes' own figures are still worth having
        asked |= await _scanner(self._core.scanner)
        asked["sluice_tier_writable"] = self._core.writable.samples()
        asked["sluice_tier_free_ratio"] = await space(self._core.services.tiers)
        page = await asyncio.to_thread(exposition, self._core.metrics, asked)
        return web.Response(body=page, headers={"Content-Type": PROMETHEUS})

    # --- runs ----------------------------------------------------------------------------------------------------

    async def _list_runs(self, asked: Asked) -> Any:
        bucket = await self._bucket(asked.query["bucket"].encode()) if "bucket" in asked.query else None
        states: list[RunState] = []
        if "state" in asked.query:
            try:
                states = [RunState[word.upper()] for word in asked.query["state"].split(",")]
            except KeyError as error:
                raise Problem(400, "InvalidArgument", f"There is no state {error}.") from error
        rows = await self._core.engine.list_runs(
            states=states,
            workflow=asked.query.get("workflow"),
            bucket_id=bucket.id if bucket else None,
            before=_number(asked.query, "before"),
            limit=min(_number(asked.query, "limit") or 100, 1000),
        )
        return {"runs": plain(rows)}

    async def _show_run(self, asked: Asked) -> Any:
        found = await self._core.engine.show(_run_id(asked))
        if found is None:
            raise Problem(404, "NoSuchRun", "There is no such run.")
        return plain(found)

    async def _why_run(self, asked: Asked) -> Any:
        return {"why": await self._core.engine.why(_run_id(asked))}

    async def _retry_run(self, asked: Asked) -> Any:
        return await self._operate(asked, self._core.engine.retry)

    async def _requeue_run(self, asked: Asked) -> Any:
        force = bool(asked.body.get("force"))
        return await self._operate(asked, lambda run_id: self._core.engine.requeue(run_id, force))

    async def _cancel_run(self, asked: Asked) -> Any:
        return await self._operate(asked, self._core.engine.cancel)

    async def _operate(self, asked: Asked, deed: Callable[[int], Awaitable[Any]]) -> Any:
        run_id = _run_id(asked)
        if await self._core.engine.show(run_id) is None:
            raise Problem(404, "NoSuchRun", "There is no such run.")
        try:
            await deed(run_id)
        except Conflict as error:
            raise Problem(409, error.code, str(error)) from error
        return plain(await self._core.engine.show(run_id))

    # --- objects -------------------------------------------------------------------------------------------------

    async def _list_held(self, asked: Asked) -> Any:
        bucket = await self._bucket(asked.query["bucket"].encode()) if "bucket" in asked.query else None
        try:
            states = [State[word.upper()] for word in asked.query.get("state", "quarantined").split(",")]
        except KeyError as error:
            raise Problem(400, "InvalidArgument", f"There is no state {error}.") from error
        page = await self._core.quarantine.list(
            bucket.id if bucket else None,
            states=frozenset(states),
            limit=min(_number(asked.query, "limit") or 100, 1000),
        )
        return {"held": plain(page.held), "more": page.next is not None}

    async def _release(self, asked: Asked) -> Any:
        bucket = await self._bucket(asked.path["bucket"])
        held = await self._core.quarantine.show(bucket.id, asked.path["key"], limit=1000)
        wanted = asked.body.get("version_id")
        found = [
            each
            for each in held
            if each.state is State.QUARANTINED and wanted in (None, each.version_id, each.ref.version_id)
        ]
        if not found:
            raise Problem(404, "NoSuchVersion", "No such version is quarantined.")
        ref = await self._reviewed(
            self._core.review.release(
                bucket, found[0].ref, who=asked.who, why=str(asked.body.get("why", "")),
                allow_digest=bool(asked.body.get("allow_digest")), promote=bool(asked.body.get("promote")),
            )
        )  # fmt: skip
        return {"released": ref.version_id}

    async def _processing(self, asked: Asked) -> Any:
        _, resolved = await self._version(asked, asked.query.get("version_id"))
        version = resolved.version
        run = await self._core.engine.show(version.run_id) if version.run_id is not None else None
        return plain(
            {
                "version_id": version.version_id,
                "state": version.state.word,
                "code": version.code,
                "detail": version.detail,
                "etag": version.etag,
                "size": version.size,
                "digest": version.digest,
                "processing": version.processing,
                "run": run,
            }
        )

    async def _reprocess(self, asked: Asked) -> Any:
        bucket, resolved = await self._version(asked, asked.body.get("version_id"))
        run_id = await self._reviewed(
            self._core.review.reprocess(bucket, resolved.version.ref, who=asked.who, hold=bool(asked.body.get("hold")))
        )
        return {"run": run_id}

    async def _version(self, asked: Asked, version_id: str | None) -> tuple[Bucket, Any]:
        bucket = await self._bucket(asked.path["bucket"])
        which: Any = None
        if version_id is not None:
            which = "null" if version_id == "null" else parse_version_id(version_id)
            if which is None:
                raise Problem(400, "InvalidArgument", "The version id is malformed.")
        resolved = await self._core.services.versions.resolve(bucket, asked.path["key"], which, content=False)
        if resolved.version is None:
            raise Problem(404, "NoSuchKey", "There is no such object.")
        return bucket, resolved

    async def _bucket(self, name: bytes) -> Bucket:
        bucket = await self._core.services.buckets.get(name.decode("utf-8", "replace"), fresh=True)
        if bucket is None:
            raise Problem(404, "NoSuchBucket", "There is no such bucket.")
        return bucket

    async def _reviewed(self, deed: Awaitable[Any]) -> Any:
        try:
            return await deed
        except NotReviewable as error:
            raise Problem(409, "Conflict", str(error)) from error
        except NoSuchVersion as error:
            raise Problem(404, "NoSuchVersion", "The version is gone.") from error
        except DatabaseError as error:
            raise Problem(409, type(error).__name__, str(error)) from error


@dataclass(slots=True)
class AdminListener:
    server: web.Server
    listening: list[asyncio.Server]

    async def stop(self) -> None:
        for each in self.listening:
            each.close()
        await self.server.shutdown(2.0)


async def _scanner(scanner: Scanner | None) -> dict[str, Sequence[Sample]]:
    if scanner is None:
        return {}
    try:
        async with asyncio.timeout(SCRAPE_TIMEOUT):
            version = await scanner.version()
    except (TimeoutError, ScannerError):
        return {"sluice_scanner_up": [((), 0)]}
    found: dict[str, Sequence[Sample]] = {"sluice_scanner_up": [((), 1)]}
    if version.built is not None:
        found["sluice_scanner_signature_age_seconds"] = [((), time.time() - version.built.timestamp())]
    return found


def _pattern(path: str) -> re.Pattern[str]:
    """{name} is one piece of the path; {name...} any number of them, slashes included (keys hold them)."""
    pattern = re.escape(path)
    pattern = re.sub(r"\\{(\w+)\\\.\\\.\\\.\\}", r"(?P<\1>.+)", pattern)
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", pattern))


async def _body(request: web.BaseRequest) -> Mapping[str, Any]:
    if (request.content_length or 0) > BODY_LIMIT:
        raise Problem(413, "TooLarge", "The body is too large.")
    raw = await request.content.read(BODY_LIMIT)
    if not raw:
        return {}
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise Problem(400, "MalformedBody", "The body is not JSON.") from error
    if not isinstance(body, dict):
        raise Problem(400, "MalformedBody", "The body is not a JSON object.")
    return body


def _run_id(asked: Asked) -> int:
    try:
        return int(asked.path["id"])
    except ValueError as error:
        raise Problem(404, "NoSuchRun", "There is no such run.") from error


def _number(query: Mapping[str, str], name: str) -> int | None:
    if name not in query:
        return None
    try:
        return max(1, int(query[name]))
    except ValueError as error:
        raise Problem(400, "InvalidArgument", f"{name} is a number.") from error


def _json(data: Any, status: int = 200) -> web.Response:
    return web.Response(
        text=json.dumps(data, ensure_ascii=False) + "\n", status=status, content_type="application/json"
    )
