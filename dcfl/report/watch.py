"""A page on this machine that follows runs: `dcfl watch`.

Only this machine can reach it, and only with the token in its address. Other web pages that a
browser shows cannot: they do not know the token, and a name of theirs that points to this machine
(DNS rebinding) is refused by the Host header.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from markupsafe import Markup

from dcfl.comparisons.groups import Outcome, setting
from dcfl.errors import ConfigError, DCFLError
from dcfl.report import natural, reference_first, text
from dcfl.report.document import Page, Section, Table, whole_page
from dcfl.report.run_page import names_of, page_of
from dcfl.runs.evaluations import STEM, read_evaluations
from dcfl.runs.folder import FILES, RecordedRun
from dcfl.system.storage import strict_json
from dcfl.system.wording import printable

DEEPEST = 3  # folders of folders of run folders are looked into
MOST_RUNS = 500
READ = sorted({*FILES} - {"model.safetensors", "best.safetensors", "method.py", "model.py"})

Signature = tuple[tuple[str, int, int], ...]  # name, time of change and size of each file


@dataclass(frozen=True)
class State:
    version: str  # changes with the content
    title: str
    content: Markup


class FollowedRuns:
    """Folders, which need not exist yet, and the page about the runs that are in them."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._runs: dict[Path, tuple[Signature, RecordedRun | str]] = {}
        self._seen: dict[Path, Signature] = {}
        self._state: State | None = None

    def state(self) -> State:
        """Drawn again only if something has changed since it was last asked for."""
        signatures = {path: _signature(path) for path in _run_folders(self._folders)}
        for path, signature in signatures.items():
            if path not in self._runs or self._runs[path][0] != signature:
                self._runs[path] = (signature, _read(path))
        found = [self._runs[path][1] for path in signatures]
        if self._state is None or signatures != self._seen:
            self._state = self._drawn(found)
            self._seen = signatures
        return self._state

    def _drawn(self, found: Sequence[RecordedRun | str]) -> State:
        runs = reference_first([run for run in found if isinstance(run, RecordedRun)])
        troubles = [trouble for trouble in found if isinstance(trouble, str)]
        try:
            if runs:
                progress = [_progress(runs, names_of(runs))]
                return _state_of(page_of(runs, progress=progress, troubles=troubles))
        except (DCFLError, OSError) as error:  # files that are gone since they were read
            troubles.append(text.without_folders(str(error)))
        places = text.listed([printable(str(folder)) for folder in self._folders])
        headline = f"There is no run to show in {places} yet. It appears here when it begins."
        return _state_of(Page("Waiting for a run", [], headline, [], troubles))


def _state_of(page: Page) -> State:
    body = page.content
    version = hashlib.sha256(body.encode("utf-8", "replace")).hexdigest()[:16]
    return State(version, page.title, body)


def _run_folders(folders: Iterable[Path]) -> list[Path]:
    found = dict.fromkeys(path for folder in folders for path in _below(folder, DEEPEST))
    return list(found)[:MOST_RUNS]


def _below(folder: Path, depth: int) -> Iterator[Path]:
    with suppress(OSError):  # gone, or not ours to read
        if (folder / "config.toml").is_file():
            yield folder
        elif depth and folder.is_dir():
            for path in sorted(folder.iterdir(), key=lambda path: natural(path.name)):
                if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
                    yield from _below(path, depth - 1)


def _signature(folder: Path) -> Signature:
    found = []
    for path in (*(folder / name for name in READ), *sorted(folder.glob(f"{STEM}*.json"))):
        with suppress(OSError):
            status = path.stat()
            found.append((path.name, status.st_mtime_ns, status.st_size))
    return tuple(found)


def _read(folder: Path) -> RecordedRun | str:
    """The run, read as far as pages need it; or why it cannot be."""
    try:
        run = RecordedRun.open(folder)
        _ = run.config, run.environment, run.summary, run.rounds, run.clients, run.partition_sha256
        read_evaluations(folder)
    except (DCFLError, OSError, ValueError) as error:
        reason = text.without_folders(str(error))
        return f"{printable(folder.name)} cannot be read now: {printable(reason)}"
    return run


def _progress(runs: Sequence[RecordedRun], names: dict[RecordedRun, str]) -> Section:
    columns = ["Run", "State", "Rounds", "Accuracy, %", "EMA, %", "Last round"]
    table = Table(columns, [_row(run, names[run]) for run in runs])
    ended = sum(run.finished for run in runs)
    return Section("Progress", [f"{ended} of {text.plural(len(runs), 'run')} finished."], [table])


def _row(run: RecordedRun, name: str) -> list[str]:
    outcome, planned = Outcome.of(run), int(setting(run, "federation.rounds") or 0)
    return [
        name,
        "finished" if run.finished else "unfinished",
        f"{outcome.rounds} of {planned}",
        text.number(outcome.final_accuracy),
        text.number(outcome.ema_accuracy),
        _clock(_last_change(run)) if run.rounds else "–",
    ]


def _last_change(run: RecordedRun) -> float:
    try:
        return (run.folder / "rounds.jsonl").stat().st_mtime
    except OSError:
        return time.time()


def _clock(moment: float) -> str:
    then = datetime.fromtimestamp(moment)
    today = then.date() == datetime.now().date()
    return f"{then:%H:%M:%S}" if today else f"{then:%d %b %H:%M}"


LOOPBACK = "127.0.0.1"
SCRIPT = (Path(__file__).parent / "watch.js").read_text("utf-8")
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class WatchServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, folders: Sequence[Path], port: int) -> None:
        self.token = secrets.token_urlsafe(18)
        self._following = FollowedRuns(folders)
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
    server: WatchServer
    server_version, sys_version = "dcfl", ""
    timeout = 30  # seconds until a silent connection is closed

    def do_GET(self) -> None:
        hosts = {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}
        if self.headers.get("Host") not in hosts:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "not this server\n")
            return
        address = urlsplit(self.path)
        _, _, rest = address.path.partition("/")
        token, slash, name = rest.partition("/")
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        if not known or not slash or name not in ("", "state"):
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "nothing here\n")
        elif name == "state":
            state = self.server.state()
            answer = {"version": state.version}
            if parse_qs(address.query).get("version") != [state.version]:
                answer |= {"title": state.title, "content": str(state.content)}
            self._answer(HTTPStatus.OK, "application/json", strict_json(answer))
        else:
            state = self.server.state()
            follow = f'{SCRIPT}\ndcflWatch.start("{state.version}");\n'
            page = whole_page(state.title, state.content, follow)
            self._answer(HTTPStatus.OK, "text/html", page)

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
def watching(folders: Sequence[Path], port: int = 0) -> Iterator[WatchServer]:
    """A server that answers until this ends. Port 0: any that is free."""
    server = WatchServer(folders, port)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
