"""Logs: one line per event on standard error, JSON or (on a terminal) pretty. No secret and no content ever."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import sys
import threading
import time
from collections.abc import MutableMapping
from typing import Any, ClassVar, TextIO

import msgspec
import structlog

# Names whose values never reach a log, whoever passes them.
HIDDEN = frozenset({
    "authorization", "secret", "secret_key", "secret_access_key", "root_secret_key", "signature", "password", "token",
    "admin_token", "session_token", "x-amz-signature", "x-amz-security-token", "cookie", "master_key", "dsn",
    "database_url", "body", "content",
})  # fmt: skip
HOLD = 0.02  # seconds
NAMES = 1024  # of fields that are remembered as harmless
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str = "info", form: str = "auto", process: str = "") -> None:
    """Set up structlog, and route the standard library's loggers through it. May be called again (SIGHUP).

    form: auto, json or pretty. process names this process in each line (its number below the supervisor).
    """
    pretty = form == "pretty" or (form == "auto" and sys.stderr.isatty())
    Logger.least = LEVELS[level]
    facts = _facts(process)
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if pretty else structlog.processors.JSONRenderer()
    )
    lines = Lines(sys.stderr)
    # A line per request: JSON goes from msgspec's encoder to the descriptor as bytes, in a third of json's time.
    structlog.configure(
        processors=[facts, _traceback, renderer if pretty else encode],
        wrapper_class=Logger,
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[facts],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _traceback, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(LEVELS[level], logging.WARNING))


class Logger(structlog.BoundLoggerBase):
    """structlog's logger with the levels that are used here; one that is too low costs a comparison."""

    least: ClassVar[int] = logging.INFO

    def debug(self, event: str, **fields: Any) -> None:
        if self.least <= logging.DEBUG:
            self._proxy_to_logger("debug", event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        if self.least <= logging.INFO:
            self._proxy_to_logger("info", event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        if self.least <= logging.WARNING:
            self._proxy_to_logger("warning", event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        self._proxy_to_logger("error", event, **fields)

    def exception(self, event: str, **fields: Any) -> None:
        self.error(event, **{"exc_info": True, **fields})


class Lines:
    """Writes whole lines. A log that cannot be written (its reader is gone) fails no request.

    On an event loop lines below a warning leave together, up to HOLD seconds after the first: a system call for each
    would cost a request as much as its signature does.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._held: list[bytes] = []
        self._late = 0.0  # when what is held should have left: its loop has ended, or is not heard
        self._lock = threading.Lock()
        atexit.register(self.flush)

    def info(self, line: str | bytes) -> None:
        data = line if isinstance(line, bytes) else line.encode("utf-8", "backslashreplace")
        now = time.monotonic()
        with self._lock:
            self._held.append(data)
            if len(self._held) > 1 and now < self._late:
                return
            self._late = now + 2 * HOLD
        try:
            asyncio.get_running_loop().call_later(HOLD, self.flush)
        except RuntimeError:  # no loop in this thread: nothing would come back to it
            self.flush()

    def warning(self, line: str | bytes) -> None:
        self.info(line)
        self.flush()

    def flush(self) -> None:
        """Write what is held."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            held, self._held = self._held, []
            if held:
                self.stream.buffer.write(b"\n".join(held) + b"\n")
                self.stream.buffer.flush()

    debug, error, critical, msg = info, warning, warning, warning


_encoder = msgspec.json.Encoder(enc_hook=repr)


def encode(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> bytes:
    """The line as JSON; values that JSON does not know as their repr."""
    return _encoder.encode(event)


def _facts(process: str) -> structlog.typing.Processor:
    """Adds level, time and process, hides what must not be seen, and shows bytes (keys) as text, what is no UTF-8
    escaped: one walk over the fields."""
    second, stamp = -1, ""
    harmless: set[str] = set()  # names seen before; they stand in the code, so there are not many

    def add(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        nonlocal second, stamp
        for name, value in event.items():
            if isinstance(value, bytes):
                event[name] = value.decode("utf-8", "backslashreplace")
            if name in harmless:
                continue
            if name.lower() in HIDDEN:
                event[name] = "(hidden)"
            elif len(harmless) < NAMES:
                harmless.add(name)
        now = time.time()
        if int(now) != second:
            second = int(now)
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        event["level"] = method
        event["at"] = f"{stamp}.{int(now % 1 * 1_000_000):06d}Z"
        if process:
            event.setdefault("process", process)
        return event

    return add


def _traceback(logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
    return structlog.processors.format_exc_info(logger, method, event) if "exc_info" in event else event
