"""A SuperLink and SuperNodes on this machine for trying out, and runs on any SuperLink.

Everything that `up` starts carries the home's path in its environment, and what it starts in turn
inherits that: this is how `down` finds even a client process whose SuperNode was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dcfl.errors import ConfigError, NetworkError, require
from dcfl.flower import OFFLINE
from dcfl.storage import replacing, storage

MARKER = "DCFL_FLOWER_HOME"
NAME = "dcfl"  # of the connection, in config.toml
LOOPBACK = "127.0.0.1"
PATIENCE = 5.0  # seconds between asking a process to end and ending it
_PROC = Path("/proc")
_RECORD = "processes.json"
_CONFIG_HEAD = "# Written by dcfl for its own calls of flwr; changes are lost."
_ADDRESS = re.compile(r"[A-Za-z0-9._-]+:[0-9]{1,5}|\[[0-9A-Fa-f:]+\]:[0-9]{1,5}")
_FRAME = re.compile("[─│╭╮╰╯]")  # flwr frames its errors
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Connection:
    """How to reach a SuperLink: this machine's own or any other."""

    address: str  # host:port
    flwr_home: Path  # a folder of ours, never the user's own ~/.flwr
    root_certificate: Path | None = None  # None: the system's authorities
    insecure: bool = False

    def __post_init__(self) -> None:
        known = _ADDRESS.fullmatch(self.address) is not None
        require(known, f"SuperLink address {self.address!r}: give host:port")
        both = self.insecure and self.root_certificate is not None
        require(not both, "a SuperLink is either insecure or has a root certificate, not both")


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
        return _started(self.pid) == self.started


@dataclass(frozen=True)
class Deployment:
    """What `up` started, as it stands in processes.json."""

    address: str
    tls: bool
    daemons: tuple[Daemon, ...] = ()

    @property
    def nodes(self) -> tuple[Daemon, ...]:
        return tuple(daemon for daemon in self.daemons if daemon.partition is not None)


@dataclass(frozen=True)
class NodeStatus:
    partition: int
    pid: int
    alive: bool
    online: bool  # as the SuperLink sees it, up to a minute late
    node: str | None


@dataclass(frozen=True)
class RunStatus:
    run: int
    status: str


@dataclass(frozen=True)
class Status:
    address: str
    tls: bool
    alive: bool  # the SuperLink
    nodes: tuple[NodeStatus, ...] = ()
    runs: tuple[RunStatus, ...] = ()  # the newest first


def up(
    home: Path, sites: int, tls: bool = False, node_configs: Sequence[str] = (), wait: float = 120.0
) -> Connection:
    """Start a SuperLink and its sites; all are online when this returns, or nothing is left."""
    require(sites >= 1, f"{sites} sites: at least one is needed")
    fits = len(node_configs) in (0, sites)
    require(fits, f"{len(node_configs)} node configs for {sites} sites: give one for each or none")
    for text in node_configs:
        _check_node_config(text)
    home = _make_home(home)
    with _alone(home):
        if any(daemon.alive for daemon in _read(home).daemons):
            raise ConfigError(f"{home}: a deployment is running; `dcfl flower down` ends it")
        _end(home)  # leftovers of one that was killed
        try:
            return _start_all(home, sites, tls, node_configs, time.monotonic() + wait)
        except BaseException:
            down(home)
            raise


def down(home: Path) -> int:
    """End what `up` started and all that came of it; how many processes that were."""
    home = home.resolve()
    superlink = {daemon.pid for daemon in _read(home).daemons if daemon.partition is None}
    # The SuperLink last: a SuperNode takes its leave from it.
    ended = _end(home, spare=superlink) | _end(home)
    (home / _RECORD).unlink(missing_ok=True)
    return len(ended)


def connection(home: Path) -> Connection:
    """The SuperLink that `up` started in this home."""
    home = home.resolve()
    deployment = _read(home)
    if not deployment.daemons:
        raise ConfigError(f"{home}: no deployment here; `dcfl flower up` starts one")
    return _connection(home, deployment)


