"""A page on this machine that follows runs: `dcfl watch`.

Only this machine can reach it, and only with the token in its address. Other web pages that a
browser shows cannot: they do not know the token, and a name of theirs that points to this machine
(DNS rebinding) is refused by the Host header.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from dcfl.errors import ConfigError
from dcfl.report.following import Following, State
from dcfl.report.shell import whole_page
from dcfl.system.storage import strict_json

LOOPBACK = "127.0.0.1"
SCRIPT = (Path(__file__).parent / "watch.js").read_text("utf-8")
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, folders: Sequence[Path], port: int) -> None:
        self.token = secrets.token_urlsafe(18)
        self._following = Following(folders)
        self._one_at_a_time = threading.Lock()
        try:
            super().__init__((LOOPBACK, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"--port {port} cannot be used ({error}): take another") from error

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def state(self) -> State:
        with self._one_at_a_time:
            return self._following.state()

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that has gone, mostly; the next question may be answered."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "dcfl", ""
    timeout = 30  # seconds until a silent connection is closed

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self._own_names():
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "not this server\n")
            return
        address = urlsplit(self.path)
        _, _, rest = address.path.partition("/")
        token, slash, name = rest.partition("/")
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        if not known or not slash or name not in ("", "state"):
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "nothing here\n")
        elif name == "state":
            self._answer_state(parse_qs(address.query).get("version", [""])[0])
        else:
            state = self.server.state()
            follow = f'{SCRIPT}\ndcflWatch.start("{state.version}");\n'
            page = whole_page(state.title, state.content, follow)
            self._answer(HTTPStatus.OK, "text/html", page)

    def _answer_state(self, version: str) -> None:
        state = self.server.state()
        news = {"title": state.title, "content": str(state.content)}
        known = version == state.version
        answer = {"version": state.version, **({} if known else news)}
        self._answer(HTTPStatus.OK, "application/json", strict_json(answer))

    def _own_names(self) -> set[str]:
        return {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal belongs to the one line with the address."""


@contextmanager
def watching(folders: Sequence[Path], port: int = 0) -> Iterator[Server]:
    """A server that answers until this ends. Port 0: any that is free."""
    server = Server(folders, port)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
