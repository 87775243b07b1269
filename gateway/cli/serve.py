"""sluice serve: the whole service, or one more instance of it on a shared database."""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

from gateway import __version__
from gateway.cli.arguments import add_settings, given_flags, settings_of
from gateway.cli.banner import banner
from gateway.cli.embedded import DataDirBusy, DirectoryLock, EmbeddedError
from gateway.cli.exits import CommandError, Exit
from gateway.cli.prepare import Prepared, credentials_path, database, folders, prepare
from gateway.cli.supervise import Supervisor
from gateway.settings import Settings

HELP = "start the service: database, S3 port, admin port, processing"
OPEN_FILES = 65_536
SERVE_NOTE = "serve.json"  # in run_dir: where a running service listens, for the other commands


def arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    from gateway.telemetry import logs

    settings = settings_of(args)
    raise_limits()
    logs.configure(settings.log_level, settings.log_format, "supervisor")
    signal.signal(signal.SIGTERM, _stop_starting)
    folders(settings)
    lock = DirectoryLock(settings.data_dir)
    try:
        lock.acquire()
    except DataDirBusy as error:
        raise CommandError(Exit.BUSY, str(error)) from error
    server = None
    try:
        s3 = bind(settings.host, settings.s3_port, settings.backlog)
        admin = bind(settings.admin_host, settings.admin_port, 128)
        dsn, server = database(settings)
        prepared = prepare(settings, dsn)
        metrics = _fresh_metrics(settings)
        supervisor = Supervisor(
            count=settings.workers or len(os.sched_getaffinity(0)),
            s3=s3,
            admin=admin,
            flags=given_flags(args),
            config=args.config,
            overlay=prepared.overlay,
            drain=settings.drain_timeout,
            on_ready=lambda: _announce(settings, prepared, s3[0], admin[0], server is not None),
            on_death=_forget(metrics),
            environment={"PROMETHEUS_MULTIPROC_DIR": str(metrics)},
            database=server,
        )
        return supervisor.run()
    except EmbeddedError as error:
        raise CommandError(Exit.UNAVAILABLE, str(error)) from error
    finally:
        (settings.run_dir / SERVE_NOTE).unlink(missing_ok=True)
        if server is not None:
            server.stop()
        lock.release()


def raise_limits() -> None:
    """As many open files as we may have: each connection and each blob being read is one. Children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def bind(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Listening sockets for every address of a host name. Raises CommandError with a sentence when one is taken."""
    found: list[socket.socket] = []
    try:
        infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            sock = socket.socket(family, kind, protocol)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(backlog)
            sock.setblocking(False)
            found.append(sock)
    except OSError as error:
        raise CommandError(Exit.UNAVAILABLE, f"Cannot listen on {host}, port {port}: {error.strerror}.") from error
    return found


def _fresh_metrics(settings: Settings) -> Path:
    """The folder of the processes' counters, emptied: they start at 0 with the service."""
    folder = settings.run_dir / "metrics"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    return folder


def _forget(folder: Path):  # type: ignore[no-untyped-def]
    def forget(pid: int) -> None:
        for left in folder.glob(f"gauge_live*_{pid}.db"):
            left.unlink(missing_ok=True)

    return forget


def _announce(settings: Settings, prepared: Prepared, s3: socket.socket, admin: socket.socket, embedded: bool) -> None:
    scheme = "https" if settings.tls_cert is not None else "http"
    url = f"{scheme}://{_shown(settings.host)}:{s3.getsockname()[1]}"
    admin_url = f"http://{_shown(settings.admin_host)}:{admin.getsockname()[1]}"
    note = {"pid": os.getpid(), "s3": url, "admin": admin_url}
    fresh = settings.run_dir / f".{SERVE_NOTE}"
    fresh.write_text(json.dumps(note))
    fresh.replace(settings.run_dir / SERVE_NOTE)
    text = banner(
        version=__version__,
        url=url,
        admin=admin_url,
        data=settings.data_dir,
        database="embedded PostgreSQL" if embedded else "as DATABASE_URL says",
        scanner=settings.clamd,
        access_key=prepared.access_key,
        secret_key=prepared.secret_key,
        fresh=prepared.fresh,
        credentials=credentials_path(settings),
        region=settings.region,
    )
    print(text, flush=True)


def _shown(host: str) -> str:
    """An address a client on this machine can use."""
    if host in ("", "0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _stop_starting(_number: int, _frame: FrameType | None) -> None:
    """TERM before the processes are there: leave by the finally clauses."""
    sys.exit(Exit.OK)
