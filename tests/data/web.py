"""A web server on this machine that can be told to misbehave."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    content: bytes
    status: int = 200
    ranges: bool = True  # whether Range requests are understood
    shift: int = 0  # lies about where a range begins
    breaks: list[int] = field(default_factory=list)  # bytes after which each answer breaks off
    stalls: bool = False  # stops in the middle, without closing, until `woken`
    length: bool = True  # whether the size is told
    woken: threading.Event = field(default_factory=threading.Event)
    asked: list[str | None] = field(default_factory=list)  # the Range of each request
    agents: set[str] = field(default_factory=set)
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.asked.append(wanted)
        self.agents.add(request.headers.get("User-Agent", ""))
        if self.status != 200:
            request.send_error(self.status)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        if start and start >= len(self.content):
            request.send_error(416)
            return
        body = self.content[start:]
        request.send_response(206 if start else 200)
        if start:
            first, size = start + self.shift, len(self.content)
            request.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
        if self.length:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: self.breaks.pop(0)] if self.breaks else body)
        if self.stalls:
            request.wfile.flush()
            self.woken.wait(10)
        request.close_connection = True


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.answer(self)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        site.woken.set()
        server.shutdown()
        server.server_close()
        thread.join()
