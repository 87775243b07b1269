"""A serving process, started by the supervisor (gateway/cli/supervise.py) with its orders on a pipe."""

from __future__ import annotations

import gc
import os
import socket
import sys
from pathlib import Path

from gateway.cli.supervise import READY, Orders

# Objects made since the last collection, and younger collections to an older one. A request makes some hundred that
# live as long as it does; with Python's own 700 the collector walks those of all requests in flight again and again.
COLLECT = (25_000, 20, 20)


def main() -> int:
    with os.fdopen(int(sys.argv[1]), "rb") as pipe:
        raw = pipe.read()
    if not raw:
        return 1
    orders = Orders.read(raw)

    import asyncio

    import uvloop

    from gateway import app
    from gateway.settings import Settings
    from gateway.sources import load
    from gateway.telemetry import logs

    config = Path(orders.config) if orders.config else None

    def settings() -> Settings:
        """As the supervisor saw them; read again on SIGHUP."""
        return load(orders.flags, file=config).replace(**orders.overlay)

    current = settings()
    logs.configure(current.log_level, current.log_format, str(orders.index))

    def ready() -> None:
        os.write(orders.ready_fd, READY)

    s3, admin = ([socket.socket(fileno=fd) for fd in fds] for fds in (orders.s3_fds, orders.admin_fds))
    gc.freeze()  # what was imported stays for good: the collector need not look at it again
    gc.set_threshold(*COLLECT)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(app.serve(current, settings, s3, admin, ready))


if __name__ == "__main__":
    sys.exit(main())
