"""A self-contained page of sections, tables and charts; and its tables as text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dcfl.report.charts import Chart
from dcfl.system.storage import storage, strict_json, write_whole
from dcfl.system.wording import csv_line, printable, printable_lines

HERE = Path(__file__).parent
UPLOT = HERE / "vendor" / "uplot"
CHART = '<script type="application/json">'  # begins a chart's data; foreign text cannot
START = "dcflPage.start();"
KINDS = ("chart_curves.js", "chart_panels.js", "chart_matrix.js")
CHARTS = ("chart_parts.js", "chart_svg.js", *KINDS, "charts.js")

# Characters that LaTeX would misread, and how they are written instead.
LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "\N{MINUS SIGN}": "$-$",
    "–": "--",
    "†": r"$^{\dagger}$",
    "<": "$<$",
    ">": "$>$",
}


@dataclass(frozen=True)
class Picture:
    title: str
    alt: str
    explanation: str
    chart: Chart | None  # None: there is nothing to draw yet
    wide: bool = False  # as wide as the page, also beside others
    printed: bool = True  # also as a figure for a paper

    @property
    def chart_json(self) -> Markup:
        return json_in_html(shown(self.chart))


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column names the row. On a page, what follows a line's end in a cell
    is smaller."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""  # Markup, or text
    sentences: bool = False  # cells are words, not numbers
    bold: frozenset[tuple[int, int]] = frozenset()  # cells by row and column; in LaTeX

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, str]], title: str = "", note: str = "") -> Table:
        """A row for each mapping, of which there is at least one; its keys are the columns."""
        return cls(list(rows[0]), [list(row.values()) for row in rows], title, note)

    def markdown(self) -> str:
        aligned = ["---", *("---:" for _ in self.columns[1:])]
        lines = [self.columns, aligned, *self.rows]
        body = "\n".join(f"| {' | '.join(_markdown(cell) for cell in line)} |" for line in lines)
        return "\n\n".join(filter(None, [self.title and f"**{self.title}**", body, self.note]))

    def latex(self) -> str:
        def line(cells: Sequence[str], at: int = -1) -> str:
            texts = (
                rf"\textbf{{{_latex(text)}}}" if (at, across) in self.bold else _latex(text)
                for across, text in enumerate(cells)
            )
            return rf"{' & '.join(texts)} \\"

        body = "\n".join(line(cells, at) for at, cells in enumerate(self.rows))
        return (
            f"\\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}\n"
            f"\\toprule\n{line(self.columns)}\n"
            f"\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
        )

    def csv(self) -> str:
        return "".join(csv_line(map(printable, line)) for line in [self.columns, *self.rows])


@dataclass(frozen=True)
class Detail:
    """What opens at a click: texts with their headings."""

    summary: str
    paragraph: str
    texts: Sequence[tuple[str, str]]
    tag: str = ""


@dataclass(frozen=True)
class Section:
    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    details: Sequence[Detail] = ()


@dataclass(frozen=True)
class Page:
    title: str
    facts: Sequence[tuple[str, str]]
    headline: str
    sections: Sequence[Section]
    cautions: Sequence[str] = ()

    @property
    def content(self) -> Markup:
        """What stands on it, without the scripts and styles that every page has."""
        return Markup(_environment().get_template("content.html.j2").render(page=self))

    @property
    def html(self) -> str:
        return whole_page(self.title, self.content)


def write_page(page: Page, out: Path, figures: Path | None = None) -> Path:
    html = page.html
    with storage(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, html)
    if figures is not None:
        from dcfl.report.figures import write_figures  # the only place that needs matplotlib

        write_figures(page.sections, figures)
    return out


def latex_tables(sections: Iterable[Section]) -> str:
    titled = [(section.title, table) for section in sections for table in section.tables]
    return "\n".join(
        f"% {printable(', '.join(filter(None, [title, table.title])))}\n{table.latex()}"
        for title, table in titled
    )


def whole_page(title: str, body: Markup, follow: str = "") -> str:
    """`follow` is a script that keeps the page up to date; it may ask the page's own server."""
    has_charts = CHART in body or bool(follow)
    drawing = ("uplot.js", *CHARTS) if has_charts else ()
    style = Markup("\n".join(map(_asset, ("uplot.css",) * has_charts + ("page.css",))))
    script = Markup("\n".join([*map(_asset, (*drawing, "page.js")), START, follow]))
    template = _environment().get_template("base.html.j2")
    return template.render(
        title=title,
        body=body,
        style=style,
        script=script,
        policy=_policy(style, script, bool(follow)),
        has_charts=has_charts,
        follows=bool(follow),
        version=version("dcfl"),
    )


def json_in_html(value: Any) -> Markup:
    """JSON for a script element: no character in it can end the element or begin a comment."""
    safe = strict_json(value)
    for char in "<>&":
        safe = safe.replace(char, f"\\u{ord(char):04x}")
    return Markup(safe)


def shown(value: Any) -> Any:
    """The value with nothing in its texts that acts on a page; our own markup stays."""
    if isinstance(value, str):
        return value if isinstance(value, Markup) else printable_lines(value)
    if isinstance(value, dict):
        return {key: shown(inner) for key, inner in value.items()}
    return [shown(inner) for inner in value] if isinstance(value, list | tuple) else value


def _policy(style: str, script: str, follows: bool) -> str:
    rules = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": _hash(style),
        "script-src": _hash(script),
        "connect-src": "'self'" if follows else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {source}" for name, source in rules.items())


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


@cache
def _asset(name: str) -> str:
    """uPlot comes with its licence."""
    if name == "uplot.js":
        licence = (UPLOT / "LICENSE").read_text("utf-8")
        return f"/*! uPlot\n{licence}\n*/\n{(UPLOT / 'uPlot.iife.min.js').read_text('utf-8')}"
    path = UPLOT / "uPlot.min.css" if name == "uplot.css" else HERE / name
    return path.read_text("utf-8")


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("dcfl.report", ""),
        # Names of classes, folders and methods are other people's text.
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _markdown(cell: str) -> str:
    return printable(" ".join(cell.split())).replace("\\", r"\\").replace("|", r"\|")


def _latex(cell: str) -> str:
    return "".join(LATEX.get(char, char) for char in printable(cell))
