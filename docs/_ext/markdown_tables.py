"""Tables for pages that are made."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def key_table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """One whose rows are stacked on a phone: see site.css, which knows the kinds."""
    return f"```{{table}}\n:class: keys {kind}\n\n{table(head, rows)}\n```"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
