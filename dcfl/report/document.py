"""A self-contained page of sections, tables and pictures; and its tables as text."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.figure import Figure

from dcfl.report import plots
from dcfl.report.charts import Chart, shown_chart
from dcfl.report.shell import json_in_html, rendered
from dcfl.system.printable import printable

# Characters that LaTeX would misread, and how they are written instead.
LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "\N{MINUS SIGN}": "$-$",
    "–": "--",
    "<": "$<$",
    ">": "$>$",
}


@dataclass(frozen=True)
class Picture:
    """A figure, and the chart that takes its place where scripts run."""

    title: str
    draw: Callable[[], Figure]  # called only if the page shows it
    alt: str
    explanation: str
    chart: Chart | None = None
    covered: bool = False  # another picture's chart shows this too

    @property
    def source(self) -> str:
        """A data: address."""
        encoded = base64.b64encode(plots.as_svg(self.draw())).decode("ascii")
        return f"data:image/svg+xml;base64,{encoded}"

    @property
    def chart_json(self) -> Markup:
        return json_in_html(shown_chart(self.chart or {}))


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column names the row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""

    def markdown(self) -> str:
        aligned = ["---", *("---:" for _ in self.columns[1:])]
        lines = [self.columns, aligned, *self.rows]
        body = "\n".join(f"| {' | '.join(_markdown(cell) for cell in line)} |" for line in lines)
        return "\n\n".join(filter(None, [self.title and f"**{self.title}**", body, self.note]))

    def latex(self) -> str:
        """A tabular with the rules of booktabs."""

        def row(cells: Sequence[str]) -> str:
            return " & ".join(map(_latex, cells)) + r" \\"

        body = "\n".join(map(row, self.rows))
        return (
            f"\\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}\n"
            f"\\toprule\n{row(self.columns)}\n"
            f"\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
        )

    def csv(self) -> str:
        stream = io.StringIO()
        lines = ([printable(cell) for cell in line] for line in [self.columns, *self.rows])
        csv.writer(stream, lineterminator="\n").writerows(lines)
        return stream.getvalue()


@dataclass(frozen=True)
class Section:
    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


def latex_tables(sections: Iterable[Section]) -> str:
    """The tables of all sections, with their titles as comments."""
    parts = []
    for section in sections:
        for table in section.tables:
            title = ", ".join(filter(None, [section.title, table.title]))
            parts.append(f"% {printable(title)}\n{table.latex()}")
    return "\n".join(parts)


def render_document(
    title: str,
    facts: Sequence[tuple[str, str]],
    headline: str,
    sections: Sequence[Section],
    cautions: Sequence[str] = (),
) -> str:
    return rendered(
        "document.html.j2",
        title=title,
        facts=facts,
        headline=headline,
        sections=sections,
        cautions=cautions,
    )


def _markdown(cell: str) -> str:
    return printable(" ".join(cell.split())).replace("\\", r"\\").replace("|", r"\|")


def _latex(cell: str) -> str:
    return "".join(LATEX.get(char, char) for char in printable(cell))
