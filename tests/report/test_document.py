"""A page: its tables in three notations, what may run on it, what data may say."""

import base64
import csv
import hashlib
import io
import json
import re
from html import unescape
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from dcfl.report.document import UPLOT, Page, Section, Table, json_in_html, whole_page
from dcfl.report.figures import COLOURS
from dcfl.system.wording import printable, without_apostrophe

CELLS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)
ODD = Table(("Method & co", "50 %"), [("a|b_c", "1.0 ± 0.2"), (r"\x", "\N{MINUS SIGN}3")], note="n")

CONTENT = Markup('<main><script type="application/json">{}</script></main>')
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def test_markdown_keeps_its_columns() -> None:
    lines = ODD.markdown().splitlines()
    assert lines[:3] == ["| Method & co | 50 % |", "| --- | ---: |", r"| a\|b_c | 1.0 ± 0.2 |"]
    assert lines[-1] == "n"


def test_latex_has_no_command_that_nobody_wrote() -> None:
    text = ODD.latex()
    assert r"Method \& co & 50 \% \\" in text
    assert r"a|b\_c & 1.0 $\pm$ 0.2 \\" in text
    assert r"\textbackslash{}x & $-$3 \\" in text
    assert text.startswith("\\begin{tabular}{lr}\n\\toprule")


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=4))
def test_csv_reads_back(rows: list[tuple[str, str]]) -> None:
    read = list(csv.reader(io.StringIO(Table(("a", "b"), rows).csv())))
    assert not any(cell.startswith(("=", "@")) for row in read for cell in row)
    cells = [[without_apostrophe(cell) for cell in row] for row in read]
    assert cells == [["a", "b"], *([printable(cell) for cell in row] for row in rows)]


def test_the_page_shows_everything_and_runs_nothing() -> None:
    section = Section("Numbers", ["<script>alert(1)</script>"], [ODD])
    page = Page("Title", [("seeds", "3")], "It holds", [section], ["Careful"]).html
    words = re.sub("<.*?>", "\n", page.partition("<body>")[2]).split("\n")
    for wanted in ("Title", "seeds", "It holds", "Careful", "Numbers", "a|b_c", "1.0 ± 0.2", "n"):
        assert wanted in [word.strip() for word in words]
    assert page.count("<script") == 1  # ours
    assert "alert(1)</script>" not in page


def policy_of(page: str) -> dict[str, list[str]]:
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert found
    return {name: sources for name, *sources in map(str.split, unescape(found[1]).split(";"))}


@given(JSON)
def test_no_data_can_leave_its_script_element(value: Any) -> None:
    written = json_in_html({"a": value, "b": "</script><!--<script>"})
    assert not re.search("[<>&]", written)
    assert json.loads(written)["a"] == value


@pytest.mark.parametrize("follow", ["", "poll();"])
def test_the_policy_names_what_is_in_the_page_and_nothing_else(follow: str) -> None:
    page = whole_page("t", CONTENT, follow)
    allowed = policy_of(page)
    for kind in ("script", "style"):
        texts = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)  # those that act
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in texts]
        assert allowed[f"{kind}-src"] == [f"'sha256-{digest.decode()}'" for digest in hashes]
    assert {*re.findall(r"<(?:script|style)\b(.*?)>", page)} == {"", ' type="application/json"'}
    assert allowed["default-src"] == ["'none'"]
    assert allowed["connect-src"] == (["'self'"] if follow else ["'none'"])
    assert "unsafe" not in str(allowed)


def test_the_library_brings_its_licence_and_pages_without_charts_do_without_it() -> None:
    licence = (UPLOT / "LICENSE").read_text()
    page = whole_page("t", CONTENT)
    assert licence in page
    assert len(page) < 130_000
    assert "uPlot" not in whole_page("t", Markup("<main></main>"))


def test_charts_and_pictures_have_the_same_colours() -> None:
    page = whole_page("t", CONTENT)
    for number, colour in enumerate(COLOURS):
        assert f"--series-{number}: light-dark({colour.lower()}, #" in page


def contrast(one: str, other: str) -> float:
    """As the Web Content Accessibility Guidelines define it."""

    def luminance(colour: str) -> float:
        shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_read_in_both_themes() -> None:
    page = whole_page("t", CONTENT)
    colours = dict(re.findall(r"--([\w-]+): light-dark\((.*?)\);", page))
    themes = [{name: both.split(", ")[at] for name, both in colours.items()} for at in (0, 1)]
    for theme in themes:
        assert contrast(theme["ink"], theme["paper"]) > 7
        for text in ("soft", "accent", "good"):
            assert contrast(theme[text], theme["paper"]) > 4.5
        assert contrast(theme["ink"], theme["caution"]) > 7
    dark = themes[1]
    assert all(contrast(dark[f"series-{n}"], dark["paper"]) > 4.5 for n in range(7))
