"""Text that others have chosen, made fit to be read: names, paths, reasons, what a library said."""

from __future__ import annotations

LONGEST = 2000  # characters of a message


def printable(text: object, longest: int = LONGEST) -> str:
    """On one line, and nothing in it that acts on a terminal, a page or a file: control
    characters, line breaks, marks that reorder text and broken Unicode are shown as escapes.

    What is too long loses its middle: names differ, and messages give advice, at the end.
    """
    shown = escaped(str(text))
    if len(shown) <= longest:
        return shown
    tail = longest // 4
    return f"{shown[: longest - tail - 1]}…{shown[-tail:]}"


def printable_lines(text: str) -> str:
    """The same for text whose line breaks are meant, of any length."""
    return "\n".join(map(escaped, text.split("\n")))


def escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
