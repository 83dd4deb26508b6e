"""A site's own record of what it answered, for an auditor: audit.jsonl, one line per message.

A line is on the disk before its answer leaves, so that nothing leaves unrecorded. Each line names
the SHA-256 of the line before it: whoever changes or removes one breaks the chain. A kill in the
middle of a write leaves half a line, whose answer has not left.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from dcfl.errors import StorageError
from dcfl.system.json_types import Count, Number, Text
from dcfl.system.locks import try_lock
from dcfl.system.storage import PRIVATE_FILE, open_to_append, storage, strict_json, sync_folder

NAME = "audit.jsonl"
LOCK_SECONDS = 30.0  # for another message of this site to write its line
HASH_DIGITS = 16  # of the line before


@dataclass(frozen=True)
class AuditEntry:
    """A line of the log."""

    when: Text  # UTC
    run: Text  # dcfl's id; Flower's own changes when a run is resumed
    round: Count  # of an evaluation: the one before it; 0: none
    client: Count
    asked: Text  # "train", "evaluate", "query.whoami", ...
    outcome: Text  # "answered", "refused" or "failed"
    reason: Text = ""  # why not
    sent: tuple[Text, ...] = ()  # by name
    bytes: Count = 0
    vectors: Count = 0  # sent, that depend on training images: weights, and a method's upload
    noise: Number = 0.0  # on each, as a multiple of the clip; 0: none
    epsilon: Number | None = None  # of the site so far, at `delta`; None: no guarantee
    delta: Number | None = None
    after: Text = ""  # of the line before


class History(NamedTuple):
    """What a log holds."""

    entries: Sequence[AuditEntry] = ()
    torn: int = 0  # lines that a kill cut short
    breaks: int = 0  # places where a line was changed or removed
    last: bytes = b""  # line


@dataclass(frozen=True)
class AuditLog:
    path: Path

    def read(self) -> History:
        """What the log holds; nothing if there is none yet."""
        return _parsed(self._text())

    def _text(self) -> bytes:
        with storage(self.path), suppress(FileNotFoundError):
            return self.path.read_bytes()
        return b""

    def append(self, make: Callable[[History], AuditEntry]) -> AuditEntry:
        """Add the line that `make` chooses, knowing all lines before it; nobody else adds one
        meanwhile. It is on the disk when this returns."""
        with storage(self.path), self._alone():
            text = self._text()
            history = _parsed(text)
            entry = replace(make(history), after=_digest(history.last))
            line = strict_json(asdict(entry)).encode() + b"\n"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            with os.fdopen(os.open(self.path, flags, PRIVATE_FILE), "ab") as file:
                file.write(b"\n" + line if text and not text.endswith(b"\n") else line)
                file.flush()
                os.fsync(file.fileno())
            sync_folder(self.path.parent)
        return entry

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock_path = self.path.with_name(f".{self.path.name}.lock")
        with open_to_append(lock_path, "a+b") as file:
            end = time.monotonic() + LOCK_SECONDS
            while not try_lock(file):
                if time.monotonic() > end:
                    raise StorageError(f"{lock_path}: held by another process for too long")
                time.sleep(0.02)
            yield


def _parsed(text: bytes) -> History:
    entries, torn, breaks, last = [], 0, 0, b""
    for line in filter(None, text.split(b"\n")):
        entry = _entry(line)
        if entry is None:
            torn += 1
        else:
            breaks += entry.after != _digest(last)
            entries.append(entry)
        last = line
    return History(entries, torn, breaks, last)


def _entry(line: bytes) -> AuditEntry | None:
    try:
        return _adapter().validate_python(json.loads(line))
    except (ValueError, ValidationError, RecursionError):
        return None


@cache
def _adapter() -> TypeAdapter[AuditEntry]:
    return TypeAdapter(AuditEntry)


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()[:HASH_DIGITS] if line else ""


def logs_in(path: Path) -> list[Path]:
    """The log that a path names, or those in a folder: a site's, or those of `dcfl flower up`."""
    return [path] if path.is_file() else sorted(path.rglob(NAME))
