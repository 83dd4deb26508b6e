"""Text from elsewhere (names, paths, reasons, messages of libraries), made safe to show."""

from __future__ import annotations

import sys

MAX_CHARACTERS = 2000


def printable(text: object, longest: int = MAX_CHARACTERS) -> str:
    """On one line, with nothing that acts on a terminal, a page or a file: control characters, line
    breaks, marks that reorder text and broken Unicode become escapes.

    Text that is too long loses its middle: names differ at the end, and messages end with advice.
    """
    shown = escaped(str(text))
    if len(shown) <= longest:
        return shown
    tail = longest // 4
    return f"{shown[: longest - tail - 1]}…{shown[-tail:]}"


def one_line(message: object) -> str:
    """Other libraries' messages may span several lines."""
    return " ".join(str(message).split())


def print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """In place of `warnings.showwarning`: one line on standard error."""
    print(printable(f"dcfl: warning: {one_line(message)}"), file=sys.stderr)


def printable_lines(text: str) -> str:
    """The same for text of any length that may have several lines."""
    return "\n".join(map(escaped, text.split("\n")))


def escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
