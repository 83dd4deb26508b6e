"""What can go wrong, said in one line: what, where, and what to do about it.

Each error refines the built-in exception that a Python user would catch, and carries the exit code
that the command line ends with.
"""

from __future__ import annotations

from typing import Literal

from dcfl.system.printable import printable

LONGEST_REASON = 500  # characters of why a client was left out


class DCFLError(Exception):
    """The family; `except dcfl.errors.DCFLError` catches all but bugs of ours."""

    exit_code = 2


class ConfigError(DCFLError, ValueError):
    """A setting that does not exist, or whose value cannot be used."""


class SettingsWarning(UserWarning):
    """Settings that can be used and that somebody may regret."""


def require(condition: bool, message: str) -> None:
    """The value check of a settings dataclass, for its `__post_init__`."""
    if not condition:
        raise ConfigError(message)


class DatasetMissing(DCFLError, FileNotFoundError):
    """The data set's files are not where they were looked for."""


class DatasetCorrupt(DCFLError, ValueError):
    """The data set's files are there and are not what they should be."""


class PartitionError(DCFLError, ValueError):
    """The data cannot be split over the clients as asked."""


class RunFolderError(DCFLError, OSError):
    """The folder is in the way of a new run, or what it holds is damaged."""


class RunMissing(RunFolderError, FileNotFoundError):
    """The folder does not hold the run, or the part of it, that was asked for."""


class RunLocked(DCFLError, OSError):
    """Another process is using the folder."""

    exit_code = 5


class Interrupted(DCFLError):
    """Somebody asked the run to stop, and it did, after a round; it can be resumed."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StorageError(DCFLError, OSError):
    """The disk is full, read-only or broken."""

    exit_code = 3


class CheckpointError(DCFLError, OSError):
    """What was written to go on from is not there any more, or not as it was written."""

    exit_code = 3


class NetworkError(DCFLError, ConnectionError):
    """What should come over the network did not."""

    exit_code = 6


class RemoteRunFailed(DCFLError, RuntimeError):
    """A run on a SuperLink came to a bad end there."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


NO_LONGER_FINITE = "loss is no longer finite"


class Diverged(DCFLError, ArithmeticError):
    """A client's loss or weights are no longer finite."""


class ProtocolError(DCFLError, ValueError):
    """A reply that does not fit what was asked for."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message, LONGEST_REASON))  # it may quote what a client chose


class ProtocolMismatch(ProtocolError):
    """The other side's dcfl speaks another version of the protocol."""


class SiteRefusal(ConfigError):
    """What a site does not do for a run. Its text is meant for the server too: it has names of
    settings in it, and nothing else of the site's own."""


class TooFewClients(DCFLError, RuntimeError):
    """Round after round without a usable reply."""

    exit_code = 4


class WorkersLost(DCFLError, RuntimeError):
    """Worker processes die again and again, whatever they are given to do."""

    exit_code = 4


class ClientFailure(DCFLError, RuntimeError):
    """One client's round came to nothing; the run goes on without it."""

    outcome: Literal["failed", "late", "rejected"] = "failed"

    def __init__(
        self,
        client: int,
        reason: str,
        code: str = "error",
        traffic: tuple[int, int] | None = None,
    ) -> None:
        """`code`: what may be told of it beyond the client's own machine, see CODES. `traffic`:
        bytes up and down, if they were measured."""
        self.client = client
        self.reason = printable(" ".join(reason.split()), LONGEST_REASON)
        super().__init__(f"client {client}: {self.reason}")
        self.code = code
        self.traffic = traffic


# What a client says of its failure to a server that it may not trust with more.
CODES = {
    "diverged": f"its {NO_LONGER_FINITE}",
    "memory": "it ran out of memory",
    "data": "its data cannot be read",
    "config": "it cannot use the settings",
    "refused": "it refuses",  # and says what: see SiteRefusal
    "version": "its dcfl speaks another version of the protocol: install the server's there",
    "disk": "its disk refused what it had to keep",
    "error": "an error, which its own log explains",
}


class ClientLost(ClientFailure):
    """Its process died under it, of itself or with others that were told to end."""


class ClientLate(ClientFailure):
    """It has not answered by the round's deadline."""

    outcome = "late"


class ClientRejected(ClientFailure):
    """What it answered cannot be read."""

    outcome = "rejected"
