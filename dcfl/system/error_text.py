"""An error in one line, with the place it came from."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from dcfl.system.printable import one_line

# Where an error shows rather than where it was made: in dcfl, the standard library or a package.
_LIBRARIES = tuple(
    str(folder)
    for folder in (
        Path(__file__).parents[1],
        *(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)


def described(error: BaseException) -> str:
    """Its kind, its text, and the file and line: the last that is the user's own, if there is one,
    rather than the depths of a library."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*_LIBRARIES, "<"))]
    last = (own or frames)[-1:]
    place = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in last)
    return f"{type(error).__name__}: {one_line(error)}{place}"
