"""Loads of large objects: curl for the streams, requests of our own for what moves no bytes."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from bench.endpoint import OURS, Client, Refused
from bench.outcome import Outcome, of_times
from bench.site import MIB, Site

CURL = ("curl", "-sS", "-o", "/dev/null", "-H", "Expect:", "--max-time", "900", "-w", "%{http_code} %{time_total}\n")
PART = 8 * MIB
LEAST_PART = 5 * MIB  # S3 user guide, "Amazon S3 multipart upload limits"
UPLOADERS = 8


def key_of(site: Site, stream: int) -> str:
    return f"/bench-large/{site.run}/{stream}"


def put(site: Site, streams: int) -> Outcome:
    """One object per stream, all at once. MB/s of all together."""
    words = []
    for stream in range(streams):
        key = key_of(site, stream)
        words.append(["-T", str(site.bodies.large(stream)), site.endpoint.url + site.endpoint.path("PUT", key)])
    return _curl(words, site.knobs.large)


def get(site: Site, streams: int) -> Outcome:
    """What put() with as many streams has left."""
    keys = [key_of(site, stream) for stream in range(streams)]
    return _curl([[site.endpoint.url + site.endpoint.path("GET", key)] for key in keys], site.knobs.large)


def _curl(jobs: Sequence[Sequence[str]], size: int) -> Outcome:
    start = time.monotonic()
    running = [
        subprocess.Popen([*CURL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for words in jobs
    ]
    said = [process.communicate() for process in running]
    seconds = time.monotonic() - start
    times, bad = [], []
    for process, (out, err) in zip(running, said, strict=True):
        status, _, taken = out.strip().partition(" ")
        if process.returncode == 0 and status.startswith("2"):
            times.append(float(taken))
        else:
            bad.append(f"{status} {err.strip()}"[:200])
    return of_times(len(times) * size / 1e6 / seconds, times, seconds, len(bad), "; ".join(sorted(set(bad))))


def ensure(site: Site, streams: int = 1) -> None:
    """The objects that get() and copy() read. Raises Refused."""
    client = Client(site.endpoint)
    for stream in range(streams):
        answer = client.call("HEAD", key_of(site, stream))
        if answer.status != 200 or answer.headers.get("content-length") != str(site.knobs.large):
            path = site.bodies.large(stream)
            with path.open("rb") as file:
                client.good("PUT", key_of(site, stream), body=file, length=site.knobs.large)
    client.close()
    site.settle()


def copy(site: Site) -> Outcome:
    """Server-side copy of a large object: milliseconds."""
    client = Client(site.endpoint)
    target = f"/bench-large/{site.run}/copy-{site.serial()}"
    start = time.monotonic()
    client.good("PUT", target, headers={"x-amz-copy-source": key_of(site, 0)})
    seconds = time.monotonic() - start
    found = client.good("HEAD", target).headers.get("content-length")
    client.call("DELETE", target)
    client.close()
    wrong = found != str(site.knobs.large)
    return of_times(seconds * 1000, [seconds], seconds, int(wrong), "the copy's size is wrong" if wrong else "")


def complete(site: Site) -> Outcome:
    """Completion of an upload with parts of 8 MiB: milliseconds. Sending the parts is not counted."""
    path, size = site.bodies.large(0), site.knobs.large

    def send(client: Client, key: str, upload: str, number: int) -> str:
        first = (number - 1) * PART
        with path.open("rb") as file:
            file.seek(first)
            body = file.read(min(PART, size - first))
        query = [("partNumber", str(number)), ("uploadId", upload)]
        return client.good("PUT", key, query, body=body).headers["etag"]

    return _completion(site, -(-size // PART), send)


def complete_many(site: Site) -> Outcome:
    """Completion of 10,000 parts, which were copied from a large object: milliseconds."""
    # Ours shares the bytes; others copy them.
    need = 0.0 if site.name == OURS else site.knobs.parts * LEAST_PART * 1.2
    free = shutil.disk_usage(site.folder).free
    if need > free:
        return of_times(float("nan"), [], 0.0, 0, f"skipped: may need {need / 1e9:.0f} GB, free are {free / 1e9:.0f}")
    places = max(1, site.knobs.large // LEAST_PART)
    source = key_of(site, 0)

    def send(client: Client, key: str, upload: str, number: int) -> str:
        first = (number - 1) % places * LEAST_PART
        last = min(first + LEAST_PART, site.knobs.large) - 1
        headers = {"x-amz-copy-source": source, "x-amz-copy-source-range": f"bytes={first}-{last}"}
        query = [("partNumber", str(number)), ("uploadId", upload)]
        body = client.good("PUT", key, query, headers=headers).body.decode()
        return between(body, "<ETag>", "</ETag>").replace("&quot;", '"').replace("&#34;", '"')

    return _completion(site, site.knobs.parts, send)


def _completion(site: Site, parts: int, send: Callable[[Client, str, str, int], str]) -> Outcome:
    key = f"/bench-large/{site.run}/parts-{site.serial()}"
    client = Client(site.endpoint)
    upload = between(client.good("POST", key, [("uploads", "")]).body.decode(), "<UploadId>", "</UploadId>")
    lanes = min(UPLOADERS, parts)

    def lane(number: int) -> list[tuple[int, str]]:
        own = Client(site.endpoint)
        done = [(part, send(own, key, upload, part)) for part in range(number + 1, parts + 1, lanes)]
        own.close()
        return done

    with ThreadPoolExecutor(lanes) as pool:
        etags = dict(pair for chunk in pool.map(lane, range(lanes)) for pair in chunk)
    site.settle()
    client.close()  # it may have been idle for too long
    start = time.monotonic()
    client.good("POST", key, [("uploadId", upload)], body=manifest(etags))
    seconds = time.monotonic() - start
    client.call("DELETE", key)
    client.close()
    return of_times(seconds * 1000, [seconds], seconds, note=f"{parts} parts")


def manifest(etags: dict[int, str]) -> bytes:
    """The body of CompleteMultipartUpload."""
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{etags[number]}</ETag></Part>" for number in sorted(etags)
    )
    return f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()


def between(text: str, start: str, end: str) -> str:
    """Raises Refused: it is not there."""
    _, found, rest = text.partition(start)
    if not found:
        raise Refused(f"no {start} in {text[:300]}")
    return rest.partition(end)[0]