def status(home: Path) -> Status:
    """Who is alive, who is online, and the runs."""
    link = connection(home)
    deployment = _read(home.resolve())
    alive = all(daemon.alive for daemon in deployment.daemons if daemon.partition is None)
    online = _online(link) if alive else set()
    nodes = tuple(
        NodeStatus(node.partition, node.pid, node.alive, node.node in online, node.node)
        for node in deployment.nodes
        if node.partition is not None
    )
    return Status(link.address, deployment.tls, alive, nodes, _runs(link) if alive else ())


def submit(link: Connection, bundle: Path, run_config: Mapping[str, str]) -> int:
    """Submit a bundle; its run id. The run goes on without us."""
    from dcfl.config import to_toml

    _prepare_calls(link)
    with tempfile.NamedTemporaryFile("w", suffix=".toml", dir=link.flwr_home) as file:
        file.write(to_toml(run_config) + "\n")
        file.flush()
        answer = _ask(link, "run", str(bundle.resolve()), NAME, "--run-config", file.name)
    return int(answer["run-id"])


def run_status(link: Connection, run: int) -> str:
    """One of pending, starting, running, finished:completed, finished:failed, finished:stopped."""
    return _ask_runs(link, "--run-id", str(run))[0].status


def stop(link: Connection, run: int) -> None:
    """Stop a run; one that is finished stays as it is."""
    if not run_status(link, run).startswith("finished"):
        _ask(link, "stop", str(run), NAME)


def log(link: Connection, run: int, wait: float = 15.0) -> str:
    """What the server side of a run has written so far; empty when there is nothing yet."""
    _prepare_calls(link)
    command = [_script("flwr"), "log", str(run), NAME, "--show"]
    try:
        done = _call(link, command, wait)
    except subprocess.TimeoutExpired:  # flwr waits for the first line
        return ""
    if done.returncode != 0:
        raise _refusal(link, _plain(done.stderr))
    return _plain(done.stdout).removeprefix(f"Using SuperLink: {NAME} ({link.address})\n")


def _runs(link: Connection) -> tuple[RunStatus, ...]:
    return _ask_runs(link, "--limit", "20")


def _ask_runs(link: Connection, *words: str) -> tuple[RunStatus, ...]:
    answer = _ask(link, "ls", NAME, *words)
    return tuple(RunStatus(int(row["run-id"]), str(row["status"])) for row in answer["runs"])


def _online(link: Connection) -> set[str]:
    answer = _ask(link, "supernode", "list", NAME)
    return {str(node["node-id"]) for node in answer["nodes"] if node["status"] == "online"}


def _ask(link: Connection, *words: str, wait: float = 60.0) -> dict[str, Any]:
    """Call flwr and read its JSON answer; what it refuses is said in one line."""
    _prepare_calls(link)
    try:
        done = _call(link, [_script("flwr"), *words, "--format", "json"], wait)
    except subprocess.TimeoutExpired:
        message = f"SuperLink {link.address}: no answer to `flwr {words[0]}` within {wait:.0f} s"
        raise NetworkError(message) from None
    text = _plain(done.stdout)
    try:
        answer: dict[str, Any] = json.loads(text[text.index("{") :])
    except ValueError:
        detail = _last_line(done.stdout + done.stderr)
        raise NetworkError(f"SuperLink {link.address}: `flwr {words[0]}`: {detail}") from None
    if not answer.get("success"):
        raise _refusal(link, str(answer.get("error-message", "refused")))
    return answer


def _refusal(link: Connection, message: str) -> Exception:
    text = " ".join(_FRAME.sub(" ", message).split())
    if "SuperLink is unavailable" in text:
        reason = "cannot be reached, or its certificate is not from the given authority"
        return NetworkError(f"SuperLink {link.address}: {reason}")
    # What the SuperLink says follows its code; flwr's own chatter stands before it.
    said = re.split(r"\[code: [0-9]+\] ", text)[-1]
    return ConfigError(f"SuperLink {link.address}: {said}")


def _call(
    link: Connection, command: Sequence[str], wait: float
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command,
        env=_environment(link.flwr_home.resolve()),
        cwd=link.flwr_home,  # neutral, as for the daemons
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=wait,
        check=False,
    )


