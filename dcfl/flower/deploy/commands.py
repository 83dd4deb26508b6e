"""The command lines of the SuperLink and the SuperNodes of a local deployment."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from dcfl.errors import ConfigError, require
from dcfl.flower.deploy.console_scripts import script
from dcfl.flower.deploy.deployment_record import Deployment
from dcfl.flower.deploy.superlink import LOOPBACK
from dcfl.flower.node_config import check_keys
from dcfl.system.processes import python
from dcfl.system.storage import private_folder


def superlink_command(home: Path, port: int, tls: bool) -> list[str]:
    keys = home / "keys"
    security = ["--insecure"]
    if tls:
        security = ["--ssl-ca-certfile", str(keys / "ca.crt")]
        security += ["--ssl-certfile", str(keys / "server.pem")]
        security += ["--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"]
    return [
        *(script("flower-superlink"), "--host", LOOPBACK, "--port", str(port)),
        *("--disable-runtime-dependency-installation", "--database", str(home / "superlink.db")),
        *security,
    ]


def supernode_command(
    home: Path, deployment: Deployment, *, site: int, sites: int, port: int, node_config: str
) -> list[str]:
    security = ["--insecure"]
    if deployment.tls:
        security = ["--root-certificates", str(home / "keys" / "ca.crt")]
        security += ["--auth-supernode-private-key", str(home / "keys" / f"site-{site}")]
    memories = home / "memories" / f"site-{site}"
    private_folder(memories)
    # The quote at the end matters: Flower takes a config that ends with .toml for a file.
    config = f'{node_config} partition-id={site} num-partitions={sites} memories="{memories}"'
    return [
        *(*python("-m", "dcfl.flower.deploy.supernode"), "--superlink", deployment.address),
        *("--host", LOOPBACK, "--port", str(port), "--node-config", config.strip()),
        *security,
    ]


def check_node_config(text: str) -> None:
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
