"""The errors dcfl raises. Each message is one line: what went wrong, where, and what to do.

Each class derives from the built-in exception a Python user would catch, and carries the exit code
of the command line.
"""

from __future__ import annotations

from typing import Literal

from dcfl.system.wording import printable

LONGEST_REASON = 500  # characters of the reason why a client was left out


class DCFLError(Exception):
    """The base class: `except dcfl.errors.DCFLError` catches everything except bugs in dcfl."""

    exit_code = 2


class ConfigError(DCFLError, ValueError):
    """A setting is unknown, or its value is invalid."""


class SettingsWarning(UserWarning):
    """The settings are valid but probably not what the user wants."""


class LeakWarning(UserWarning):
    """Accuracies may be too high: what is scored is known from training."""


def require(condition: bool, message: str) -> None:
    """Check a value in the `__post_init__` of a settings dataclass."""
    if not condition:
        raise ConfigError(message)


class DatasetMissing(DCFLError, FileNotFoundError):
    """The data set's files are not in any expected place."""


class DatasetCorrupt(DCFLError, ValueError):
    """The data set's files exist, but their content is wrong."""


class BrokenPicture(DatasetCorrupt):
    """A file cannot be decoded as a picture."""


class ClassNotAgreed(DatasetCorrupt):
    """A folder is not named like any of the agreed classes."""


class PartitionError(DCFLError, ValueError):
    """The data cannot be split over the clients as requested."""


class RunFolderError(DCFLError, OSError):
    """The folder blocks a new run, or its content is damaged."""


class RunMissing(RunFolderError, FileNotFoundError):
    """The folder lacks the requested run, or the requested part of it."""


class RunLocked(DCFLError, OSError):
    """Another process is using the folder."""

    exit_code = 5


class Interrupted(DCFLError):
    """The run stopped after a round because it was asked to; it can be resumed."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StorageError(DCFLError, OSError):
    """The disk is full, read-only or broken."""

    exit_code = 3


class CheckpointError(DCFLError, OSError):
    """A file needed to resume is missing or has changed since it was written."""

    exit_code = 3


class NetworkError(DCFLError, ConnectionError):
    """A connection, download or answer over the network failed."""

    exit_code = 6


class RemoteRunFailed(DCFLError, RuntimeError):
    """A run on a SuperLink failed there."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


NO_LONGER_FINITE = "loss is no longer finite"


class Diverged(DCFLError, ArithmeticError):
    """Loss or weights, a client's or the server's, are no longer finite."""


class ProtocolError(DCFLError, ValueError):
    """A reply does not match the request."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message, LONGEST_REASON))  # it may quote text a client chose


class RefusedBySite(ProtocolError):
    """The reply of a site that has decided not to answer."""


class ProtocolMismatch(ProtocolError):
    """The peer's dcfl speaks another version of the protocol."""


class SiteRefusal(ConfigError):
    """A site refuses what a run asks of it. The server reads the message too, so it names
    settings and reveals nothing else about the site."""


class TooFewClients(DCFLError, RuntimeError):
    """Too few usable replies for the run to continue."""

    exit_code = 4


class WorkersLost(DCFLError, RuntimeError):
    """Worker processes keep dying, whatever they work on."""

    exit_code = 4


class ClientFailure(DCFLError, RuntimeError):
    """One client failed in a round; the run continues without it."""

    outcome: Literal["failed", "late", "rejected"] = "failed"

    def __init__(
        self,
        client: int,
        reason: str,
        code: str = "error",
        traffic: tuple[int, int] | None = None,
    ) -> None:
        """`code`: a key of CODES, all that may leave the client's machine. `traffic`: bytes up and
        down, if measured."""
        self.client = client
        self.reason = printable(" ".join(reason.split()), LONGEST_REASON)
        super().__init__(f"client {client}: {self.reason}")
        self.code = code
        self.traffic = traffic


# All that a client tells the server about its failure, because details might reveal its data, and
# what the server says of it.
CODES = {
    "diverged": f"its {NO_LONGER_FINITE}",
    "memory": "it ran out of memory",
    "data": "its data cannot be read",
    "picture": 'one of its pictures is broken; data.broken = "skip" leaves it out',
    "class": "it has a folder whose name is not one of the agreed data.class_names",
    "config": "it cannot use the settings",
    "refused": "it refuses",  # SiteRefusal says what
    "version": "its dcfl is another version than the server's: install the server's there",
    "unsent": "it has lost the weights that a node gets when it joins: restart its node",
    "disk": "its disk is full, or cannot be written",
    "error": "an error, which its own log explains",
}


class ClientLost(ClientFailure):
    """Its worker process died, by itself or because it was told to end."""


class ClientLate(ClientFailure):
    """The client did not answer by the round's deadline."""

    outcome = "late"


class ClientRejected(ClientFailure):
    """The client's answer cannot be read."""

    outcome = "rejected"
