"""Which processes belong to a deployment, and their end.

Everything that is started carries the home's path in its environment, and what it starts in turn
inherits that: this is how even a client process is found whose SuperNode was killed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dcfl.errors import NetworkError

MARKER = "DCFL_FLOWER_HOME"
PATIENCE = 5.0  # seconds between asking a process to end and ending it
_PROC = Path("/proc")


@dataclass(frozen=True)
class Daemon:
    """One process that `up` started."""

    name: str  # superlink, site-0, site-1, ...
    pid: int
    started: str  # with the pid it names one process for ever, a pid alone does not
    partition: int | None = None
    node: str | None = None  # the SuperLink's name for it

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
        """For want of the mark: is it Flower's, and of a group or under the watch of these?"""
        if self.marked is not None or not re.search(r"\b(flower|flwr)-", self.command):
            return False
        watched = re.search(r"--parent-pid (\d+)", self.command)
        return self.group in pids or (watched is not None and int(watched[1]) in pids)


def end(home: Path, daemons: Sequence[Daemon], spare: Set[int] = frozenset()) -> set[int]:
    """Ask all of ours to end, after some seconds end them; again until none is left."""
    asked: dict[int, str] = {}
    deadline = time.monotonic() + PATIENCE
    while found := _still_there(asked) | ours(home, daemons, spare):
        force = time.monotonic() > deadline
        if time.monotonic() > deadline + PATIENCE:
            raise NetworkError(f"cannot be ended: process {', '.join(map(str, sorted(found)))}")
        for pid in found if force else found.keys() - asked.keys():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if force else signal.SIGTERM)
        asked |= found
        time.sleep(0.1)
    return set(asked)


def _still_there(asked: Mapping[int, str]) -> dict[int, str]:
    """Once its parent is gone, nothing but having been asked may tell that a child is ours."""
    return {pid: began for pid, began in asked.items() if start_of(pid) == began}


def ours(home: Path, daemons: Sequence[Daemon], spare: Set[int] = frozenset()) -> dict[int, str]:
    """The processes that `up` started and all that came of them, with when they began."""
    _reap(daemons)
    table = processes(home)
    alive = {each.pid for each in daemons if _is(table, each)}
    # A pid that lives on with another start time has gone to a stranger.
    known = alive | {each.pid for each in daemons if each.pid not in table}
    marked = {each.pid for each in table.values() if each.marked or each.belongs_to(known)}
    found = with_children(table, alive | marked) - _lineage(table, os.getpid()) - spare
    return {pid: table[pid].started for pid in found}


def _is(table: Mapping[int, Process], daemon: Daemon) -> bool:
    return daemon.pid in table and table[daemon.pid].started == daemon.started


def with_children(table: Mapping[int, Process], found: set[int]) -> set[int]:
    while more := {each.pid for each in table.values() if each.parent in found} - found:
        found = found | more
    return found


def _lineage(table: Mapping[int, Process], pid: int) -> set[int]:
    """A process and its ancestors: never to be ended by their own descendant."""
    found = {pid}
    while pid in table and table[pid].parent not in found:
        pid = table[pid].parent
        found.add(pid)
    return found


def _reap(daemons: Sequence[Daemon]) -> None:
    """What ended stays in the table until its parent, perhaps this process, has looked."""
    for daemon in daemons:
        with suppress(ChildProcessError):
            os.waitpid(daemon.pid, os.WNOHANG)


def start_of(pid: int) -> str | None:
    """When a living process began; None when there is none with this pid."""
    found = _from_proc(pid, b"") if _PROC.is_dir() else _from_ps().get(pid)
    return found.started if found else None


def processes(home: Path) -> dict[int, Process]:
    if not _PROC.is_dir():
        return _from_ps()
    mark = f"{MARKER}={home}".encode()
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    found = [_from_proc(pid, mark) for pid in pids]
    return {process.pid: process for process in found if process is not None}


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
    began = f"{boot} {fields[19]}"  # ticks since the boot
    return Process(
        pid, int(fields[1]), int(fields[2]), began, command, _marked(folder / "environ", mark)
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
            began = " ".join(rest[:5])
            table[int(pid)] = Process(int(pid), int(parent), int(group), began, rest[5], None)
    return table
