"""A self-contained page of sections, tables and pictures; and its tables as text."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from dcfl.report import plots, text
from dcfl.system.printable import printable, printable_lines

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
    title: str
    source: str  # a data: address
    alt: str
    explanation: str

    @classmethod
    def of(cls, title: str, figure: Figure, alt: str, explanation: str) -> Picture:
        encoded = base64.b64encode(plots.as_svg(figure)).decode("ascii")
        return cls(title, f"data:image/svg+xml;base64,{encoded}", alt, explanation)


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


def rendered(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(version=version("dcfl"), **values)


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


def _markdown(cell: str) -> str:
    return printable(" ".join(cell.split())).replace("\\", r"\\").replace("|", r"\|")


def _latex(cell: str) -> str:
    return "".join(LATEX.get(char, char) for char in printable(cell))
