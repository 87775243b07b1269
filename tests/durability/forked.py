"""Serving processes that are forked from their supervisor: there in a fraction of a second, not after all imports.

What they do is what real ones do; only their start is cheaper. Tests that end many processes have the time for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any


class Forked:
    """As much of subprocess.Popen as the supervisor uses."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        preexec_fn: Callable[[], None],
        **_: Any,
    ) -> None:
        import gateway.app
        import gateway.cli.child  # here, not earlier: the folder of the metrics has to be known first

        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                    signal.signal(number, signal.SIG_DFL)
                for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
                    if fd > 2 and fd not in pass_fds:
                        with contextlib.suppress(OSError):
                            os.close(fd)
                os.setsid()
                preexec_fn()
                os.environ.update(env)
                sys.argv = [gateway.cli.child.__file__, *command[3:]]
                code = gateway.cli.child.main()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (1e9 if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("child", timeout or 0.0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def apply() -> None:
    from gateway.cli import supervise

    module: Any = supervise
    module.subprocess = SimpleNamespace(
        Popen=Forked, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
