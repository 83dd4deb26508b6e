"""Standard streams may be closed, full or broken: what is said must never cost what is done."""

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
    """A stream whose reader may go away: what is written afterwards goes nowhere."""

    def __init__(self, descriptor: int, forgiven: type[OSError]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._forgiven = forgiven

    def write(self, data: Any) -> int:
        """All of it: there may be no buffer that comes again with the rest."""
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
        """How many bytes. A stream that does not wait may have room for none: then it is asked
        again when it has, unless any failure is forgiven."""
        written = super().write(data)
        if written is None:
            if issubclass(BlockingIOError, self._forgiven):
                raise BlockingIOError
            select.select([], [self], [])
        return written or 0


@contextmanager
def forgiving_streams() -> Iterator[None]:
    """Standard error takes whatever it is given; standard output says when the disk is full, but
    not that its reader has seen enough. Both take characters that they cannot show."""
    _open_closed_ones()
    before = sys.stdout, sys.stderr
    sys.stdout = _forgiving(sys.stdout, STDOUT, BrokenPipeError)
    sys.stderr = _forgiving(sys.stderr, STDERR, OSError)
    try:
        yield
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        sys.stdout, sys.stderr = before


def _open_closed_ones() -> None:
    """Or else the next file that is opened would be the one that messages go to."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def _forgiving(stream: TextIO | None, descriptor: int, forgiven: type[OSError]) -> TextIO:
    """In place of what Python has made of a descriptor; what somebody else has put there stays."""
    if stream is not None:
        try:
            if stream.fileno() != descriptor:
                return stream
            stream.flush()
        except (OSError, ValueError):
            return stream
    encoding = stream.encoding if stream else "utf-8"
    # A path that is no text comes out as it is where that is possible.
    unicode = encoding.lower().replace("-", "").startswith("utf")
    raw = _Forgiving(descriptor, forgiven)
    # Handlers of signals write to standard error, and a buffer lets nobody in while it is written.
    direct = descriptor == STDERR
    return io.TextIOWrapper(
        cast(BinaryIO, raw) if direct else io.BufferedWriter(raw),
        encoding,
        errors="surrogateescape" if unicode else "replace",
        line_buffering=direct or os.isatty(descriptor),
        write_through=direct,
    )
