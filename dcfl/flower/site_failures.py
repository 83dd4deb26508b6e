"""What becomes of a failure at a site: its code goes to the server, its whole story to the site's
own log, from which `dcfl flower run` reads it where the log is on the same machine."""

from __future__ import annotations

import errno
import re
from typing import NamedTuple

import torch

from dcfl.errors import (
    CODES,
    BrokenPicture,
    ClassNotAgreed,
    ClientFailure,
    ConfigError,
    DatasetCorrupt,
    DatasetMissing,
    DCFLError,
    ProtocolMismatch,
    SiteRefusal,
    StorageError,
)
from dcfl.system.printable import printable

OTHER = "error"
REFUSED = "refused"  # the code of a SiteRefusal, which alone comes with a text
_KINDS: dict[type[Exception], str] = {  # the first that fits
    ProtocolMismatch: "version",
    SiteRefusal: REFUSED,
    ConfigError: "config",
    BrokenPicture: "picture",
    ClassNotAgreed: "class",
    DatasetMissing: "data",
    DatasetCorrupt: "data",
    StorageError: "disk",
    MemoryError: "memory",
    torch.OutOfMemoryError: "memory",
}
_ADVICE = {  # beside what the reason says already
    "class": "rename the folder, move it away, or agree on the class with all sites",
    "version": "install the server's dcfl at the site",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LINE = re.compile(r"^dcfl failed \((\w+)\): (.+)$", re.MULTILINE)


def code_of(error: Exception) -> str:
    """A key of CODES."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return "disk"
    return next((code for kind, code in _KINDS.items() if isinstance(error, kind)), OTHER)


def failure_of(client: int, error: Exception) -> ClientFailure:
    """With the whole text as its reason: for this site, or for a server that is its own."""
    code = code_of(error)
    reason = str(error) if isinstance(error, DCFLError) else f"{type(error).__name__}: {error}"
    return ClientFailure(client, reason, code)


class LoggedFailure(NamedTuple):
    code: str
    reason: str

    @property
    def line(self) -> str:
        """For the site's log."""
        return printable(f"dcfl failed ({self.code}): {self.reason}")

    @property
    def advice(self) -> str:
        """The reason, and what else helps."""
        more = _ADVICE.get(self.code)
        return f"{self.reason} ({more})" if more else self.reason


def failures_in(log: str) -> list[LoggedFailure]:
    """Those that a site has logged, the oldest first."""
    found = (LoggedFailure(*match.groups()) for match in _LINE.finditer(log))
    return [failure for failure in found if failure.code in CODES]
