"""Flower's SuperNode with a warm process for its messages: `dcfl flower supernode`.

It takes the options of flower-supernode and behaves like it. Flower looks up flwr-clientapp on
PATH; here it finds a launcher of ours first.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path

from cryptography.hazmat.primitives.serialization import PrivateFormat

from dcfl.flower.app_pin import guard
from dcfl.flower.deploy import clientapp_launcher
from dcfl.flower.deploy.checks import KEY_OF_A_KIT, read_key
from dcfl.flower.deploy.clientapp_server import SCRIPT
from dcfl.flower.deploy.daemons import POLL, script
from dcfl.flower.deploy.keys import private_text
from dcfl.system.processes import python

SERVER = ("-m", "dcfl.flower.deploy.clientapp_server")
KEY = "--auth-supernode-private-key"
CAN_FORK = sys.platform == "linux"  # elsewhere frameworks do not survive it


def run_supernode(arguments: Sequence[str]) -> None:
    """Run a SuperNode in this process until it is told to end."""
    scripts = str(Path(script("flower-supernode")).parent)
    os.environ["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    os.environ.setdefault(*POLL)
    sys.argv = [script("flower-supernode"), *_with_readable_key(arguments)]
    from flwr.supernode.cli import flower_supernode

    guard()
    # Flower runs what it finds unpacked under an app's name: here, nothing but what it unpacked.
    with tempfile.TemporaryDirectory(prefix="dcfl-apps-") as apps, ExitStack() as stack:
        os.environ["FLWR_HOME"] = apps
        if CAN_FORK:
            folder = stack.enter_context(warm_process())
            os.environ["PATH"] = os.pathsep.join([str(folder), os.environ["PATH"]])
        flower_supernode()


def _with_readable_key(arguments: Sequence[str]) -> list[str]:
    """The key of a kit, in the form that Flower reads, is in a pipe and not on the disk."""
    words = list(chain(*(word.split("=", 1) if KEY in word else [word] for word in arguments)))
    place = words.index(KEY) + 1 if KEY in words else 0
    path = Path(words[place] if 0 < place < len(words) else "")
    if path.is_file() and path.read_bytes().startswith(KEY_OF_A_KIT):
        read_end, write_end = os.pipe()
        os.write(write_end, private_text(read_key(path), PrivateFormat.OpenSSH))
        os.close(write_end)
        words[place] = f"/dev/fd/{read_end}"
    return words


@contextmanager
def warm_process(server: Sequence[str] = SERVER) -> Iterator[Path]:
    """A folder with the launcher. The process behind it ends when this one does, even by a kill."""
    folder = Path(tempfile.mkdtemp(prefix="dcfl-site-"))  # 0700; a socket's path must be short
    _write_launcher(folder)
    read_end, write_end = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(64)  # launchers wait here while it imports
        descriptors = (listener.fileno(), read_end)
        subprocess.Popen(
            python(*server, *map(str, descriptors)),
            pass_fds=descriptors,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # no thread before a fork
            stdin=subprocess.DEVNULL,
        )
    os.close(read_end)
    try:
        yield folder
    finally:
        os.close(write_end)


def _write_launcher(folder: Path) -> None:
    program = folder / "launcher.py"
    program.write_bytes(Path(clientapp_launcher.__file__).read_bytes())
    words = [sys.executable, "-IS", str(program), script(SCRIPT)]
    launcher = folder / SCRIPT
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    launcher.chmod(0o700)


if __name__ == "__main__":
    run_supernode(sys.argv[1:])
