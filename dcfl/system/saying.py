"""What a command says on the side while it works: on standard error, unless it is to be quiet.

Results, warnings and errors are not said here, so that `--quiet` does not silence them.
"""

from __future__ import annotations

import sys

_quiet = False


def be_quiet(quiet: bool) -> None:
    """From now on, in this process."""
    global _quiet
    _quiet = quiet


def quiet() -> bool:
    return _quiet


def say(text: str, end: str = "\n") -> None:
    if not _quiet:
        print(text, end=end, file=sys.stderr, flush=True)
