"""Ports of this machine: which are free, and who listens."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack, suppress

from dcfl.errors import NetworkError
from dcfl.flower.deploy.superlink import LOOPBACK

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
