"""Operations for a sandboxed child that do what hostile content makes parsers do."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from processing.parsers import Operation, ParserError


def load() -> dict[str, Operation]:
    return {"do": do}


def do(params: Mapping[str, Any], data: memoryview) -> tuple[Any, bytes]:
    match bytes(data[:10]).strip():
        case b"echo":
            return {"pid": os.getpid()}, bytes(data)
        case b"hang":
            time.sleep(3600)
        case b"spin":
            while True:
                pass
        case b"die":
            os.kill(os.getpid(), signal.SIGKILL)
        case b"memory":
            return len(bytearray(4 << 30)), b""
        case b"recurse":
            do_again(0)
        case b"raise":
            raise RuntimeError("secret content")
        case b"word":
            raise ParserError("too-complex")
        case b"big":
            return None, bytes(1 << 20)
        case b"connect":
            with socket.create_connection(("127.0.0.1", params["port"]), timeout=2):
                return "connected", b""
        case b"write":
            path = Path(params["path"])
            path.write_bytes(b"x" * 10)
            return "written", b""
        case b"fork":
            return os.fork(), b""
        case b"thread":
            threading.Thread(target=int).start()
            return "started", b""
        case b"environ":
            return {"names": sorted(os.environ), "uid": os.geteuid(), "files": len(os.listdir("/proc/self/fd"))}, b""
    return None, b""


def do_again(depth: int) -> int:
    return do_again(depth + 1) + 1
