"""Settings as a person types them after a command, and names as a person may have meant them."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterable, Sequence


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
