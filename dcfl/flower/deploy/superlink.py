"""What is asked of a SuperLink: runs submitted, followed, stopped; nodes registered and online."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dcfl.errors import ConfigError, NetworkError, require
from dcfl.flower import OFFLINE
from dcfl.flower.deploy.daemons import LOOPBACK, MARKER, POLL, script
from dcfl.flower.roster import Roster, registered_fingerprint
from dcfl.system.storage import private_folder, storage, write_whole

CONNECTION_NAME = "dcfl"  # in config.toml
_CONFIG_HEAD = "# Written by dcfl for its own calls of flwr; changes are lost."
_ADDRESS = re.compile(r"[A-Za-z0-9._-]+:[0-9]{1,5}|\[[0-9A-Fa-f:]+\]:[0-9]{1,5}")
_FRAME = re.compile("[─│╭╮╰╯]")  # flwr frames its errors
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Connection:
    """How to reach a SuperLink: this machine's own or any other."""

    address: str  # host:port
    flwr_home: Path  # a folder of dcfl, never the user's own ~/.flwr
    root_certificate: Path | None = None  # None: the system's authorities
    insecure: bool = False

    def __post_init__(self) -> None:
        host_and_port(self.address)
        both = self.insecure and self.root_certificate is not None
        require(not both, "a SuperLink is either insecure or has a root certificate, not both")


def host_and_port(address: str) -> tuple[str, int]:
    known = _ADDRESS.fullmatch(address) is not None
    host, _, port = address.rpartition(":")
    fits = known and 0 < int(port) < 65536
    require(fits, f"SuperLink address {address!r}: give host:port")
    return host.strip("[]"), int(port)


@dataclass(frozen=True)
class RunStatus:
    run: int
    status: str
    submitted: str  # when, in UTC; empty: Flower does not say

    @property
    def words(self) -> str:
        return f"{self.submitted}  {self.status}  {self.run}"


def submit(link: Connection, bundle: Path, run_config: Mapping[str, str]) -> int:
    """Submit a bundle; returns its run id. The run needs this process no more."""
    from dcfl.config import to_toml  # it imports torch, which a question to a daemon needs not

    prepare_calls(link)
    with tempfile.NamedTemporaryFile("w", suffix=".toml", dir=link.flwr_home) as file:
        file.write(to_toml(run_config) + "\n")
        file.flush()
        answer = ask(link, "run", str(bundle.resolve()), CONNECTION_NAME, "--run-config", file.name)
    return int(answer["run-id"])


def run_status(link: Connection, run: int) -> str:
    """One of pending, starting, running, finished:completed, finished:failed, finished:stopped."""
    return _ask_runs(link, "--run-id", str(run))[0].status


def stop(link: Connection, run: int) -> None:
    """Stop a run; one that is finished stays as it is."""
    if not run_status(link, run).startswith("finished"):
        ask(link, "stop", str(run), CONNECTION_NAME)


def log(link: Connection, run: int) -> str:
    """What the server side of a run has written so far; empty if that is nothing yet."""
    prepare_calls(link)
    command = [script("flwr"), "log", str(run), CONNECTION_NAME, "--show"]
    try:
        done = _call(link, command, 60.0)  # a busy machine takes over 15 s
    except subprocess.TimeoutExpired:  # flwr waits for the first line
        return ""
    if done.returncode != 0:
        raise _refusal(link, plain(done.stderr))
    return plain(done.stdout).removeprefix(f"Using SuperLink: {CONNECTION_NAME} ({link.address})\n")


def newest_runs(link: Connection) -> tuple[RunStatus, ...]:
    """The last runs, the newest first: Flower has them in no order."""
    runs = _ask_runs(link, "--limit", "20")
    return tuple(sorted(runs, key=lambda run: run.submitted, reverse=True))


def _ask_runs(link: Connection, *options: str) -> tuple[RunStatus, ...]:
    answer = ask(link, "ls", CONNECTION_NAME, *options)
    return tuple(
        RunStatus(int(row["run-id"]), str(row["status"]), str(row.get("pending-at", "")))
        for row in answer["runs"]
    )


def online_nodes(link: Connection) -> set[str]:
    answer = ask(link, "supernode", "list", CONNECTION_NAME)
    return {str(node["node-id"]) for node in answer["nodes"] if node["status"] == "online"}


def ask(link: Connection, *arguments: str, wait: float = 60.0) -> dict[str, Any]:
    """Call flwr and read its JSON answer; a refusal becomes an error of one line."""
    prepare_calls(link)
    try:
        done = _call(link, [script("flwr"), *arguments, "--format", "json"], wait)
    except subprocess.TimeoutExpired:
        raise NetworkError(
            f"SuperLink {link.address}: no answer to `flwr {arguments[0]}` within {wait:.0f} s"
        ) from None
    text = plain(done.stdout)
    try:
        answer: dict[str, Any] = json.loads(text[text.index("{") :])
    except ValueError:
        detail = last_line(done.stdout + done.stderr)
        raise NetworkError(f"SuperLink {link.address}: `flwr {arguments[0]}`: {detail}") from None
    if not answer.get("success"):
        raise _refusal(link, str(answer.get("error-message", "refused")))
    return answer


