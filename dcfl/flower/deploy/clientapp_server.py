"""A process that has imported torch, flwr and dcfl once, and forks a child for each message.

Flower starts a process per message, which imports all of it again. Here each message still has a
process of its own, by the same user, with the environment, folder and streams that Flower gave
it. The parent keeps no threads and never reads a request: tokens are read by the children.

Run by supernode.py, with the descriptors of a listening socket and of a pipe whose other end the
SuperNode holds: when that closes, this ends, and the folder of the socket goes.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

SCRIPT = "flwr-clientapp"
PRELOADED = ("flwr.supernode.cli", "dcfl.flower.client_app")  # what a message needs, torch with it
REAP_SECONDS = 5.0  # for which a child that has ended may stay in the table of processes


def serve(listener: socket.socket, lifeline: int) -> socket.socket | None:
    """In a child: the connection to answer. In the parent: None, when the SuperNode has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C ends the SuperNode first
    while True:
        ready, _, _ = select.select([listener.fileno(), lifeline], [], [], REAP_SECONDS)
        _reap()
        if lifeline in ready:
            return None
        if listener.fileno() not in ready:
            continue
        connection, _ = listener.accept()
        try:
            forked = os.fork()
        except OSError:  # a limit of processes: the launcher does the work itself
            forked = -1
        if not forked:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            listener.close()
            os.close(lifeline)
            return connection
        connection.close()


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def become(connection: socket.socket) -> None:
    """Take over the arguments, the folder, the environment and the streams of the launcher."""
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    data = b""
    while len(data) < int.from_bytes(head, "big"):
        part = connection.recv(1 << 16)
        if not part:
            os._exit(1)  # the launcher is gone
        data += part
    request = json.loads(data)
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    connection.sendall(os.getpid().to_bytes(8, "big"))


def die_with(connection: socket.socket, done: threading.Event) -> None:
    """If the launcher is killed, so is its work."""
    if not connection.recv(1) and not done.is_set():
        os.kill(os.getpid(), signal.SIGKILL)


def work(connection: socket.socket) -> None:
    become(connection)
    done = threading.Event()
    threading.Thread(target=die_with, args=(connection, done), daemon=True).start()
    code = 1
    try:
        command()()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    finally:
        done.set()
        connection.sendall(bytes([code & 255]))


def command() -> Callable[[], object]:
    """Flower's own."""
    (script,) = entry_points(group="console_scripts", name=SCRIPT)
    return cast(Callable[[], object], script.load())


def preload() -> None:
    for module in PRELOADED:
        import_module(module)
    gc.collect()
    gc.freeze()  # children share these pages until they write


def main() -> None:
    listener, lifeline = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    folder, parent = os.path.dirname(listener.getsockname()), os.getpid()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # by way of the end below
    try:
        preload()
        connection = serve(listener, lifeline)
        if connection is not None:
            work(connection)
    finally:
        if os.getpid() == parent:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
