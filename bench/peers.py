"""Start the peers that are installed, on loopback, with fresh data below a temporary folder.

As a command (``python -m bench.peers``) it prints the ``--endpoint`` arguments for ``python -m bench`` and runs until
Ctrl-C. Programs are looked for in PEERS (a folder, default /tmp/peers, with venv/bin below it) and in PATH.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.endpoint import Client, Endpoint
from bench.ours import NotStarted

PATIENCE = 60.0
KEYS = ("benchpeerkey", "benchpeersecret0123456789")
HERE = "127.0.0.1"

NGINX = """daemon off; master_process on; worker_processes auto; pid {folder}/nginx.pid; error_log {folder}/error.log;
user root;
events {{ worker_connections 4096; }}
http {{
  access_log {folder}/access.log; sendfile on; tcp_nopush on; keepalive_requests 1000000000; client_max_body_size 0;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/t1; fastcgi_temp_path {folder}/t2;
  uwsgi_temp_path {folder}/t3; scgi_temp_path {folder}/t4;
  server {{
    listen {here}:{port} reuseport; root {folder}/www; dav_methods PUT DELETE; create_full_put_path on;
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """start gets the program, an empty folder and a free-port function; returns command, environment and S3 port."""

    name: str
    program: str
    start: Callable[[str, Path], tuple[Sequence[str], dict[str, str], int]]
    note: str
    signed: bool = True


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HERE, 0))
        return int(one.getsockname()[1])


def _minio(program: str, folder: Path) -> tuple[Sequence[str], dict[str, str], int]:
    port = free_port()
    words = [program, "server", str(folder / "data"), "--address", f"{HERE}:{port}"]
    words += ["--console-address", f"{HERE}:{free_port()}", "--certs-dir", str(folder / "certs")]
    extra = {"MINIO_ROOT_USER": KEYS[0], "MINIO_ROOT_PASSWORD": KEYS[1], "MINIO_UPDATE": "off", "MINIO_BROWSER": "off"}
    return words, extra, port


def _versitygw(program: str, folder: Path) -> tuple[Sequence[str], dict[str, str], int]:
    port = free_port()
    words = [program, "--access", KEYS[0], "--secret", KEYS[1], "--port", f"{HERE}:{port}", "--keep-alive"]
    return [*words, "posix", str(folder / "data")], {}, port


def _seaweedfs(program: str, folder: Path) -> tuple[Sequence[str], dict[str, str], int]:
    # All ports are named, so that two can run. Each bucket takes seven volumes; by default a small disk has few.
    port = free_port()
    identity = {
        "name": "bench",
        "credentials": [{"accessKey": KEYS[0], "secretKey": KEYS[1]}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    words = [program, "server", f"-dir={folder / 'data'}", f"-ip={HERE}", f"-ip.bind={HERE}", "-s3", "-filer"]
    for part in ("master", "volume", "filer", "s3"):
        number = port if part == "s3" else free_port()
        words += [f"-{part}.port={number}", f"-{part}.port.grpc={free_port()}"]
    words += [
        f"-s3.config={config}",
        f"-s3.port.iceberg={free_port()}",
        f"-s3.port.lance={free_port()}",
        "-volume.max=200",
        "-master.volumeSizeLimitMB=1024",
        "-master.telemetry=false",
    ]
    return words, {}, port


def _nginx(program: str, folder: Path) -> tuple[Sequence[str], dict[str, str], int]:
    port = free_port()
    (folder / "www").mkdir()
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, here=HERE, port=port))
    return [program, "-c", str(config), "-p", str(folder)], {}, port


PEERS = (
    Peer("minio", "minio", _minio, "default settings, one drive"),
    Peer("versitygw", "versitygw", _versitygw, "default settings, posix back end, --keep-alive"),
    Peer("seaweedfs", "weed", _seaweedfs, "default settings but 200 volumes of 1 GB"),
    Peer("nginx", "nginx", _nginx, "sendfile, access log on; no signatures, no checks", signed=False),
)


def find(program: str) -> str | None:
    """The path of a peer's program; None when it is not installed."""
    folder = Path(os.environ.get("PEERS", "/tmp/peers"))
    places = os.pathsep.join([str(folder), str(folder / "venv" / "bin"), os.environ.get("PATH", ""), "/usr/sbin"])
    return shutil.which(program, path=places)


@contextlib.contextmanager
def running(peer: Peer, folder: Path, scheme: str = "http") -> Iterator[Endpoint]:
    """One peer, stopped at the end. Raises NotStarted."""
    program = find(peer.program)
    if program is None:
        raise NotStarted(f"{peer.name} is not installed")
    own = folder / peer.name
    (own / "data").mkdir(parents=True)
    words, extra, port = peer.start(program, own)
    log = own / "log"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MINIO_"))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            env={**clean, **extra},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=own,
            start_new_session=True,
        )
    keys = KEYS if peer.signed else ("", "")
    endpoint = Endpoint(peer.name, f"{scheme}://{HERE}:{port}", *keys, pids=(process.pid,), note=peer.note)
    try:
        _wait(endpoint, process, log)
        yield endpoint
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(endpoint: Endpoint, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it stores an object (SeaweedFS answers before it can) or, a plain server, answers."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        client = Client(endpoint)
        with contextlib.suppress(OSError):
            if endpoint.signed:
                client.call("PUT", "/bench-small")
                ready = client.call("PUT", "/bench-small/started", body=b"yes").status == 200
            else:
                ready = client.call("GET", "/").status < 500
            if ready:
                return
        client.close()
        time.sleep(0.2)
    raise NotStarted(f"{endpoint.name}: {log.read_text(errors='replace')[-2000:]}")


@contextlib.contextmanager
def all_running(names: Sequence[str] | None, folder: Path) -> Iterator[list[Endpoint]]:
    """The named ones, or all that are installed; a word on stderr about each that is not."""
    with contextlib.ExitStack() as stack:
        endpoints = []
        for peer in PEERS:
            if names is not None and peer.name not in names:
                continue
            try:
                endpoints.append(stack.enter_context(running(peer, folder)))
            except NotStarted as error:
                print(error, file=sys.stderr)
        yield endpoints


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help=f"{', '.join(peer.name for peer in PEERS)}; default: all installed")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (
        contextlib.suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory(prefix="bench-peers-") as name,
        all_running(args.names or None, Path(name)) as endpoints,
    ):
        for each in endpoints:
            words = [each.name, each.url, each.access_key or "-", each.secret_key or "-", *map(str, each.pids)]
            print("--endpoint", shlex.join(words), flush=True)
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