def _refusal(link: Connection, message: str) -> Exception:
    text = " ".join(_FRAME.sub(" ", message).split())
    if "SuperLink is unavailable" in text:
        reason = "cannot be reached, or its certificate is not from the given authority"
        return NetworkError(f"SuperLink {link.address}: {reason}")
    # The SuperLink's reason follows its code; before that comes flwr's own text.
    reason = re.split(r"\[code: [0-9]+\] ", text)[-1]
    return ConfigError(f"SuperLink {link.address}: {reason}")


def _call(
    link: Connection, command: Sequence[str], wait: float
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command,
        env=environment(link.flwr_home.resolve()),
        cwd=link.flwr_home,  # neutral, as for the daemons
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=wait,
        check=False,
    )


def prepare_calls(link: Connection) -> None:
    """Write the connection where flwr looks for it."""
    path = link.flwr_home / "config.toml"
    text = _config_text(link)
    with storage(path):
        private_folder(link.flwr_home)
        present = path.read_text(encoding="utf-8") if path.exists() else ""
    if present and not present.startswith(_CONFIG_HEAD):
        raise ConfigError(f"{path}: not written by dcfl; give it a Flower home of its own")
    if present != text:
        write_whole(path, text, private=True)


def _config_text(link: Connection) -> str:
    certificate = link.root_certificate
    path = certificate and json.dumps(str(certificate.resolve()), ensure_ascii=False)
    return f"""{_CONFIG_HEAD}
[superlink]
default = "{CONNECTION_NAME}"
[superlink.{CONNECTION_NAME}]
address = "{link.address}"
insecure = {str(link.insecure).lower()}
{f"root-certificates = {path}" if path else ""}
"""


def environment(flwr_home: Path, home: Path | None = None) -> dict[str, str]:
    # Inherited settings of Flower could open more ports, or other databases.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
    # Flower starts its helpers by their bare names.
    scripts = str(Path(script("flwr")).parent)
    ours = {"PATH": os.pathsep.join([scripts, inherited.get("PATH", os.defpath)])}
    ours |= {"FLWR_HOME": str(flwr_home), **_no_proxy(inherited), **OFFLINE}
    if home is not None:
        ours[MARKER] = str(home)
        ours |= dict([POLL])
    return {**inherited, **ours}


@contextmanager
def loopback_unproxied() -> Iterator[None]:
    """For a client that this process makes, and that reads the environment once."""
    before = dict(os.environ)
    os.environ.update(_no_proxy(before))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _no_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Messages on loopback must not go through a proxy."""
    names = ("NO_PROXY", "no_proxy")
    given = [environment[name] for name in names if environment.get(name)]
    return dict.fromkeys(names, ",".join([*given, LOOPBACK, "localhost"]))


def plain(text: bytes) -> str:
    return _ANSI.sub("", text.decode("utf-8", errors="replace"))


def last_line(text: bytes) -> str:
    lines = [line.strip() for line in _FRAME.sub(" ", plain(text)).splitlines()]
    written = [line for line in lines if line]
    errors = [line for line in written if not re.match(r"\S* ?(INFO|WARNING)\b", line)]
    return (errors or written or ["no word of why"])[-1]


_UNREGISTERED = "unregistered"  # Flower's word for a node that its database keeps all the same


class RegisteredNode(NamedTuple):
    key: str  # its fingerprint
    online: bool  # as the SuperLink sees it, up to a minute late


def registered_nodes(link: Connection) -> list[RegisteredNode] | None:
    """None if the SuperLink does not say it. Flower's command lists nodes without their keys. What
    that command uses is asked here, and may be different in another version."""
    try:
        listed = _listed(link)
    except Exception:
        return None
    return [
        RegisteredNode(registered_fingerprint(key), state == "online")
        for key, state in listed
        if state != _UNREGISTERED
    ]


def absent_sites(link: Connection, roster: Roster) -> str:
    """For a person; empty: all are online, or the SuperLink does not say."""
    nodes = registered_nodes(link)
    if nodes is None:
        return ""
    online = [node.key for node in nodes if node.online]
    if roster.keys:
        absent = [place for place, key in enumerate(roster.keys) if key not in online]
        return ", ".join(roster.title(place) for place in absent)
    missing = max(0, roster.count - len(online))
    return f"{missing} of {roster.count} sites" if missing else ""


def _listed(link: Connection) -> list[tuple[bytes, str]]:
    from flwr.proto.control_pb2 import ListNodesRequest
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

    authority = link.root_certificate
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    with loopback_unproxied():
        client = ControlHttpClient.from_server_address(
            link.address,
            link.insecure,
            authority.read_bytes() if authority else None,
            interceptors=[version],
        )
    with client:
        answer = client.ListNodes(ListNodesRequest())
    return [(node.public_key, node.status) for node in answer.nodes_info]
