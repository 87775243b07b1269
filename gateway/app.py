"""The composition root: from settings to a serving process, and back. The only file that knows everyone.

Start: pool, notifier, tiers, engine, listeners. Stop: listeners drain, engine hands its runs back, then the rest, in
the opposite order.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import structlog

from gateway.core import Core, build
from gateway.db.gauges import Gauges
from gateway.http.admin import Admin, AdminParts
from gateway.http.checks import checks
from gateway.http.health import Health
from gateway.http.listener import Listener
from gateway.http.pipeline import Pipeline
from gateway.settings import Settings
from gateway.telemetry import logs

log = structlog.get_logger("sluice.app")
SAMPLE = 2.0  # seconds


async def serve(
    settings: Settings,
    again: Callable[[], Settings],
    s3: Sequence[socket.socket],
    admin: Sequence[socket.socket],
    ready: Callable[[], None],
) -> int:
    """Serve until SIGTERM or SIGINT. again reads the settings anew (SIGHUP). Returns the exit code."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    async with AsyncExitStack() as stack:
        core = await build(settings, stack)
        tls = tls_context(settings)
        health = Health(checks(core))
        gauges = Gauges(core.services.pool, time.monotonic)
        site = Admin(AdminParts(core, health, gauges))
        loop.add_signal_handler(signal.SIGHUP, _reloader(again, tls))

        await core.engine.start()
        stack.push_async_callback(core.engine.drain)
        for keeper in (core.collector, core.scrubber, core.writable):
            keeper.start()
            stack.push_async_callback(keeper.stop)
        pipeline = Pipeline(core.services)
        stack.callback(pipeline.close)
        listener = Listener(pipeline.handle, head_timeout=settings.header_timeout)
        sampler = asyncio.create_task(_sample(core, listener))
        stack.callback(sampler.cancel)
        admin_listener = await site.listen(admin)
        stack.push_async_callback(admin_listener.stop)
        await listener.start(s3, tls)
        health.started = True
        ready()
        await ending.wait()
        health.draining = True
        await listener.stop(settings.drain_timeout)
    return 0


async def work(settings: Settings, ready: Callable[[], None], only: int | None = None) -> int:
    """Process runs without serving, until SIGTERM or SIGINT; or only one run, given by its id."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    async with AsyncExitStack() as stack:
        core = await build(settings, stack)
        if only is not None:
            running = asyncio.create_task(core.engine.run_only(only))
            asked = asyncio.create_task(ending.wait())
            await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            running.cancel()  # nothing when it has ended; else it drains
            with contextlib.suppress(asyncio.CancelledError):
                return 0 if await running else 1
            return 1
        await core.engine.start()
        stack.push_async_callback(core.engine.drain)
        for keeper in (core.collector, core.scrubber, core.writable):
            keeper.start()
            stack.push_async_callback(keeper.stop)
        ready()
        await ending.wait()
    return 0


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Raises OSError or ssl.SSLError when certificate or key cannot be used."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_cert, settings.tls_key)
    return context


def _reloader(again: Callable[[], Settings], tls: ssl.SSLContext | None) -> Callable[[], None]:
    """What SIGHUP does: certificates and log level are read anew; connections stay. A mistake changes nothing."""

    def reload() -> None:
        try:
            settings = again()
            logs.configure(settings.log_level, settings.log_format)
            if tls is not None and settings.tls_cert is not None and settings.tls_key is not None:
                tls.load_cert_chain(settings.tls_cert, settings.tls_key)
        except Exception as error:  # whatever is wrong with it, the service goes on as it was
            log.error("reload failed; everything stays as it was", error=str(error))
        else:
            log.info("reloaded")

    return reload


async def _sample(core: Core, listener: Listener) -> None:
    """Keep the gauges of what is held current."""
    pool: Any = core.services.pool
    while True:
        idle = pool.get_idle_size()
        core.metrics.pool(idle, pool.get_size() - idle)
        core.metrics.listening(core.notifier.connected)
        core.metrics.held(listener.connections, len(asyncio.all_tasks()))
        await asyncio.sleep(SAMPLE)
