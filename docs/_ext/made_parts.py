"""Puts what is made from the code in the place of marks such as <!-- made: verbs -->.

A page of a method needs no mark for the picture of its idea. Where a search for some words should
lead, there is <!-- made: found-by some-words -->.
"""

import re
from collections.abc import Callable
from typing import Any

import api
import config_keys
import method_facts
import verbs
from sphinx.application import Sphinx

MARK = re.compile(r"<!-- made: (?P<what>[\w-]+)(?: (?P<argument>[\w.-]+))? -->")
MAKERS: dict[str, Callable[..., str]] = {
    "api": api.page,
    "config-keys": config_keys.page,
    "verbs": verbs.page,
    "cheat-sheet": verbs.summary,
    "found-by": lambda words: f"```{{index}} ! {words.replace('-', ' ')}\n```",
    **method_facts.MAKERS,
}


def _make(app: Sphinx, name: str, source: list[str]) -> None:
    def made(mark: re.Match[str]) -> str:
        arguments = [mark["argument"]] if mark["argument"] else []
        return MAKERS[mark["what"]](*arguments)

    source[0] = MARK.sub(made, source[0])
    if name.startswith("methods/"):
        source[0] = method_facts.with_idea(name.removeprefix("methods/"), source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _make, priority=400)  # before links are rewritten
    return {"parallel_read_safe": True, "parallel_write_safe": True}
