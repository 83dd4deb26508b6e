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
    breaks: list[int] = field(default_factory=list)  # bytes after which each answer breaks off
    stalls: bool = False  # stops in the middle, without closing, until `woken`
    length: bool = True  # whether the size is told
    woken: threading.Event = field(default_factory=threading.Event)
    asked: int = 0  # requests
    agents: set[str] = field(default_factory=set)
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked += 1
        self.agents.add(request.headers.get("User-Agent", ""))
        if self.status != 200:
            request.send_error(self.status)
            return
        body = self.content
        request.send_response(200)
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
