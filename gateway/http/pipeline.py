"""READ THIS FIRST: what happens to every request, from its head to the last byte of its answer.

    handle ─ parse ─ resolve ─ authenticate ─ admit ─ body ─ operation ─ reply

Each step either goes on or raises S3Error, which becomes an XML document here and nowhere else. Anything else that is
raised is a bug or a dependency that failed: InternalError, once, with a log line.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec
import structlog

from gateway.domain.objects import Account
from gateway.domain.policy import ANONYMOUS, Caller, decide
from gateway.http.body import Body, ClientGone
from gateway.http.offload import Offload
from gateway.http.pace import PaceLimits
from gateway.http.reply import Reply, Sent, document, new_host_id, new_request_id, send
from gateway.http.request import Request
from gateway.ops import access, buckets, copy, listing, multipart, objects, service
from gateway.ops.failures import translate
from gateway.s3 import chunked, messages, sigv4
from gateway.s3.call import Call, Parsed, Target, parse
from gateway.s3.errors import S3Error
from gateway.s3.headers import Headers, signed_hosts, trusted_peer
from gateway.s3.operations import OPERATIONS, BodyKind, resolve
from gateway.services import Services

log = structlog.get_logger()

Handler = Callable[[Call, Services], Awaitable[Reply]]

FAMILIES = (service, buckets, objects, copy, multipart, listing)
GONE = 499  # the status, in metrics and logs, of a request whose client went away
NOBODY = 0  # stands for the account of who presents none
UNKNOWN = "Unknown"  # the operation's name in metrics and logs while there is none
SOON = {"Retry-After": "1", "x-amz-retry-after": "1000"}
LINGER = 10.0  # seconds, and
DRAIN = 256 << 20  # bytes of a refused body that are read and thrown away before the connection is given up
OFFER = 2.0  # seconds in which a client that was refused before "100 Continue" may close by itself


def _read(
    parsed: Parsed, hosts: tuple[str, ...], now: datetime, region: str, regions: tuple[str, ...]
) -> sigv4.Presented | None:
    return sigv4.read(
        parsed.method,
        parsed.raw_target,
        parsed.headers,
        parsed.query,
        now=now,
        region=region,
        regions=regions,
        hosts=hosts,
    )


def handlers() -> dict[str, Handler]:
    """The function of every operation that has one, by the operation's name."""
    modules = {module.__name__.rpartition(".")[2]: module for module in FAMILIES}
    found: dict[str, Handler] = {}
    for row in OPERATIONS:
        if row.handler is not None:
            family, _, name = row.handler.partition(".")
            found[row.name] = getattr(modules[family], name)
    return found


class Trace(msgspec.Struct):
    """What is known of a request while it is served: for its answer and its log line."""

    request_id: str
    host_id: str
    started: float
    operation: str = UNKNOWN
    call: Call | None = None
    parsed: Parsed | None = None
    account: Account | None = None
    tenant: int | None = None  # whose place among the requests in flight it takes
    body: Body | None = None
    error: S3Error | None = None
    note: dict[str, Any] = {}


