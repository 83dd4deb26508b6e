"""Text for people: printable, quiet if asked; how to install; names that were meant."""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
import shlex
import shutil
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

MAX_CHARACTERS = 2000


def printable(text: object, longest: int = MAX_CHARACTERS) -> str:
    """Text on one line, with nothing that acts on a terminal, a page or a file: control characters,
    line breaks, marks that reorder text and broken Unicode become escapes.

    Text that is too long loses its middle: names differ at the end, and messages end with advice.
    """
    shown = escaped(str(text))
    if len(shown) <= longest:
        return shown
    tail = longest // 4
    return f"{shown[: longest - tail - 1]}…{shown[-tail:]}"


def some(names: Iterable[object], most: int = 5, longest: int = 40) -> str:
    """The first of perhaps thousands of names: `a, b and 3 more`."""
    names = list(names)
    shown = ", ".join(printable(name, longest) for name in names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def one_line(message: object) -> str:
    """Other libraries' messages may span several lines."""
    return " ".join(str(message).split())


def print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line on standard error; replaces `warnings.showwarning`."""
    print(printable(f"dcfl: warning: {one_line(message)}"), file=sys.stderr)


def printable_lines(text: str) -> str:
    """As `printable`, for text of any length that may have several lines."""
    return "\n".join(map(escaped, text.split("\n")))


def whole_number(text: str) -> int | None:
    """What these digits stand for; None for other text, and for more digits than any number here
    has: Python converts no more than some thousands."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


# What makes a spreadsheet run a cell's text, also in the wide forms of East Asian keyboards.
FORMULA = tuple("=+-@\t\r\n＝＋－＠")
NUMBER = re.compile(r"[-+]?([\d.,]+(e[-+]?\d+)?( ?%)?|inf|nan)?", re.IGNORECASE)


def csv_line(cells: Iterable[object]) -> str:
    """A line of a CSV file. Text that a spreadsheet would run gets an apostrophe in front."""
    stream = io.StringIO(newline="")
    # Only characters of the line's end are quoted inside a cell.
    csv.writer(stream, lineterminator="\r\n").writerow(map(_harmless, cells))
    return stream.getvalue().removesuffix("\r\n") + "\n"


def _harmless(cell: object) -> object:
    if (
        isinstance(cell, str)
        and cell.lstrip("'").startswith(FORMULA)
        and not NUMBER.fullmatch(cell)
    ):
        return f"'{cell}"
    return cell


def without_apostrophe(cell: str) -> str:
    """A cell's text as it was before `csv_line` wrote it."""
    return cell[1:] if cell[:1] == "'" and cell.lstrip("'").startswith(FORMULA) else cell


_quiet = False


def be_quiet(quiet: bool) -> None:
    """Whether `say` is silent from now on, in this process."""
    global _quiet
    _quiet = quiet


def quiet() -> bool:
    return _quiet


def say(text: str, end: str = "\n") -> None:
    if not _quiet:
        print(text, end=end, file=sys.stderr, flush=True)


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


CLONE = Path(__file__).parents[2]  # where it is one, and not the site-packages of a wheel


def install_command(extra: str) -> str:
    """How to install an extra: pip finds the installed dcfl and adds what the extra needs. torch
    stays as it is: another package could replace a CPU build by gigabytes for CUDA, or bring a
    torchvision that is built for another torch."""
    constraints = CLONE / "constraints.txt"
    here = Path.cwd() == CLONE
    tested = ["-c", constraints.name if here else str(constraints)] if constraints.is_file() else []
    kept = f"torch=={version('torch')}"
    return f"{_install()} {shlex.join([*tested, f'dcfl[{extra}]', kept])}"


def _install() -> str:
    python, pip = shlex.quote(sys.executable), shutil.which("pip")
    if pip and Path(pip).parent == Path(sys.executable).parent:
        return "pip install"
    if find_spec("pip") is None and shutil.which("uv"):
        return f"uv pip install --python {python}"
    return f"{python} -m pip install"


def typed(key: str, value: str | Sequence[str | float]) -> str:
    """A setting as it is typed in a shell: data.class_names='["cat","dog"]'."""
    if not isinstance(value, str):
        value = json.dumps([*value], ensure_ascii=False, separators=(",", ":"))
    return f"{key}={shlex.quote(value)}"


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: a suggestion, or the known names."""
    names = list(known)
    by_letters = {name.casefold(): name for name in reversed(names)}  # capitals are no difference
    matches = difflib.get_close_matches(word.casefold(), by_letters, n=1, cutoff=0.5)
    if matches:
        return f": did you mean {by_letters[matches[0]]}?"
    return f"; known: {', '.join(names)}" if names else ": there is nothing to set"
