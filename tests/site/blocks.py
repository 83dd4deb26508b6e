"""The code blocks of the README and the docs, and what the page says about running them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts),
]
# Followed from the first command to the last by tests/tutorials/test_tutorials.py.
FOLLOWED = {
    *("start.md", "low-accuracy.md"),
    *("fair-comparison.md", "own-method.md", "own-pictures.md", "paper-table.md", "sweep.md"),
    "two-hospitals.md",
}
OUTPUT = {"text", "bibtex"}  # shown, not typed
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.{10,}) -->")
PAGE_NOT_RUN = re.compile(r"<!-- commands on this page are not run: (?P<reason>.{10,}) -->")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str  # "" for indented ones and fences without a language
    text: str
    followed: bool
    reason: str  # why it is not run; empty if nothing is said

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """The calls of dcfl in it, as words."""
        if self.language not in ("", "sh", "bash"):
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        calls = [line.strip().removeprefix("$ ") for line in lines]
        return [shlex.split(call, comments=True) for call in calls if call.startswith("dcfl ")]

    @property
    def is_typed(self) -> bool:
        """Whether a reader would type or save it; the rest is output, or a picture in letters."""
        if self.language:
            return self.language not in OUTPUT and not self.language.startswith("{")
        return bool(self.commands)


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    whole = PAGE_NOT_RUN.search(text)
    mark = ""
    for token in MarkdownIt().parse(text):
        if token.type == "html_block":
            found = NOT_RUN.search(token.content)
            mark = found["reason"] if found else ""
        elif token.type in ("fence", "code_block"):
            followed = page.name in FOLLOWED and token.type == "fence" and not mark
            reason = mark or (whole["reason"] if whole else "")
            line = token.map[0] + 1 if token.map else 0
            yield Block(page, line, token.info.strip(), token.content, followed, reason)
            mark = ""
        else:
            mark = ""
