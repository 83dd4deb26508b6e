"""A site's own record of what it answered, for an auditor: audit.jsonl, one line per message.

A line is on the disk before its answer leaves, so that nothing leaves unrecorded. Each line names
the hash of the line before it: whoever changes or removes one breaks the chain. How many lines
there are, and the hash of the last, stand in a file beside the log, so that the end of the log
cannot be taken away either. That file is written after the line and before the answer leaves: a
kill may leave half a line, or one line more than it says, and never fewer.
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
from secrets import token_hex
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from dcfl.errors import StorageError
from dcfl.system.json_types import Count, Number, Text
from dcfl.system.locks import try_lock
from dcfl.system.storage import (
    PRIVATE_FILE,
    open_data,
    open_to_append,
    storage,
    strict_json,
    sync_folder,
    write_whole,
)

NAME = "audit.jsonl"
HEAD = ".head"  # ends the name of the file beside the log
LOCK_SECONDS = 30.0  # for another message of this site to write its line
HASH_DIGITS = 32  # of a line's SHA-256
LONGEST_LINE = 2**16  # bytes; what is longer is none of ours, and could not be read again


@dataclass(frozen=True, slots=True)
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
    app: Text = ""  # the hash of the whole app, as the SuperNode received it
    about: Text = ""  # the run that asked, as its config has it
    salt: Text = ""  # so that nobody guesses a line from its hash, which the server gets
    after: Text = ""  # of the line before


Wanted = Callable[[AuditEntry], bool]


class Head(NamedTuple):
    """How far a log goes."""

    lines: Count = 0  # that are whole
    last: Text = ""  # hash of the last
    bytes: Count = 0


class History(NamedTuple):
    """What a log holds."""

    entries: Sequence[AuditEntry] = ()
    torn: int = 0  # lines that a kill cut short
    breaks: int = 0  # places where a line was changed or removed
    head: Head = Head()

    def has(self, lines: int, last: str) -> bool:
        """Whether the whole log once ended with this line, as somebody has noted."""
        ends = [entry.after for entry in self.entries] + [self.head.last]
        return 0 < lines < len(ends) and ends[lines] == last


@dataclass(frozen=True)
class AuditLog:
    path: Path

    def read(self, wanted: Wanted = lambda entry: True) -> History:
        """What the log holds, as far as it is wanted; nothing if there is none yet."""
        with storage(self.path):
            # The head before the log: another message may be written meanwhile.
            return self._walk(Head(), self._head(), wanted)

    def _walk(self, at: Head, head: Head, wanted: Wanted) -> History:
        """What is in the log after `at`, line by line: it may be too long to be held."""
        kept, torn, breaks, met = [], 0, 0, at.lines == head.lines
        with suppress(FileNotFoundError), open_data(self.path, 2**50) as file:
            file.seek(at.bytes)
            while raw := file.readline(LONGEST_LINE + 1):
                line = raw.strip(b"\n")
                entry: AuditEntry | None = _parsed(AuditEntry, line) if line else None
                last = _digest(line) if line else at.last
                if entry is not None:
                    breaks += entry.after != at.last
                    met = last == head.last if at.lines + 1 == head.lines else met
                    kept += [entry] if wanted(entry) else []
                torn += bool(line) and entry is None
                at = Head(at.lines + (entry is not None), last, at.bytes + len(raw))
                if len(raw) > LONGEST_LINE:
                    breaks += 1
                    break
        more = at.lines > head.lines + 1  # than one that a kill left
        return History(kept, torn, breaks + (not met) + more, at)

    def _head(self) -> Head:
        with suppress(FileNotFoundError), open_data(_head_of(self.path), 2**50) as file:
            return _parsed(Head, file.read(LONGEST_LINE)) or Head()
        return Head()

    def append(self, make: Callable[[History], AuditEntry], wanted: Wanted | None = None) -> Head:
        """Add the line that `make` chooses, knowing the `wanted` lines before it; nobody else adds
        one meanwhile. It is on the disk when this returns how far the log goes now. It goes on from
        what the head says: a log that ends otherwise does not heal."""
        with storage(self.path), self._alone():
            entry = make(History() if wanted is None else self.read(wanted))
            before = self._head()
            head = self._caught_up(before)
            entry = replace(entry, salt=token_hex(8), after=head.last)
            line = strict_json(asdict(entry)).encode()
            if len(line) >= LONGEST_LINE:
                raise StorageError(f"{self.path}: {len(line):,} bytes are too many for a line")
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            with os.fdopen(os.open(self.path, flags, PRIVATE_FILE), "ab") as file:
                file.write((b"" if file.tell() == before.bytes else b"\n") + line + b"\n")
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            sync_folder(self.path.parent)
            head = Head(head.lines + 1, _digest(line), size)
            self._write(head)
            return head

    def _caught_up(self, head: Head) -> Head:
        """With what a kill left behind the head: half a line, or a whole one."""
        left = self._walk(head, head, lambda entry: False)
        if left.breaks:
            return head
        if left.head.lines > head.lines:
            self._write(left.head)
        return left.head

    def _write(self, head: Head) -> None:
        write_whole(_head_of(self.path), json.dumps(head._asdict()), durable=True, private=True)

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


def _parsed(kind: Any, text: bytes) -> Any:
    """None if it is something else."""
    try:
        return _adapter(kind).validate_python(json.loads(text))
    except (ValueError, ValidationError, RecursionError):
        return None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _head_of(path: Path) -> Path:
    return path.with_name(path.name + HEAD)


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()[:HASH_DIGITS]


def logs_in(path: Path) -> list[Path]:
    """The log that a path names, or those in a folder: a site's, or those of `dcfl flower up`. Also
    one that is gone, if what stood beside it is there."""
    if path.is_file() or _head_of(path).is_file():
        return [path]
    heads = (head.with_name(NAME) for head in path.rglob(NAME + HEAD))
    return sorted({*path.rglob(NAME), *heads})
