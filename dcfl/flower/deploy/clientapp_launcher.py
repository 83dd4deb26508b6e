"""What Flower starts in place of its flwr-clientapp: asks the warm process for a child that does
the work, and stands for it until it ends.

A program of its own, run by `python -IS`: it imports nothing that takes time. `socket` lies beside
it. If nobody answers there, it becomes the real flwr-clientapp, whose path is its first argument.
"""

import array
import json
import os
import signal
import socket
import sys

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


def main() -> int:
    real, *arguments = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until it is known whom to tell
    try:
        connection, child = asked([real, *arguments])
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.execv(real, [real, *arguments])
    for number in SIGNALS:
        signal.signal(number, lambda received, frame: os.kill(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    code = connection.recv(1)
    return code[0] if code else 1  # it was killed


def asked(arguments: list[str]) -> tuple[socket.socket, int]:
    """The connection to the child that does the work, and its pid."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.path.join(os.path.dirname(os.path.abspath(__file__)), "socket"))
    environment = dict(os.environ)
    request = {"arguments": arguments, "folder": os.getcwd(), "environment": environment}
    data = json.dumps(request).encode()
    streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
    connection.sendmsg([len(data).to_bytes(8, "big")], streams)
    connection.sendall(data)
    child = connection.recv(8, socket.MSG_WAITALL)
    if len(child) < 8:
        raise ConnectionError("the warm process has ended")
    return connection, int.from_bytes(child, "big")


if __name__ == "__main__":
    sys.exit(main())
