"""The command lines of SuperLinks and SuperNodes: those of `dcfl flower up`, and those of kits."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from dcfl.errors import ConfigError, require
from dcfl.flower import OFFLINE
from dcfl.flower.deploy.daemons import LOOPBACK, script
from dcfl.flower.deploy.superlink import plain
from dcfl.flower.node_config import check_keys
from dcfl.system.processes import python

TESTED = "flwr 1.41 and 1.42"

# What we call an option, and what Flower calls it: all spellings, the newest first.
_SPELLINGS = {
    "host": ("--host",),
    "port": ("--port",),
    "insecure": ("--insecure",),
    # flower-superlink
    "database": ("--database",),
    "authority": ("--ssl-ca-certfile",),
    "certificate": ("--ssl-certfile",),
    "certificate-key": ("--ssl-keyfile",),
    "known-nodes-only": ("--enable-supernode-auth",),
    "install-nothing": ("--disable-runtime-dependency-installation",),
    # flower-supernode
    "superlink": ("--superlink",),
    "root-certificate": ("--root-certificates",),
    "node-key": ("--auth-supernode-private-key",),
    "node-config": ("--node-config",),
}


def command_line(program: str, options: Mapping[str, str | bool]) -> list[str]:
    """`options` by our names; True: an option without a value, False: left out."""
    words = [script(program)]
    for name, value in options.items():
        if value is not False:
            words.append(_spelling(program, name))
        if isinstance(value, str):
            words.append(value)
    return words


def _spelling(program: str, name: str) -> str:
    known = options_of(program)
    for spelling in _SPELLINGS[name]:
        if spelling in known:
            return spelling
    wanted = " or ".join(_SPELLINGS[name])
    raise ConfigError(
        f"{program} of flwr {version('flwr')} has no option {wanted}; "
        f"this dcfl was tested with {TESTED}"
    )


@cache
def options_of(program: str) -> frozenset[str]:
    done = subprocess.run(
        [script(program), "--help"],
        env={**os.environ, **OFFLINE},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    # An option's own line is indented by two; texts, which name other options too, by more.
    found = re.findall(r"^  (?:-\w, )?(--[a-z][a-z-]*)", plain(done.stdout), re.MULTILINE)
    if not found:
        raise ConfigError(f"{program} --help names no options: is flwr installed as a whole?")
    return frozenset(found)


def superlink_command(port: int, database: Path, keys: Path | None) -> list[str]:
    """On loopback: its control path has no accounts. `keys`: the folder with ca.crt and the
    server's certificate; None: without TLS."""
    security: dict[str, str | bool] = {"insecure": True}
    if keys is not None:
        security = {
            "authority": str(keys / "ca.crt"),
            "certificate": str(keys / "server.pem"),
            "certificate-key": str(keys / "server.key"),
            "known-nodes-only": True,
        }
    listening: dict[str, str | bool] = {"host": LOOPBACK, "port": str(port)}
    state: dict[str, str | bool] = {"install-nothing": True, "database": str(database)}
    return command_line("flower-superlink", listening | state | security)


def supernode_command(
    address: str, port: int, node_config: str, keys: tuple[Path, Path] | None
) -> list[str]:
    """`address`: the SuperLink's. `node_config`: key=value pairs, or the path of a .toml file.
    `keys`: the certificate authority and the site's private key; None: without TLS."""
    security: dict[str, str | bool] = {"insecure": True}
    if keys is not None:
        authority, key = map(str, keys)
        security = {"root-certificate": authority, "node-key": key}
    own: dict[str, str | bool] = {
        "superlink": address,
        "host": LOOPBACK,
        "port": str(port),
        "node-config": node_config,
    }
    _, *options = command_line("flower-supernode", own | security)
    return [*python("-m", "dcfl.flower.deploy.supernode"), *options]  # the same, but quicker


def read_node_config(text: str) -> dict[str, object]:
    """What the user sets of a site's node config."""
    pair = r"""([A-Za-z0-9_-]+)=("[^"]*"|'[^']*'|[^\s"']+)"""
    hint = "give key=value pairs with strings in quotes"
    require(not re.sub(pair, "", text).strip(), f"node config {text!r}: {hint}")
    pairs = re.findall(pair, text)
    try:
        values = tomllib.loads("\n".join(f"{key} = {value}" for key, value in pairs))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"node config {text!r}: {hint} ({error})") from None
    check_keys(values)
    taken = values.keys() & {"partition-id", "num-partitions", "memories"}
    require(not taken, f"node config {text!r}: {', '.join(taken)} is set by `dcfl flower up`")
    return values
