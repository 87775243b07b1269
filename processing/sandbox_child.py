"""The program of a sandboxed child: take away what it does not need, then answer jobs until its socket closes.

Started by processing.sandbox as ``python -m processing.sandbox_child LIMITS`` with a socket as standard input.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from processing.frames import PREFIX, frame, header, header_length
from processing.parsers import Operation, ParserError

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # sched.h
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38  # sys/prctl.h
NOBODY = 65534
BUFFER = 256 << 10  # a frame of small jobs in one read


def main() -> None:
    limits = json.loads(sys.argv[1])
    sock = socket.socket(fileno=0)
    try:
        table: Mapping[str, Operation] = importlib.import_module(limits["table"]).load()
        hello = restrict(limits)
    except Exception as error:  # no content has been seen yet, so its text is safe
        sock.sendall(frame({"hello": {"error": f"{type(error).__name__}: {error}"}}))
        return
    sock.sendall(frame({"hello": hello}))
    with sock.makefile("rb", buffering=BUFFER) as stream:
        while prefix := stream.read(PREFIX.size):
            jobs = header(stream.read(header_length(prefix)))["jobs"]
            results, payloads = [], []
            for job in jobs:
                data = stream.read(job["length"])
                if len(data) < job["length"]:
                    return  # the source ended: nobody waits for an answer
                result, payload = answer(table[job["op"]], job["params"], memoryview(data), limits["cpu"])
                del data
                results.append(result)
                payloads.append(payload)
            sock.sendall(frame({"results": results}) + b"".join(payloads))


def answer(operation: Operation, params: Mapping[str, Any], data: memoryview, cpu: int) -> tuple[dict[str, Any], bytes]:
    """The result of one job and its payload. The limit of CPU time moves along: it holds for each job by itself."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + cpu + 1, resource.RLIM_INFINITY))
    try:
        value, payload = operation(params, data)
    except ParserError as error:
        return {"error": error.code}, b""
    except MemoryError:
        return {"error": "memory"}, b""
    except RecursionError:
        return {"error": "too-complex"}, b""
    except Exception as error:  # whatever a parser says of hostile bytes is an answer
        return {"error": "failed", "kind": type(error).__name__}, b""
    return {"value": value, "length": len(payload)}, payload


def restrict(limits: Mapping[str, int]) -> dict[str, Any]:
    """Give up network, privileges and resources, as far as the kernel lets us; says what was reached."""
    libc = ctypes.CDLL(None, use_errno=True)
    isolated = False
    if os.geteuid() == 0:
        isolated = libc.unshare(CLONE_NEWNET) == 0
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    if not isolated:  # an ordinary user gets an empty network by way of a user namespace, where the kernel allows it
        isolated = libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after setresuid, which clears it
    for name, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, limits["files"]),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_AS, limits["memory"]),
    ):
        _, hard = resource.getrlimit(name)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (bound, bound))
    return {"network": "none" if isolated else "host", "uid": os.geteuid(), "pid": os.getpid()}


if __name__ == "__main__":
    main()