class Pipeline:
    """The one handler of the S3 port."""

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self._sv = services
        self._handlers = handlers()
        self._limits = PaceLimits(settings.body_timeout, settings.min_rate_grace, max(1.0, settings.min_rate))
        self._offload = Offload()
        self._in_flight = 0
        self._draining = 0  # of them: answered, while the rest of a refused body is thrown away
        self._tenants: Counter[int] = Counter()
        self._log = log.bind()  # once: a logger that is looked up anew for each line costs as much as the line

    def close(self) -> None:
        """Give the threads of large bodies back; nothing may be served any more."""
        self._offload.close()

    @property
    def in_flight(self) -> int:
        """Requests being served now."""
        return self._in_flight

    async def handle(self, request: Request) -> Sent:
        """Serve one request. Never raises but for cancellation, when the client is gone."""
        trace = Trace(new_request_id(), new_host_id(), time.monotonic())
        self._in_flight += 1
        self._sv.metrics.request_started()
        sent: Sent | None = None
        try:
            reply = await self._answer(request, trace)
            try:
                sent = await self._send(request, trace, reply)
            except (ConnectionError, asyncio.CancelledError):
                raise
            except Exception as error:  # the content failed before its first byte: there is still time to say so
                sent = await self._send(request, trace, self._failure(request, trace, error))
            if not request.content.is_eof():
                self._leave(trace)
                await self._drain(request)
            return sent
        except ConnectionError:
            # A thread may learn it before the event loop does; aiohttp would write a 500 into what is left.
            if request.transport is not None:
                request.transport.abort()
            return Sent(False, GONE, time.monotonic(), 0)
        finally:
            self._in_flight -= 1
            self._leave(trace)
            self._report(request, trace, sent, time.monotonic())

    # --- the steps -----------------------------------------------------------------------------------------------

    async def _answer(self, request: Request, trace: Trace) -> Reply:
        try:
            if self._in_flight - self._draining > self._sv.settings.max_in_flight:
                raise S3Error("SlowDown", headers=SOON)
            headers = Headers(request.raw_headers)
            hosts = self._hosts(request, headers)
            trace.parsed = parsed = parse(request.method, request.raw_path, headers, self._sv.settings.domain, hosts)
            operation = resolve(parsed.method, parsed.target, parsed.query, headers)
            trace.operation = operation.name
            now = self._sv.clock()
            caller, payload, signed = await self._authenticate(parsed, hosts, now, trace)
            trace.call = call = Call(
                request_id=trace.request_id,
                method=parsed.method,
                raw_target=parsed.raw_target,
                path=parsed.path,
                query=parsed.query,
                headers=headers,
                operation=operation,
                bucket=parsed.bucket,
                key=parsed.key,
                caller=caller,
                now=now,
                secure=request.secure,
                payload=payload,
            )
            await self._admit(call)
            call.body = trace.body = self._body(request, call, payload, signed)
            reply = await self._handlers[operation.name](call, self._sv)
            trace.note = reply.note
            return reply
        except ClientGone:
            raise
        except Exception as error:
            return self._failure(request, trace, error)
        finally:
            if trace.body is not None:
                trace.body.close()

    def _hosts(self, request: Request, headers: Headers) -> tuple[str, ...]:
        """The host values that the request may have been signed for."""
        proxies = self._sv.settings.trusted_proxies
        return signed_hosts(headers, trusted=trusted_peer(request.remote, proxies), secure=request.secure)

    async def _authenticate(
        self, parsed: Parsed, hosts: tuple[str, ...], now: datetime, trace: Trace
    ) -> tuple[Caller, sigv4.Payload, sigv4.Signed | None]:
        """Who sends this. Anonymous when nothing is presented; whatever is presented must hold."""
        try:
            presented = await self._presented(parsed, hosts, now, trace)
            if presented is None:
                payload = sigv4.payload_of(parsed.headers)
            else:
                identity = await self._sv.identities.find(presented.access_key)
                if identity is None:
                    raise S3Error("InvalidAccessKeyId", AWSAccessKeyId=presented.access_key)
                signed = sigv4.verify(presented, identity.secret)
        except S3Error as error:
            self._sv.metrics.auth_failed(error.code)
            raise
        if presented is None:
            self._join(NOBODY, trace)
            return ANONYMOUS, payload, None
        assert identity is not None
        trace.account = identity.account
        self._join(identity.account.id, trace)
        return Caller(identity.account, identity.access_key, True), presented.payload, signed

    async def _presented(
        self, parsed: Parsed, hosts: tuple[str, ...], now: datetime, trace: Trace
    ) -> sigv4.Presented | None:
        """What the request presents, signed for this endpoint's region, or for the location of its bucket: clients ask
        for that, and sign with the answer. A new bucket may be asked for where it shall be."""
        settings = self._sv.settings
        try:
            return _read(parsed, hosts, now, settings.region, settings.regions)
        except sigv4.WrongRegion as wrong:
            bucket = None if parsed.bucket is None else await self._sv.buckets.get(parsed.bucket)
            home = settings.region if bucket is None else bucket.region(settings.region)
            anywhere = trace.operation == "CreateBucket" and not settings.regions
            try:
                return _read(parsed, hosts, now, home, (wrong.scope,) if anywhere else ())
            except sigv4.WrongRegion as error:
                if parsed.bucket is not None:
                    error.headers["x-amz-bucket-region"] = home  # SDKs that follow a bucket to its region look for it
                raise error from None

    async def _admit(self, call: Call) -> None:
        """Let the caller into the bucket, or (for operations on none) at the service."""
        operation = call.operation
        if call.bucket is None or operation.name == "CreateBucket":
            decide(operation, call.caller, None).require()
            return
        expected = call.headers.get("x-amz-expected-bucket-owner")
        action = "" if operation.name == "DeleteObjects" else operation.action  # decided key by key
        # What a bucket is now is read anew for operations on buckets; those on objects learn it from the generation
        # that their own statement returns.
        fresh = operation.target is Target.BUCKET
        call.place = await access.enter(call, self._sv, call.bucket, action, expected, fresh)

    def _body(self, request: Request, call: Call, payload: sigv4.Payload, signed: sigv4.Signed | None) -> Body | None:
        """The request's body, None where there is none and none is meant. Raises MissingContentLength for an upload
        whose end nothing announces."""
        headers = call.headers
        if call.operation.body is BodyKind.NONE and request.content.is_eof() and not payload.form.chunked:
            return None
        if (headers.get("transfer-encoding") or "chunked").lower() != "chunked":
            raise S3Error("NotImplemented", Header="Transfer-Encoding")  # or it would be stored as it is coded
        length = headers.get("content-length")
        decoder = chunked.decoder(payload, headers, signed)
        if call.operation.body is BodyKind.STREAM and length is None and "transfer-encoding" not in headers:
            raise S3Error("MissingContentLength")
        announced = headers.get("x-amz-decoded-content-length") if decoder is not None else length
        return Body(
            request,
            length=None if announced is None else int(announced),
            limits=self._limits,
            decoder=decoder,
            expects=(headers.get("expect") or "").lower() == "100-continue",
            sha256=payload.sha256,
            offload=None if "transfer-encoding" in headers else self._offload,
        )

    # --- limits per account --------------------------------------------------------------------------------------

    def _join(self, tenant: int, trace: Trace) -> None:
        """Half of what a process serves is the most that one account gets, or all who are none: the others are always
        heard."""
        if self._tenants[tenant] >= max(1, self._sv.settings.max_in_flight // 2):
            raise S3Error("SlowDown", headers=SOON)
        self._tenants[tenant] += 1
        trace.tenant = tenant

    def _leave(self, trace: Trace) -> None:
        """Give the place back. Any number of times."""
        tenant, trace.tenant = trace.tenant, None
        if tenant is None:
            return
        self._tenants[tenant] -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]

    # --- answers -------------------------------------------------------------------------------------------------

    async def _send(self, request: Request, trace: Trace, reply: Reply) -> Sent:
        return await send(
            request,
            reply,
            trace.request_id,
            trace.host_id,
            self._limits,
            close=self._must_close(request, trace),
            offload=self._offload,
        )

    def _must_close(self, request: Request, trace: Trace) -> bool:
        """Whether the connection cannot be used for another request: the server is going down, or too much of this
        one's body is left."""
        protocol = request.protocol
        if getattr(protocol, "ending", False):
            return True
        if request.content.is_eof():
            return False
        if "100-continue" in request.headers.get("Expect", "").lower() and (trace.body is None or trace.body.withheld):
            protocol._lingering_time = OFFER  # the body may never come (RFC 9110, 10.1.1)
            return True
        return trace.error is not None and (request.content_length or DRAIN) >= DRAIN

    async def _drain(self, request: Request) -> None:
        """Read and throw away what a refused client is still sending, within bounds: closing at once would reset the
        connection, and the answer might be lost with it. Nobody is kept waiting by who takes his time here."""
        content, left = request.content, DRAIN
        if request.protocol._lingering_time == OFFER:
            return
        self._draining += 1
        try:
            async with asyncio.timeout(LINGER):
                while not content.is_eof() and left > 0:
                    left -= len(await content.readany())
        except Exception:  # too slow, broken off or gone: nobody is left to be polite to
            left = 0
        finally:
            self._draining -= 1
        if left <= 0:
            request.protocol._lingering_time = 0.0

    def _failure(self, request: Request, trace: Trace, error: Exception) -> Reply:
        known = translate(error)
        if known is None:
            log.error("request failed", exc_info=error, request=trace.request_id, operation=trace.operation)
            known = S3Error("InternalError")
        elif known is not error and known.code == "ServiceUnavailable":
            log.warning("dependency failed", error=repr(error), request=trace.request_id, operation=trace.operation)
        return self._refusal(request, trace, known)

    def _refusal(self, request: Request, trace: Trace, error: S3Error) -> Reply:
        """An error as S3 says it: a document with the code, or for 304 and HEAD only the head."""
        trace.error = error
        if error.operation is not None:
            trace.operation = error.operation
        if error.status == 304:
            return Reply(304, list(error.headers.items()))
        if request.method == "HEAD":
            reply = Reply(error.status, [("Content-Type", "application/xml")])
        else:
            reply = document(_error_document(trace, error), error.status)
        return reply.add(error.headers)

    def _report(self, request: Request, trace: Trace, sent: Sent | None, now: float) -> None:
        """One line and one set of figures per request, also for those whose client went away (status 499)."""
        status = sent.status if sent is not None else GONE
        code = trace.error.code if trace.error is not None else None
        first = sent.first - trace.started if sent is not None else None
        received = trace.body.received if trace.body is not None else 0
        size = sent.size if sent is not None else 0
        self._sv.metrics.request_ended(trace.operation, status, code, now - trace.started, first, received, size)
        line: dict[str, Any] = {
            "operation": trace.operation,
            "status": status,
            "seconds": round(now - trace.started, 6),
            "request": trace.request_id,
            "remote": request.remote,
        }
        if trace.parsed is not None:
            line["bucket"] = trace.parsed.bucket
            line["key"] = trace.parsed.key
        if trace.account is not None:
            line["account"] = trace.account.name
        if code is not None:
            line["code"] = code
        if received:
            line["received"] = received
        if sent is not None:
            line["sent"] = size
            line["first_byte"] = round(sent.first - trace.started, 6)
            if sent.broken:
                line["broken"] = True
        self._log.info("request", **line, **trace.note)


def _error_document(trace: Trace, error: S3Error) -> bytes:
    resource = None
    if trace.parsed is not None:
        resource = "/" if trace.parsed.bucket is None else f"/{trace.parsed.bucket}"
        if trace.parsed.key is not None:
            resource += "/" + trace.parsed.key.decode("utf-8", "replace")
    return messages.error(
        error.code,
        error.message,
        resource=resource,
        request_id=trace.request_id,
        host_id=trace.host_id,
        elements=error.elements,
    )
