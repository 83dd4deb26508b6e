"""The command lines of Flower's programs, with the options that the installed version has.

Asked of the program itself: an option that it lacks is named in one line, before anything starts.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version

from dcfl.errors import ConfigError
from dcfl.flower import OFFLINE
from dcfl.flower.deploy.console_scripts import script
from dcfl.flower.deploy.superlink import plain

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
