"""``aws s3 cp`` of one large object up and down, against this gateway and MinIO; and memory while many upload at once.

python -m bench.copying cp --mib 1024 --rounds 3          # plain HTTP; parts of 8 MiB, signed, with trailers
python -m bench.copying cp --tls
python -m bench.copying memory --clients 64 --mib 256     # needs clients x mib of disk
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import ours, peers
from bench.endpoint import OURS, Client, Endpoint
from bench.family import Family

MIB = 1 << 20
BUCKET = "bench-copying"


@contextlib.contextmanager
def certificate(folder: Path) -> Iterator[Path]:
    """A self-signed one for 127.0.0.1, as both servers take it."""
    cert, key = folder / "public.crt", folder / "private.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    yield folder


def aws() -> list[str]:
    """The program of the environment that runs this, else the one in PATH. Raises SystemExit."""
    own = Path(sys.executable).with_name("aws")
    found = str(own) if own.exists() else shutil.which("aws")
    if found is None:
        raise SystemExit("the aws program is not installed")
    return [sys.executable, found] if own.exists() else [found]


def cp(endpoint: Endpoint, source: str, target: str, folder: Path, tls: bool) -> float:
    """Seconds of one copy. Raises CalledProcessError."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "AWS_ACCESS_KEY_ID": endpoint.access_key,
        "AWS_SECRET_ACCESS_KEY": endpoint.secret_key,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "HOME": str(folder),
    }
    more = ["--ca-bundle", str(folder / "public.crt")] if tls else []
    began = time.perf_counter()
    subprocess.run(
        [*aws(), "--endpoint-url", endpoint.url, *more, "s3", "cp", "--quiet", source, target],
        env=environment, check=True, capture_output=True,
    )  # fmt: skip
    return time.perf_counter() - began


def compare(args: argparse.Namespace, folder: Path) -> int:
    body, back = folder / "body", folder / "back"
    with body.open("wb") as file:
        for _ in range(args.mib):
            file.write(os.urandom(MIB))
    with contextlib.ExitStack() as stack:
        if args.tls:
            stack.enter_context(certificate(folder))
            os.environ["SLUICE_TLS_CERT"] = str(folder / "public.crt")
            os.environ["SLUICE_TLS_KEY"] = str(folder / "private.key")
            os.environ["SSL_CERT_FILE"] = str(folder / "public.crt")  # whom our own client trusts
        endpoints = [stack.enter_context(ours.running(folder))]
        minio = next(peer for peer in peers.PEERS if peer.name == "minio")
        if args.tls:
            certs = folder / "minio" / "certs"
            certs.mkdir(parents=True)
            for name in ("public.crt", "private.key"):
                shutil.copy(folder / name, certs / name)
        endpoints.append(stack.enter_context(peers.running(minio, folder, "https" if args.tls else "http")))
        times: dict[tuple[str, str], list[float]] = {}
        for turn in range(args.rounds):
            for endpoint in endpoints[turn % 2 :] + endpoints[: turn % 2]:
                client = Client(endpoint)
                client.call("PUT", f"/{BUCKET}")  # may be there from an earlier round
                client.close()
                place = f"s3://{BUCKET}/{turn}"
                times.setdefault((endpoint.name, "up"), []).append(cp(endpoint, str(body), place, folder, args.tls))
                Family(endpoint.pids).settle(30)
                times.setdefault((endpoint.name, "down"), []).append(cp(endpoint, place, str(back), folder, args.tls))
                if back.stat().st_size != args.mib * MIB:
                    raise SystemExit("what came back is not whole")
                back.unlink()
    kind = "TLS" if args.tls else "plain"
    for way in ("up", "down"):
        rates = {
            name: args.mib * MIB / 1e6 / statistics.median(each)
            for (name, found), each in times.items()
            if found == way
        }
        told = ", ".join(f"{name} {rate:.0f} MB/s" for name, rate in rates.items())
        print(f"aws s3 cp {way:4} {kind:5} {args.mib} MiB: {told}; {rates[OURS] / rates['minio']:.2f} of minio")
    return 0


def memory(args: argparse.Namespace, folder: Path) -> int:
    """Clients send one object each at the same time; the peak of the whole family, and of its serving processes."""
    body = folder / "body"
    with body.open("wb") as file:
        for _ in range(args.mib):
            file.write(os.urandom(MIB))
    with ours.running(folder) as endpoint:
        client = Client(endpoint)
        client.good("PUT", f"/{BUCKET}")
        client.close()
        family = Family(endpoint.pids)
        rest = family.pss()
        urls = [endpoint.url + endpoint.path("PUT", f"/{BUCKET}/{n}") for n in range(args.clients)]
        began = time.perf_counter()
        with family.peak() as peak:
            words = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Expect:", "-T", str(body)]
            running = [subprocess.Popen([*words, url], stdout=subprocess.PIPE) for url in urls]
            codes = [process.communicate()[0] for process in running]
        seconds = time.perf_counter() - began
    good = sum(code == b"200" for code in codes)
    rate = args.clients * args.mib * MIB / 1e6 / seconds
    print(f"{args.clients} clients, {args.mib} MiB each: {good} stored, {rate:.0f} MB/s")
    print(f"memory of all processes, the database's too: {rest / MIB:.0f} MiB at rest, {peak[0] / MIB:.0f} at most")
    return 0 if good == args.clients else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.copying", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("cp", "memory"))
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tls", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-copying-") as name:
        Path(name).chmod(0o711)
        return {"cp": compare, "memory": memory}[args.what](args, Path(name))


if __name__ == "__main__":
    sys.exit(main())
