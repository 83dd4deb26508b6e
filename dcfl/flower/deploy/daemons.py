"""Processes of a deployment: their record in processes.json, which they are, how they are ended.

Every daemon has the path of the deployment's home in its environment, and whatever it starts
inherits that: so even a client process is found whose SuperNode was killed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import sys
import sysconfig
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from dcfl.errors import ConfigError, NetworkError
from dcfl.system.storage import read_data, write_whole
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
RECORD = "processes.json"


@dataclass(frozen=True)
class Daemon:
    """One process that `up` started."""

    name: str  # superlink, site-0, site-1, ...
    pid: int
    started: float | None  # pids are reused; pid and start time together are not. None: it ended
    partition: int | None = None
    node: str | None = None  # the id that the SuperLink gave it

    def __post_init__(self) -> None:
        if not (
            re.fullmatch(r"[^/\0]+", self.name) and type(self.pid) is int and 0 < self.pid < 2**31
        ):
            raise ValueError("a process without a name or a number")

    @property
    def alive(self) -> bool:
        return self.started is not None and start_of(self.pid) == self.started


@dataclass(frozen=True)
class Deployment:
    address: str
    tls: bool
    daemons: tuple[Daemon, ...] = ()

    @property
    def nodes(self) -> tuple[Daemon, ...]:
        return tuple(daemon for daemon in self.daemons if daemon.partition is not None)


def read_record(home: Path) -> Deployment:
    """What was started in a home; without daemons if there is no record."""
    path = home / RECORD
    try:
        record = json.loads(read_data(path))
        daemons = tuple(Daemon(**row) for row in record.pop("daemons"))
        return Deployment(**record, daemons=daemons)
    except FileNotFoundError:
        return Deployment(f"{LOOPBACK}:0", False)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}: damaged ({error}); delete it") from error


def add_to_record(home: Path, deployment: Deployment, *started: Daemon) -> Deployment:
    deployment = replace(deployment, daemons=(*deployment.daemons, *started))
    write_whole(home / RECORD, json.dumps(asdict(deployment), indent=2) + "\n", private=True)
    return deployment


def start_of(pid: int) -> float | None:
    """Seconds from the boot to the start of a living process, whatever the clock says since; None
    if there is none with this pid."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if _lives(process):
            return round(process.create_time() - psutil.boot_time(), 2)
    return None


def _lives(process: psutil.Process) -> bool:
    """An ended process stays in the table, as a zombie, until its parent has noticed."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def end_processes(
    home: Path, daemons: Sequence[Daemon], spare: Collection[int] = ()
) -> set[psutil.Process]:
    """Ask all processes of the deployment to end, and kill them after some seconds, until none is
    left."""
    asked: set[psutil.Process] = set()
    deadline = time.monotonic() + GRACE_SECONDS
    # Once its parent is gone, a child may be recognisable only by having been asked before.
    while alive := set(filter(_lives, asked)) | processes_of(home, daemons, spare):
        force = time.monotonic() > deadline
        if time.monotonic() > deadline + GRACE_SECONDS:
            pids = sorted(process.pid for process in alive)
            raise NetworkError(f"cannot be ended: process {', '.join(map(str, pids))}")
        for process in alive if force else alive - asked:
            with suppress(psutil.Error):
                process.kill() if force else process.terminate()
        asked |= alive
        time.sleep(0.1)
    return asked


def processes_of(
    home: Path, daemons: Sequence[Daemon], spare: Collection[int] = ()
) -> set[psutil.Process]:
    """The daemons and all processes that they started, without this one and its ancestors."""
    alive = {daemon.pid for daemon in daemons if daemon.alive}
    # A pid with another start time belongs to a stranger now.
    known = alive | {daemon.pid for daemon in daemons if start_of(daemon.pid) is None}
    found = {
        process
        for process in psutil.process_iter()
        if process.pid in alive or _belongs(process, home, known)
    }
    for process in list(found):
        with suppress(psutil.Error):
            found.update(process.children(recursive=True))
    this = psutil.Process()
    found -= {this, *this.parents()}
    return {process for process in found if process.pid not in spare and _lives(process)}


def _belongs(process: psutil.Process, home: Path, pids: Collection[int]) -> bool:
    """By its environment or, if that cannot be read: is it Flower's, and in the group or the care
    of one of these?"""
    try:
        return process.environ().get(MARKER) == str(home)
    except psutil.AccessDenied:  # another user's, or flower-superexec, which hides it
        with suppress(psutil.Error, OSError):
            command = " ".join(process.cmdline())
            if re.search(r"\b(flower|flwr)-", command):
                watched = re.search(r"--parent-pid (\d+)", command)
                return os.getpgid(process.pid) in pids or bool(watched and int(watched[1]) in pids)
    except psutil.Error:  # it has just ended
        pass
    return False
