"""CPU that bodies cost the serving process, through the event loop and off it.

    python bench/bodies.py [MiB per measurement]

One process serves a file tier over loopback without a database; another sends and receives. What counts is CPU seconds
a GiB of the serving process alone, so that a busy machine does not matter. Each size moves the same number of bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import socket
import sys
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import uvloop

from gateway.http import offload as module
from gateway.http.body import Body
from gateway.http.listener import Listener
from gateway.http.offload import Offload
from gateway.http.pace import PaceLimits
from gateway.http.reply import Reply, send
from storage_tiers.file import FileTier
from storage_tiers.staging import Staging
from storage_tiers.tier import ByteSpan

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 4 * MIB, 8 * MIB, 16 * MIB, 256 * MIB)


def serve(pipe: Connection, folder: str) -> None:
    async def main() -> None:
        tier = FileTier("bench", Path(folder))
        await tier.start()
        staging = Staging({"bench": tier})
        limits, hands = PaceLimits(), Offload()
        module.SEND_LEAST = 1
        state: dict[str, Any] = {"on": True}

        async def handle(request: Any) -> Any:
            offload = hands if state["on"] else None
            if request.method == "GET":
                blob, offset, length = request.path[1:].split("/")
                reader = await tier.open(UUID(blob), ByteSpan(int(offset), int(length)))
                return await send(request, Reply(200, content=reader), "r", "h", limits, offload=offload)
            body = Body(request, length=request.content_length, limits=limits, offload=offload)
            body.lend()
            blob_id = uuid4()
            sink = await tier.begin(blob_id)
            md5, sha = hashlib.md5(), hashlib.sha256()
            await staging.receive(aiter(body), sink, (md5, sha))
            body.close()
            await sink.commit()
            if request.path != "/keep":
                await tier.delete(blob_id)
            return await send(request, Reply(200, [("ETag", md5.hexdigest())], str(blob_id).encode()), "r", "h", limits)

        listener = Listener(handle)
        await listener.start([socket.create_server(("127.0.0.1", 0))])
        loop = asyncio.get_running_loop()
        pipe.send(listener.ports[0])
        while (word := await loop.run_in_executor(None, pipe.recv)) is not None:
            state["on"] = word
            used = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send(used.ru_utime + used.ru_stime)

    uvloop.run(main())


def exchange(sock: socket.socket, head: bytes, size: int, block: bytes) -> bytes:
    sock.sendall(head)
    while size > 0:
        sock.sendall(block[:size] if size < len(block) else block)
        size -= len(block)
    return receive(sock)


SCRATCH = bytearray(4 * MIB)


def receive(sock: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        head += sock.recv(65536)
    head, _, rest = head.partition(b"\r\n\r\n")
    left = int(head.lower().split(b"content-length: ")[1].split(b"\r")[0]) - len(rest)
    while left > 0:
        left -= (got := sock.recv_into(SCRATCH, min(left, len(SCRATCH))))
        assert got
    return rest


def main() -> None:
    total = int(sys.argv[1]) * MIB if len(sys.argv) > 1 else 1024 * MIB
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        process = context.Process(target=serve, args=(theirs, folder), daemon=True)
        process.start()
        sock = socket.create_connection(("127.0.0.1", ours.recv()))
        block = os.urandom(4 * MIB)
        biggest = SIZES[-1]
        head = f"PUT /keep HTTP/1.1\r\nHost: x\r\nContent-Length: {biggest}\r\n\r\n"
        blob = exchange(sock, head.encode(), biggest, block)
        for method, sizes in (("GET", SIZES), ("PUT", SIZES[4:])):
            for size in sizes:
                row = [f"{method} {size // KIB:>7} KiB"]
                for on in (False, True):
                    ours.send(on)
                    before, began, count = ours.recv(), time.monotonic(), max(1, min(total, size * 2000) // size)
                    for number in range(count):
                        if method == "GET":
                            offset = number * size % (biggest - size + 1)
                            sock.sendall(f"GET /{blob.decode()}/{offset}/{size} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                            receive(sock)
                        else:
                            head = f"PUT /drop HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
                            exchange(sock, head.encode(), size, block)
                    ours.send(on)
                    cpu, wall = ours.recv() - before, time.monotonic() - began
                    moved = count * size / (1 << 30)
                    where, rate = "off" if on else "on", moved * 1024 / wall
                    row.append(f"{where} the loop {cpu / moved:5.2f} s/GiB {rate:6.0f} MiB/s")
                print("   ".join(row), flush=True)
        ours.send(None)
        process.terminate()


if __name__ == "__main__":
    main()
