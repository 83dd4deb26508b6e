"""Which processes belong to a deployment, and how they are ended.

Every daemon has the path of the deployment's home in its environment, and whatever it starts
inherits that: so even a client process is found whose SuperNode was killed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from dcfl.errors import ConfigError, NetworkError
from dcfl.system.wording import install_command

POLL = ("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.25")  # seconds that a message waits for its process


def script(name: str) -> str:
    """A console script of this Python environment, whatever PATH says."""
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if (folder / name).exists():
            return str(folder / name)
    raise ConfigError(f"{name} is not installed here: {install_command('flower')}")


LOOPBACK = "127.0.0.1"
ANYWHERE = "0.0.0.0"  # all of this machine's addresses, as a proxy listens

OTHER_PORT = "set another port in [superlink] of"  # then the file


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:  # all bound at once, so that all differ
            free.bind((LOOPBACK, 0))
        return [int(free.getsockname()[1]) for free in sockets]


def in_use(port: int, host: str = LOOPBACK) -> bool:
    """Whether a program listens there already. A port that this user may not have is not in use:
    the program that wants it says so better."""
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as daemons do
        try:
            attempt.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def require_free(port: int, remedy: str, host: str = LOOPBACK) -> None:
    if in_use(port, host):
        raise NetworkError(f"port {port} is in use by another program: {remedy}")


def listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


MARKER = "DCFL_FLOWER_HOME"
GRACE_SECONDS = 5.0  # between asking a process to end and killing it
_PROC = Path("/proc")


@dataclass(frozen=True)
class Daemon:
    """One process that `up` started."""

    name: str  # superlink, site-0, site-1, ...
    pid: int
    started: str  # pids are reused; pid and start time together are not
    partition: int | None = None
    node: str | None = None  # the id that the SuperLink gave it

    @property
    def alive(self) -> bool:
        return start_of(self.pid) == self.started


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    group: int
    started: str
    command: str
    marked: bool | None  # None: its environment cannot be read

    def belongs_to(self, pids: Set[int]) -> bool:
        """If its environment cannot be read: is it Flower's, and in the group or the care of one of
        these?"""
        if self.marked is not None or not re.search(r"\b(flower|flwr)-", self.command):
            return False
        watched = re.search(r"--parent-pid (\d+)", self.command)
        return self.group in pids or (watched is not None and int(watched[1]) in pids)


def end_processes(home: Path, daemons: Sequence[Daemon], spare: Set[int] = frozenset()) -> set[int]:
    """Ask all processes of the deployment to end, and kill them after some seconds, until none is
    left."""
    asked: dict[int, str] = {}
    deadline = time.monotonic() + GRACE_SECONDS
    while alive := _still_there(asked) | processes_of(home, daemons, spare):
        force = time.monotonic() > deadline
        if time.monotonic() > deadline + GRACE_SECONDS:
            raise NetworkError(f"cannot be ended: process {', '.join(map(str, sorted(alive)))}")
        for pid in alive if force else alive.keys() - asked.keys():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if force else signal.SIGTERM)
        asked |= alive
        time.sleep(0.1)
    return set(asked)


def _still_there(asked: Mapping[int, str]) -> dict[int, str]:
    """Once its parent is gone, a child may be recognisable only by having been asked before."""
    return {pid: started for pid, started in asked.items() if start_of(pid) == started}


def processes_of(
    home: Path, daemons: Sequence[Daemon], spare: Set[int] = frozenset()
) -> dict[int, str]:
    """The start times, by pid, of the daemons and of all processes that they started."""
    _reap(daemons)
    table = process_table(home)
    alive = {daemon.pid for daemon in daemons if _is_in(table, daemon)}
    # A pid with another start time belongs to a stranger now.
    known = alive | {daemon.pid for daemon in daemons if daemon.pid not in table}
    marked = {
        process.pid for process in table.values() if process.marked or process.belongs_to(known)
    }
    pids = with_children(table, alive | marked) - _lineage(table, os.getpid()) - spare
    return {pid: table[pid].started for pid in pids}


def _is_in(table: Mapping[int, Process], daemon: Daemon) -> bool:
    return daemon.pid in table and table[daemon.pid].started == daemon.started


def with_children(table: Mapping[int, Process], pids: set[int]) -> set[int]:
    while more := {child.pid for child in table.values() if child.parent in pids} - pids:
        pids = pids | more
    return pids


def _lineage(table: Mapping[int, Process], pid: int) -> set[int]:
    """A process and its ancestors, which it must not end."""
    lineage = {pid}
    while pid in table and table[pid].parent not in lineage:
        pid = table[pid].parent
        lineage.add(pid)
    return lineage


def _reap(daemons: Sequence[Daemon]) -> None:
    """A process that has ended stays in the table until its parent, perhaps this one, waits."""
    for daemon in daemons:
        with suppress(ChildProcessError):
            os.waitpid(daemon.pid, os.WNOHANG)


def start_of(pid: int) -> str | None:
    """When a living process started; None if there is none with this pid."""
    process = _from_proc(pid, b"") if _PROC.is_dir() else _from_ps().get(pid)
    return process.started if process else None


def process_table(home: Path) -> dict[int, Process]:
    if not _PROC.is_dir():
        return _from_ps()
    mark = f"{MARKER}={home}".encode()
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    processes = [_from_proc(pid, mark) for pid in pids]
    return {process.pid: process for process in processes if process is not None}


def _from_proc(pid: int, mark: bytes) -> Process | None:
    folder = _PROC / str(pid)
    try:
        # The name, in parentheses, may hold spaces and parentheses of its own.
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        command = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    if fields[0] in "ZX":
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        started=f"{boot} {fields[19]}",  # ticks since the boot
        command=command,
        marked=_marked(folder / "environ", mark),
    )


def _marked(environ: Path, mark: bytes) -> bool | None:
    try:
        return mark in environ.read_bytes().split(b"\0")
    except OSError:  # another user's, or flower-superexec, which hides it from all but root
        return None


def _from_ps() -> dict[int, Process]:
    columns = ["-o", "pid=,ppid=,pgid=,stat=,lstart=,command="]
    program = shutil.which("ps") or "/bin/ps"
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run([program, "-A", "-ww", *columns], env=environment, capture_output=True)
    table = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        pid, parent, group, state, *rest = line.split(maxsplit=9)
        if not state.startswith("Z") and len(rest) == 6:  # five words of date, the command
            table[int(pid)] = Process(
                pid=int(pid),
                parent=int(parent),
                group=int(group),
                started=" ".join(rest[:5]),
                command=rest[5],
                marked=None,
            )
    return table