def _prepare_calls(link: Connection) -> None:
    """Write the connection where flwr looks for it."""
    path = link.flwr_home / "config.toml"
    text = _config_text(link)
    with storage(path):
        link.flwr_home.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.read_text(encoding="utf-8") if path.exists() else ""
    if found and not found.startswith(_CONFIG_HEAD):
        raise ConfigError(f"{path}: not written by dcfl; give it a Flower home of its own")
    if found != text:
        _write_private(path, text)


def _config_text(link: Connection) -> str:
    lines = [_CONFIG_HEAD, "[superlink]", f'default = "{NAME}"', f"[superlink.{NAME}]"]
    lines.append(f'address = "{link.address}"')
    if link.root_certificate is not None:
        path = json.dumps(str(link.root_certificate.resolve()), ensure_ascii=False)
        lines.append(f"root-certificates = {path}")
    lines.append(f"insecure = {str(link.insecure).lower()}")
    return "\n".join(lines) + "\n"


def _script(name: str) -> str:
    """A console script of this Python environment, whatever PATH says."""
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if (folder / name).exists():
            return str(folder / name)
    raise ConfigError(f"{name} is not installed here: pip install 'dcfl[flower]'")


def _environment(flwr_home: Path, home: Path | None = None) -> dict[str, str]:
    # Inherited settings of Flower's could open more ports, or other databases.
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
    # Flower starts its helpers by their bare names.
    scripts = str(Path(_script("flwr")).parent)
    own = {"PATH": os.pathsep.join([scripts, kept.get("PATH", os.defpath)])}
    own |= {"FLWR_HOME": str(flwr_home), **_no_proxy(kept), **OFFLINE}
    if home is not None:
        own[MARKER] = str(home)
        own["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.25"  # a message waits less for its process
    return {**kept, **own}


def _no_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """What talks on loopback must not be sent through a proxy."""
    names = ("NO_PROXY", "no_proxy")
    given = [environment[name] for name in names if environment.get(name)]
    return dict.fromkeys(names, ",".join([*given, LOOPBACK, "localhost"]))


def _plain(text: bytes) -> str:
    return _ANSI.sub("", text.decode("utf-8", errors="replace"))


def _last_line(text: bytes) -> str:
    lines = [line.strip() for line in _FRAME.sub(" ", _plain(text)).splitlines()]
    told = [line for line in lines if line]
    grave = [line for line in told if not re.match(r"\S* ?(INFO|WARNING)\b", line)]
    return (grave or told or ["no word of why"])[-1]


def _start_all(
    home: Path, sites: int, tls: bool, node_configs: Sequence[str], deadline: float
) -> Connection:
    superlink_port, *node_ports = _free_ports(sites + 1)
    deployment = Deployment(f"{LOOPBACK}:{superlink_port}", tls)
    if tls:
        _make_missing_keys(home, sites)
    for leftover in home.glob("superlink.db*"):
        leftover.unlink()  # Flower does not resume runs, and old nodes would be listed for ever
    superlink = _start(home, "superlink", _superlink_command(home, superlink_port, tls))
    deployment = _write(home, deployment, superlink)
    link = _connection(home, deployment)
    _wait_until(lambda: _listening(superlink_port), home, deployment, deadline)
    for index, port in enumerate(node_ports):
        if tls:
            _ask(link, "supernode", "register", str(home / "keys" / f"site-{index}.pub"), NAME)
        own = node_configs[index] if node_configs else ""
        command = _supernode_command(home, deployment, index, port, sites, own)
        node = replace(_start(home, f"site-{index}", command), partition=index)
        deployment = _write(home, deployment, node)
    _wait_until(lambda: _all_online(home, link, deployment), home, deployment, deadline)
    named = tuple(replace(node, node=_node_id(home, node)) for node in deployment.nodes)
    _write(home, replace(deployment, daemons=(superlink,)), *named)
    return link


def _superlink_command(home: Path, port: int, tls: bool) -> list[str]:
    keys = home / "keys"
    security = ["--insecure"]
    if tls:
        security = ["--ssl-ca-certfile", str(keys / "ca.crt")]
        security += ["--ssl-certfile", str(keys / "server.pem")]
        security += ["--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"]
    return [
        *(_script("flower-superlink"), "--host", LOOPBACK, "--port", str(port)),
        *("--disable-runtime-dependency-installation", "--database", str(home / "superlink.db")),
        *security,
    ]


def _supernode_command(
    home: Path, deployment: Deployment, index: int, port: int, sites: int, own: str
) -> list[str]:
    security = ["--insecure"]
    if deployment.tls:
        security = ["--root-certificates", str(home / "keys" / "ca.crt")]
        security += ["--auth-supernode-private-key", str(home / "keys" / f"site-{index}")]
    memories = home / "memories" / f"site-{index}"
    memories.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The quote at the end matters: Flower takes a config that ends in .toml for a file.
    config = f'{own} partition-id={index} num-partitions={sites} memories="{memories}"'
    return [
        *(_script("flower-supernode"), "--superlink", deployment.address),
        *("--host", LOOPBACK, "--port", str(port), "--node-config", config.strip()),
        *security,
    ]


def _check_node_config(text: str) -> None:
    pair = r"""([A-Za-z0-9_-]+)=("[^"]*"|'[^']*'|[^\s"']+)"""
    hint = "give key=value pairs with strings in quotes"
    require(not re.sub(pair, "", text).strip(), f"node config {text!r}: {hint}")
    pairs = re.findall(pair, text)
    try:
        values = tomllib.loads("\n".join(f"{key} = {value}" for key, value in pairs))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"node config {text!r}: {hint} ({error})") from None
    taken = values.keys() & {"partition-id", "num-partitions", "memories"}
    require(not taken, f"node config {text!r}: {', '.join(taken)} is set by `dcfl flower up`")


