"""Runs on a SuperLink, this machine's own or any other: submit, watch, stop."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcfl.config import to_toml
from dcfl.errors import ConfigError, NetworkError, require
from dcfl.flower import OFFLINE
from dcfl.flower.deploy.daemons import MARKER
from dcfl.system.storage import private_folder, storage, write_whole

NAME = "dcfl"  # of the connection, in config.toml
LOOPBACK = "127.0.0.1"
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
class RunStatus:
    run: int
    status: str


def submit(link: Connection, bundle: Path, run_config: Mapping[str, str]) -> int:
    """Submit a bundle; its run id. The run goes on without us."""
    prepare_calls(link)
    with tempfile.NamedTemporaryFile("w", suffix=".toml", dir=link.flwr_home) as file:
        file.write(to_toml(run_config) + "\n")
        file.flush()
        answer = ask(link, "run", str(bundle.resolve()), NAME, "--run-config", file.name)
    return int(answer["run-id"])


def run_status(link: Connection, run: int) -> str:
    """One of pending, starting, running, finished:completed, finished:failed, finished:stopped."""
    return _ask_runs(link, "--run-id", str(run))[0].status


def stop(link: Connection, run: int) -> None:
    """Stop a run; one that is finished stays as it is."""
    if not run_status(link, run).startswith("finished"):
        ask(link, "stop", str(run), NAME)


def log(link: Connection, run: int, wait: float = 15.0) -> str:
    """What the server side of a run has written so far; empty when there is nothing yet."""
    prepare_calls(link)
    command = [script("flwr"), "log", str(run), NAME, "--show"]
    try:
        done = _call(link, command, wait)
    except subprocess.TimeoutExpired:  # flwr waits for the first line
        return ""
    if done.returncode != 0:
        raise _refusal(link, plain(done.stderr))
    return plain(done.stdout).removeprefix(f"Using SuperLink: {NAME} ({link.address})\n")


def newest_runs(link: Connection) -> tuple[RunStatus, ...]:
    return _ask_runs(link, "--limit", "20")


def _ask_runs(link: Connection, *words: str) -> tuple[RunStatus, ...]:
    answer = ask(link, "ls", NAME, *words)
    return tuple(RunStatus(int(row["run-id"]), str(row["status"])) for row in answer["runs"])


def online_nodes(link: Connection) -> set[str]:
    answer = ask(link, "supernode", "list", NAME)
    return {str(node["node-id"]) for node in answer["nodes"] if node["status"] == "online"}


def ask(link: Connection, *words: str, wait: float = 60.0) -> dict[str, Any]:
    """Call flwr and read its JSON answer; what it refuses is said in one line."""
    prepare_calls(link)
    try:
        done = _call(link, [script("flwr"), *words, "--format", "json"], wait)
    except subprocess.TimeoutExpired:
        message = f"SuperLink {link.address}: no answer to `flwr {words[0]}` within {wait:.0f} s"
        raise NetworkError(message) from None
    text = plain(done.stdout)
    try:
        answer: dict[str, Any] = json.loads(text[text.index("{") :])
    except ValueError:
        detail = last_line(done.stdout + done.stderr)
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
        found = path.read_text(encoding="utf-8") if path.exists() else ""
    if found and not found.startswith(_CONFIG_HEAD):
        raise ConfigError(f"{path}: not written by dcfl; give it a Flower home of its own")
    if found != text:
        write_private(path, text)


def _config_text(link: Connection) -> str:
    lines = [_CONFIG_HEAD, "[superlink]", f'default = "{NAME}"', f"[superlink.{NAME}]"]
    lines.append(f'address = "{link.address}"')
    if link.root_certificate is not None:
        path = json.dumps(str(link.root_certificate.resolve()), ensure_ascii=False)
        lines.append(f"root-certificates = {path}")
    lines.append(f"insecure = {str(link.insecure).lower()}")
    return "\n".join(lines) + "\n"


def script(name: str) -> str:
    """A console script of this Python environment, whatever PATH says."""
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if (folder / name).exists():
            return str(folder / name)
    raise ConfigError(f"{name} is not installed here: pip install 'dcfl[flower]'")


def environment(flwr_home: Path, home: Path | None = None) -> dict[str, str]:
    # Inherited settings of Flower's could open more ports, or other databases.
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
    # Flower starts its helpers by their bare names.
    scripts = str(Path(script("flwr")).parent)
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


def plain(text: bytes) -> str:
    return _ANSI.sub("", text.decode("utf-8", errors="replace"))


def last_line(text: bytes) -> str:
    lines = [line.strip() for line in _FRAME.sub(" ", plain(text)).splitlines()]
    told = [line for line in lines if line]
    grave = [line for line in told if not re.match(r"\S* ?(INFO|WARNING)\b", line)]
    return (grave or told or ["no word of why"])[-1]


def write_private(path: Path, text: str) -> None:
    write_whole(path, text, private=True)
