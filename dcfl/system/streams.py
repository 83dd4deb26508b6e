"""Standard streams that may be closed, full or broken: a message must never cost a run."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, TextIO, cast

STDOUT, STDERR = 1, 2


class _Forgiving(io.FileIO):
    """A stream that drops what it cannot write because of a forgiven error."""

    def __init__(self, descriptor: int, forgiven: type[OSError]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._forgiven = forgiven

    def write(self, data: Any) -> int:
        """Write everything: there may be no buffer that would retry with the rest."""
        rest = memoryview(data)
        size = rest.nbytes
        try:
            while rest:
                rest = rest[self._written(rest) :]
        except self._forgiven:
            pass
        except OSError as error:
            error.filename = "standard output"
            raise
        return size

    def _written(self, data: memoryview) -> int:
        """The number of bytes written. A non-blocking stream may have no room: wait for some,
        unless that is forgiven too."""
        written = super().write(data)
        if written is None:
            if issubclass(BlockingIOError, self._forgiven):
                raise BlockingIOError
            select.select([], [self], [])
        return written or 0


@contextmanager
def forgiving_streams() -> Iterator[None]:
    """Standard error never fails; standard output fails when the disk is full, but not when its
    reader has gone. Neither fails for characters that it cannot show."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next file to be opened would receive the messages
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    before = sys.stdout, sys.stderr
    sys.stdout = _forgiving(sys.stdout, STDOUT, BrokenPipeError)
    sys.stderr = _forgiving(sys.stderr, STDERR, OSError)
    try:
        yield
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        sys.stdout, sys.stderr = before


def _forgiving(stream: TextIO | None, descriptor: int, forgiven: type[OSError]) -> TextIO:
    """Replaces Python's own stream for a descriptor; one that somebody else installed stays."""
    if stream is not None:
        try:
            if stream.fileno() != descriptor:
                return stream
            stream.flush()
        except (OSError, ValueError):
            return stream
    encoding = stream.encoding if stream else "utf-8"
    # Paths that are not valid Unicode come out as their bytes where the encoding allows it.
    unicode = encoding.lower().replace("-", "").startswith("utf")
    raw = _Forgiving(descriptor, forgiven)
    # Signal handlers write to standard error, and a buffer must not be entered twice.
    direct = descriptor == STDERR
    return io.TextIOWrapper(
        cast(BinaryIO, raw) if direct else io.BufferedWriter(raw),
        encoding,
        errors="surrogateescape" if unicode else "replace",
        line_buffering=direct or os.isatty(descriptor),
        write_through=direct,
    )
