"""A self-contained page of sections, tables and pictures; and its tables as text."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from dcfl.report import plots, text
from dcfl.report.charts import Chart, shown_chart
from dcfl.system.storage import strict_json
from dcfl.system.wording import printable, printable_lines

HERE = Path(__file__).parent
UPLOT = HERE / "vendor" / "uplot"
CHART = '<script type="application/json">'  # begins a chart's data; foreign text cannot
START = "dcflPage.start();"
CHARTS = ("chart_parts.js", "chart_curves.js", "chart_panels.js", "chart_matrix.js", "charts.js")


def rendered(template: str, **values: Any) -> str:
    """A whole page. The template makes its content."""
    return whole_page(values["title"], content(template, **values))


def content(template: str, *, stills: bool = True, **values: Any) -> Markup:
    """What stands on a page. Without `stills`, pictures that have a chart are not drawn."""
    return Markup(_environment().get_template(template).render(stills=stills, **values))


def whole_page(title: str, body: Markup, follow: str = "") -> str:
    """`follow` is a script that keeps the page up to date; it may ask the page's own server."""
    styles, scripts = ["page.css"], ["page.js"]
    if CHART in body or follow:
        styles, scripts = ["uplot.css", *styles], ["uplot.js", *CHARTS, *scripts]
    style = Markup("\n".join(map(_asset, styles)))
    script = Markup("\n".join([*map(_asset, scripts), START, follow]))
    return (
        _environment()
        .get_template("base.html.j2")
        .render(
            title=title,
            body=body,
            style=style,
            script=script,
            policy=_policy([style], [script], bool(follow)),
            has_charts=len(scripts) > 1,
            follows=bool(follow),
            version=version("dcfl"),
        )
    )


def json_in_html(value: Any) -> Markup:
    """JSON for a script element: no character in it can end the element or begin a comment."""
    safe = strict_json(value)
    for char in "<>&":
        safe = safe.replace(char, f"\\u{ord(char):04x}")
    return Markup(safe)


def _policy(styles: Sequence[str], scripts: Sequence[str], follows: bool) -> str:
    rules = {
        "default-src": ["'none'"],
        "img-src": ["data:"],
        "style-src": [_hash(style) for style in styles],
        "script-src": [_hash(script) for script in scripts],
        "connect-src": ["'self'"] if follows else ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    return "; ".join(" ".join([name, *sources]) for name, sources in rules.items())


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
    environment = Environment(
        loader=PackageLoader("dcfl.report", ""),
        # Names of classes, folders and methods are other people's text.
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=text.number,
        signed=text.signed,
        deviation=text.deviation,
        interval=text.interval,
        on_images=text.on_images,
        plural=text.plural,
    )
    return environment


def _shown(value: Any) -> Any:
    foreign = isinstance(value, str) and not isinstance(value, Markup)  # Markup is ours
    return printable_lines(value) if foreign else value


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