def _start(home: Path, name: str, command: Sequence[str]) -> Daemon:
    with (home / "logs" / f"{name}.log").open("wb") as log_file:
        process = subprocess.Popen(
            command,
            env=_environment(home / "flwr", home),
            cwd=home / "work",  # a module in the working folder would shadow the bundle's
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is not meant for it
        )
    started = _started(process.pid)
    process.returncode = 0  # it outlives us: Popen is not to warn that nobody waits for it
    return Daemon(name, process.pid, started or "ended")


def _make_missing_keys(home: Path, sites: int) -> None:
    from dcfl.flower.keys import make_keys, missing_keys

    names = [f"site-{index}" for index in range(sites)]
    if missing_keys(home / "keys", names):
        make_keys(home / "keys", names)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:  # all bound at once, so that all differ
            each.bind((LOOPBACK, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


def _node_id(home: Path, node: Daemon) -> str | None:
    """The id that the SuperLink gave to a SuperNode, which only its log tells."""
    text = _plain((home / "logs" / f"{node.name}.log").read_bytes())
    found = re.findall(r"SuperNode ID: (\d+)", text)
    return str(found[-1]) if found else None


def _all_online(home: Path, link: Connection, deployment: Deployment) -> bool:
    ids = {_node_id(home, node) for node in deployment.nodes}
    return None not in ids and ids <= _online(link)


def _wait_until(
    done: Callable[[], bool], home: Path, deployment: Deployment, deadline: float
) -> None:
    while not done():
        for daemon in deployment.daemons:
            if not daemon.alive:
                raise NetworkError(f"{daemon.name} ended: {_why(home, daemon)}")
        if time.monotonic() > deadline:
            nameless = [node for node in deployment.nodes if _node_id(home, node) is None]
            late = (nameless or deployment.daemons)[0]
            raise NetworkError(f"{late.name} did not come up in time: {_why(home, late)}")
        time.sleep(0.2)


def _why(home: Path, daemon: Daemon) -> str:
    path = home / "logs" / f"{daemon.name}.log"
    text = path.read_bytes()
    said = re.search(r"Exit Code: \d+\n(.+)\n(.*)", _plain(text))  # Flower's own farewell
    reason = f"{said[1]} {said[2]}" if said else _last_line(text)
    return f"{reason} (all of it in {path})"


def _make_home(home: Path) -> Path:
    home = home.resolve()
    # Flower reads node configs with a pattern that knows no escapes.
    require(not set('"\\\n') & set(str(home)), f"{home}: a quote or backslash in the path")
    with storage(home):
        if home.is_dir() and any(home.iterdir()) and not (home / "lock").exists():
            raise ConfigError(f"{home}: not empty and not from `dcfl flower up`; give a new folder")
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)  # the logs and the database tell much
        (home / "lock").touch()
        for name in ("flwr", "logs", "work", "memories"):
            (home / name).mkdir(mode=0o700, exist_ok=True)
    return home


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    with (home / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{home}: another `dcfl flower up` is at work here") from None
        yield


def _connection(home: Path, deployment: Deployment) -> Connection:
    certificate = home / "keys" / "ca.crt" if deployment.tls else None
    return Connection(deployment.address, home / "flwr", certificate, not deployment.tls)


def _read(home: Path) -> Deployment:
    """What stands in processes.json; nothing when there is none."""
    path = home / _RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        daemons = tuple(Daemon(**row) for row in record.pop("daemons"))
        return Deployment(**record, daemons=daemons)
    except FileNotFoundError:
        return Deployment(f"{LOOPBACK}:0", False)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: damaged ({error}); delete it") from error


def _write(home: Path, deployment: Deployment, *more: Daemon) -> Deployment:
    deployment = replace(deployment, daemons=(*deployment.daemons, *more))
    _write_private(home / _RECORD, json.dumps(asdict(deployment), indent=2) + "\n")
    return deployment


def _write_private(path: Path, text: str) -> None:
    with replacing(path) as partial:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)


@dataclass(frozen=True)
class _Process:
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


def _end(home: Path, spare: Set[int] = frozenset()) -> set[int]:
    """Ask all of ours to end, after some seconds end them; again until none is left."""
    asked: dict[int, str] = {}
    deadline = time.monotonic() + PATIENCE
    while found := _still_there(asked) | _ours(home, spare):
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
    return {pid: started for pid, started in asked.items() if _started(pid) == started}


def _ours(home: Path, spare: Set[int] = frozenset()) -> dict[int, str]:
    """The processes that `up` started and all that came of them, with when they began."""
    daemons = _read(home).daemons
    _reap(daemons)
    table = _processes(home)
    alive = {each.pid for each in daemons if _is(table, each)}
    # A pid that lives on with another start time has gone to a stranger.
    known = alive | {each.pid for each in daemons if each.pid not in table}
    marked = {each.pid for each in table.values() if each.marked or each.belongs_to(known)}
    ours = _with_children(table, alive | marked) - _lineage(table, os.getpid()) - spare
    return {pid: table[pid].started for pid in ours}


def _is(table: Mapping[int, _Process], daemon: Daemon) -> bool:
    return daemon.pid in table and table[daemon.pid].started == daemon.started


def _with_children(table: Mapping[int, _Process], found: set[int]) -> set[int]:
    while more := {each.pid for each in table.values() if each.parent in found} - found:
        found = found | more
    return found


def _lineage(table: Mapping[int, _Process], pid: int) -> set[int]:
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


def _started(pid: int) -> str | None:
    """When a living process began; None when there is none with this pid."""
    found = _from_proc(pid, b"") if _PROC.is_dir() else _from_ps().get(pid)
    return found.started if found else None


def _processes(home: Path) -> dict[int, _Process]:
    if not _PROC.is_dir():
        return _from_ps()
    mark = f"{MARKER}={home}".encode()
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    found = [_from_proc(pid, mark) for pid in pids]
    return {process.pid: process for process in found if process is not None}


def _from_proc(pid: int, mark: bytes) -> _Process | None:
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
    started = f"{boot} {fields[19]}"  # ticks since the boot
    return _Process(
        pid, int(fields[1]), int(fields[2]), started, command, _marked(folder / "environ", mark)
    )


def _marked(environ: Path, mark: bytes) -> bool | None:
    try:
        return mark in environ.read_bytes().split(b"\0")
    except OSError:  # another user's, or flower-superexec, which hides it from all but root
        return None


def _from_ps() -> dict[int, _Process]:
    columns = ["-o", "pid=,ppid=,pgid=,stat=,lstart=,command="]
    program = shutil.which("ps") or "/bin/ps"
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run([program, "-A", *columns], env=environment, capture_output=True)
    table = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        pid, parent, group, state, *rest = line.split(maxsplit=9)
        if not state.startswith("Z") and len(rest) == 6:  # five words of date, the command
            started = " ".join(rest[:5])
            table[int(pid)] = _Process(int(pid), int(parent), int(group), started, rest[5], None)
    return table
