"""What a dataclass says about its fields: the comment behind a field, or the one above it."""

import ast
import inspect
import re
import textwrap
from functools import cache

QUOTED = re.compile(r'(?<!`)"[^"\s]*"(?!`)')


def meanings(owner: type) -> dict[str, str]:
    """By field, from the class and its bases; a field may have none."""
    found: dict[str, str] = {}
    for one in reversed(owner.__mro__):
        if one.__module__.startswith("dcfl"):
            found |= _own_meanings(one)
    return found


@cache
def _own_meanings(owner: type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(owner))
    lines = source.splitlines()
    statements = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    found = {}
    for node in statements:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            comments = [_behind(lines[n]) for n in range(node.lineno - 1, node.end_lineno or 0)]
            text = " ".join(filter(None, comments)) or _above(lines, node.lineno - 1)
            if text:
                found[node.target.id] = as_sentence(text)
    return found


def _behind(line: str) -> str:
    return line.partition("  # ")[2].strip()


def _above(lines: list[str], number: int) -> str:
    """The block of comment lines that ends just before this line."""
    start = number
    while lines[start - 1].strip().startswith("# "):
        start -= 1
    return " ".join(line.strip().removeprefix("# ") for line in lines[start:number])


def as_sentence(text: str) -> str:
    """With a capital and a full stop; values as they stand in a config are in code letters."""
    text = re.sub(r"  # type: ignore.*|type: ignore\S*", "", text).strip()
    text = QUOTED.sub(lambda match: f"`{match[0]}`", text)
    if re.match(r"[a-z]+(\s|[,;:.]?\s|$)", text):  # not of sites:PATH or torch.compile
        text = text[0].upper() + text[1:]
    return f"{text.rstrip('.')}." if text else ""
