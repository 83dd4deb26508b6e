"""Every method has a page with the same parts; what is made for it is what the code says."""

import json
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import get_data_path
from PIL import ImageFont

from benchmarks.ideas import __main__ as pictures
from benchmarks.ideas.marks import IDEAS
from dcfl.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
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


def test_every_page_has_a_picture_of_its_idea_as_drawn() -> None:
    """If not: describe it in benchmarks/ideas/, then `python -m benchmarks.ideas`."""
    pages = {page.stem for page in (DOCS / "methods").glob("*.md")}
    assert pages >= {*METHODS}
    assert IDEAS.keys() == pages == {one.stem for one in pictures.PICTURES.iterdir()}
    for name in pages:
        assert (pictures.PICTURES / f"{name}.svg").read_text("utf-8") == pictures.picture(name)
    assert len({draw() for draw in IDEAS.values()}) == len(pages)


def test_a_page_shows_it_below_the_heading_with_its_description() -> None:
    page = facts().with_idea("fedper", "# FedPer\n\nClients ...\n")
    assert page.startswith("# FedPer\n\n:::{image} ../images/ideas/fedper.svg\n:alt: Features are")
    assert page.endswith("classifier of its own.\n:class: idea\n:::\n\nClients ...\n")


def test_no_word_leaves_its_picture_in_a_wide_font() -> None:
    font = ImageFont.truetype(get_data_path() + "/fonts/ttf/DejaVuSans.ttf", 11)
    for name in IDEAS:
        for word in ElementTree.fromstring(pictures.picture(name)).iter(f"{SVG}text"):
            long = font.getlength(str(word.text))
            before = {"start": 0, "middle": long / 2, "end": long}[word.attrib["text-anchor"]]
            left = float(word.attrib["x"]) - before
            assert 2 < left < left + long < pictures.WIDTH - 2, (name, word.text)


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
