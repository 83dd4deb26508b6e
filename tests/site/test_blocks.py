"""Every code block is run by a test or says why not; every command is one that dcfl understands."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
from typer.core import TyperGroup

from dcfl.cli.main import DEBUG, QUIET, USAGE_ERROR, app
from dcfl.config import CHOICES, SECTIONS
from dcfl.experiment import Experiment
from dcfl.methods import METHODS
from dcfl.server import ServerSettings
from dcfl.server.optimizers import OPTIMIZERS
from tests.site.blocks import FOLLOWED, PAGES, Block, blocks

BLOCKS = [block for page in PAGES for block in blocks(page)]
# Run where the code that they show is tested.
RUN_ELSEWHERE = {
    "how-do-i.md": {"python": "tests/site/test_how_do_i.py"},
    "README.md": {"python": "tests/test_examples.py"},
    "privacy.md": {"python": "tests/test_privacy.py"},
}
SETTING = re.compile(r"(\w+)\.(\w+)=")


def test_there_are_many() -> None:
    assert len([block for block in BLOCKS if block.followed]) > 30
    assert sum(len(block.commands) for block in BLOCKS) > 150
    assert {page.name for page in PAGES} >= FOLLOWED


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.is_typed], ids=str)
def test_each_is_run_or_says_why_not(block: Block) -> None:
    elsewhere = block.language in RUN_ELSEWHERE.get(block.page.name, {})
    assert block.followed or elsewhere or block.reason, (
        "run it (tests/tutorials) or mark it with <!-- not run: why --> above the block"
    )


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.commands], ids=str)
def test_dcfl_understands_each_command(block: Block) -> None:
    for words in block.commands:
        understand([word for word in words[1:] if word not in (QUIET, DEBUG, "...")])


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=str)
def test_python_can_be_read(block: Block) -> None:
    ast.parse(block.text)


@cache
def program() -> Any:
    return typer.main.get_command(app)


def understand(words: list[str]) -> None:
    """Fails for a verb, an option or a config key that does not exist."""
    command = program()
    while isinstance(command, TyperGroup) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    if isinstance(command, TyperGroup):
        assert all(word.startswith("-") for word in words[:1]), f"no verb {words[0]}"
    command.make_parser(typer.Context(command)).parse_args(list(words))
    for word in words:
        if setting := SETTING.match(word):
            assert setting[2] in keys(setting[1]), word


def keys(section: str) -> set[str]:
    """All keys that the table may have, with any method and optimiser."""
    assert section in SECTIONS, section
    owners = {
        "method": list(METHODS.values()),
        "server": [ServerSettings, *OPTIMIZERS.values()],
    }.get(section, [type(getattr(Experiment(), section))])
    names = {name for owner in owners for name in owner.__dataclass_fields__}  # type: ignore[attr-defined]
    return names | ({CHOICES[section][0]} if section in CHOICES else set())


@pytest.mark.parametrize(
    "line", ["run metod.name=moon", "run method.mood=1", "rum", "run --sedes 1"]
)
def test_a_mistake_would_be_found(line: str) -> None:
    with pytest.raises((AssertionError, USAGE_ERROR)):
        understand(line.split())


def test_links_to_elsewhere_are_well_formed() -> None:
    for page in PAGES:
        for address in re.findall(r"https?://[^\s)>\]\"'`]+", page.read_text(encoding="utf-8")):
            parts = urlsplit(address.rstrip(".,;:"))
            local = parts.hostname in ("localhost", "127.0.0.1")
            assert parts.hostname, address
            assert parts.scheme == "https" or local, f"{page.name}: {address}"
            assert "." in parts.hostname or local, address


def test_a_block_with_a_mark_is_not_followed(tmp_path: Path) -> None:
    page = tmp_path / "start.md"
    page.write_text("# A\n\n<!-- not run: it takes hours -->\n```sh\nls\n```\n\n```sh\nls\n```\n")
    marked, plain = blocks(page)
    assert (marked.followed, marked.reason) == (False, "it takes hours")
    assert (plain.followed, plain.reason) == (True, "")
