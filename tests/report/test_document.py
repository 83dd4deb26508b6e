"""A page of sections, and its tables in three notations."""

import csv
import io
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from dcfl.report.document import Section, Table, render_document
from dcfl.system.wording import printable

CELLS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)
ODD = Table(("Method & co", "50 %"), [("a|b_c", "1.0 ± 0.2"), (r"\x", "\N{MINUS SIGN}3")], note="n")


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
    assert read == [["a", "b"], *([printable(cell) for cell in row] for row in rows)]


class Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_data(self, data: str) -> None:
        self.seen.append(data.strip())


def test_the_page_shows_everything_and_runs_nothing() -> None:
    section = Section("Numbers", ["<script>alert(1)</script>"], [ODD])
    page = render_document("Title", [("seeds", "3")], "It holds", [section], ["Careful"])
    words = Words()
    words.feed(page)
    for wanted in ("Title", "seeds", "It holds", "Careful", "Numbers", "a|b_c", "1.0 ± 0.2", "n"):
        assert wanted in words.seen
    assert page.count("<script") == 1  # ours
    assert "alert(1)</script>" not in page
