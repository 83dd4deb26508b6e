"""What the server learns of a site that fails or refuses: a code, or one line of the site's rules.

A refusal names settings and reveals nothing of the site's data. The braces are filled with words of
the run's own config or of the site's rules.
"""

from __future__ import annotations

import errno
import re
from enum import StrEnum
from typing import NamedTuple

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
from dcfl.system.wording import printable

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
}
_ADVICE = {  # beside what the reason says already
    "class": "rename the folder, move it away, or agree on the class with all sites",
    "version": "install the server's dcfl at the site",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LINE = re.compile(r"^dcfl failed \((\w+)\): (.+)$", re.MULTILINE)


def code_of(error: Exception) -> str:
    """The key of CODES for an error."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return "disk"
    if type(error).__name__ == "OutOfMemoryError":  # torch's; a SuperNode does without torch
        return "memory"
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
        """The failure as a line of the site's log."""
        return printable(f"dcfl failed ({self.code}): {self.reason}")

    @property
    def advice(self) -> str:
        """The reason, and what else helps."""
        more = _ADVICE.get(self.code)
        return f"{self.reason} ({more})" if more else self.reason


def failures_in(log: str) -> list[LoggedFailure]:
    """The failures that a site has logged, the oldest first."""
    found = (LoggedFailure(*match.groups()) for match in _LINE.finditer(log))
    return [failure for failure in found if failure.code in CODES]


class Refusal(StrEnum):
    UPDATES_WITHHELD = "it withholds updates: it evaluates and does not train"
    SCORES_WITHHELD = "it withholds scores"
    METHOD_TELLS_CLASSES = (
        "it withholds class counts, and what {method} sends beside the weights may tell them: "
        "choose a method.name that sends weights alone, such as fedavg or dcfl-sw"
    )
    SIZES_WEIGHED = (
        'it withholds sizes, and server.aggregation = "{aggregation}" weighs by them: use "uniform"'
    )
    ENOUGH_ANSWERED = "it has answered {kind} as often as it allows: {count} {span}"
    NOISE_DEMANDED = "privacy.noise = {noise:g}: it sends nothing with less than {least:g}"
    SHARE_DEMANDED = (
        'privacy.where = "sum": its own share of the noise is {noise:g}, and it sends nothing with '
        "less than {least:g} unless its node config has secure-sum"
    )
    PRIVACY_DEMANDED = "it sends updates with [privacy] alone: set privacy.clip and privacy.noise"
    NOT_LENT = "it lends its personal part to nobody"
    PERSONAL_UNPROTECTED = (
        "it sends what it learned with noise alone, and scores of its personal part have none"
    )
    STATISTICS_UNPROTECTED = (
        "it sends what it learned with noise alone, and statistics of its images have none"
    )
    HOLDOUT_UNPROTECTED = (
        "it sends what it learned with noise alone, and data.holdout would have it score training "
        "images without noise: leave data.holdout out"
    )
    BUDGET_SPENT = (
        "one more answer would bring it to {reached} at delta {delta:g}, and its own budget is "
        "epsilon {budget:g}"
    )
    BUDGET_UNPROTECTED = (
        "its own privacy budget does not hold: by its record it has answered without noise before"
    )
    RECORD_CHANGED = "what it has answered cannot be counted: its record was changed"
    NOT_ACCOUNTED = "its own privacy budget cannot be counted: dcfl[privacy] is not installed there"
    SUM_DEMANDED = (
        "its replies leave it in sums of at least {least} replies alone: set server.secure, and "
        "server.secure_threshold for rounds of enough clients"
    )
    STATISTICS_NO_SUM = (
        "its replies leave it in sums of at least {least} replies alone, and statistics of its "
        "images are no sum"
    )
    SUM_STEP = "server.secure: it takes each step of a round once, in order; this is not next"
    SUM_OF_FEW = "server.secure: a sum of {found} clients, where {needed} are needed"
    SUM_OF_STRANGERS = "server.secure: a list of clients that does not fit its part in the round"
    APP_NOT_PINNED = "it runs apps with other hashes than this one's, {digest}"
    APP_NAME = "the app's name or version could lead out of the folder of apps"
    APP_NOT_CHECKED = (
        "app-sha256 in its node config is checked by `dcfl flower supernode`, and it was started "
        "by another command"
    )
    WITHHOLDS_NOTHING_KNOWN = "withhold in its node config has an unknown word {word}{nearest}"

    def error(self, **facts: object) -> SiteRefusal:
        return SiteRefusal(self.value.format(**facts))
