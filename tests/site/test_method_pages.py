"""Every method has a page with the same parts; what is made for it is what the code says."""

import json
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dcfl.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs"
PARTS = ["What it sends, keeps and costs", "Knobs", "Our results", "The paper, and where we differ"]


def facts() -> Any:
    return import_module("method_facts")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_with_all_parts(name: str) -> None:
    text = (DOCS / "methods" / f"{name}.md").read_text()
    heads = re.findall(r"^## (.*)", text, re.MULTILINE)
    assert heads[0] in ("The loss", "The step")
    assert heads[1:] == PARTS
    assert "$$" in text
    marks = re.findall(r"<!-- made: ([\w-]+) ([\w-]+) -->", text)
    assert {method for _, method in marks} == {name}
    assert f"methods/{name}\n" in (DOCS / "methods.md").read_text()


def test_the_page_beside_other_frameworks_counts_them() -> None:
    cells = re.findall(r"^\| methods beyond FedAvg \| \[(\d+)\]", _features(), re.MULTILINE)
    assert cells == [str(len(METHODS) - 1)] * 2


def test_each_peer_cell_there_says_where_it_was_read() -> None:
    used = {*re.findall(r"\]\[(\w+)\]", _features())}
    known = dict(re.findall(r"^\[(\w+)\]: (.+)", _features(), re.MULTILINE))
    assert used == known.keys()
    assert all(re.search(r"/(blob|tree)/[0-9a-f]{40}/", url) for url in known.values())


def _features() -> str:
    return (DOCS / "features.md").read_text()


def test_the_idea_takes_three_sentences() -> None:
    for name in METHODS:
        text = (DOCS / "methods" / f"{name}.md").read_text()
        idea = text.split("\n\n")[1].replace("\n", " ")
        assert len(re.findall(r"[.!?](?= |$)", idea)) == 3, name


@pytest.mark.parametrize("name", METHODS)
def test_knobs_are_the_fields(name: str) -> None:
    keys = re.findall(r"^\| `method\.(\w+)`", facts().knobs(name), re.MULTILINE)
    assert keys == [field.name for field in fields(METHODS[name])]


def test_measured_numbers_are_the_recorded_ones() -> None:
    results = json.loads((DOCS.parent / "benchmarks/results/digits-methods.json").read_text())
    for row in results["methods"]:
        assert f"{row['ema_accuracy']['mean']:.2f} ±" in facts().results(row["method"])
    speed = (DOCS / "speed.md").read_text()
    for name in METHODS:
        for ratio in facts().times(name).values():
            assert re.search(rf"^\| {name} +\| {ratio:.2f}", speed, re.MULTILINE)


def test_traffic_is_told_in_words() -> None:
    assert "sends, beyond the weights | nothing" in facts().costs("fedavg")
    assert "up: as much as the model" in facts().costs("scaffold")
    assert "a client keeps between rounds | a copy of the model" in facts().costs("moon")
