"""Where a comparison goes: the terminal, JSON, CSV and LaTeX."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcfl.cli.options import print_json
from dcfl.errors import ConfigError
from dcfl.system.wording import printable

if TYPE_CHECKING:
    from dcfl.comparisons.standing import Standing

STDOUT = Path("-")

CSVFile = Annotated[
    Path | None,
    typer.Option("--csv", metavar="FILE", help="Write a row per method; - prints it instead."),
]
LatexFile = Annotated[
    Path | None,
    typer.Option("--latex", metavar="FILE", help="Write tables for LaTeX; - prints them instead."),
]
Target = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=100,
        metavar="PERCENT",
        help="Show what it takes to reach this accuracy; by default the first method's EMA.",
    ),
]


@dataclass(frozen=True)
class ComparisonOutput:
    """What the user asked for. Made before anything is trained, so that mistakes cost nothing."""

    as_json: bool = False
    csv: Path | None = None
    latex: Path | None = None

    def __post_init__(self) -> None:
        if self._printed > 1:
            raise ConfigError("--json, --csv - and --latex - all print: choose one of them")
        for option, path in self._files.items():
            if path.is_dir():
                raise ConfigError(f"{option} {path}: that is a folder, name a file")
            if (path.parent / "rounds.jsonl").exists():
                raise ConfigError(f"{option} {path}: {path.parent} is a run, name another folder")
            nearest = next(folder for folder in path.absolute().parents if folder.exists())
            if not nearest.is_dir():
                raise ConfigError(f"{option} {path}: {nearest} is not a folder")

    @property
    def printed(self) -> bool:
        """Does standard output belong to another program?"""
        return self._printed > 0

    @property
    def _printed(self) -> int:
        return self.as_json + (self.csv == STDOUT) + (self.latex == STDOUT)

    @property
    def _files(self) -> dict[str, Path]:
        asked = {"--csv": self.csv, "--latex": self.latex}
        return {option: path for option, path in asked.items() if path not in (None, STDOUT)}

    def write(self, standing: Standing, folder: dict[str, Any]) -> None:
        """`folder` is what JSON has beside the numbers."""
        from dcfl.comparisons.verdict import verdict
        from dcfl.report.comparison_section import csv_text, latex_text
        from dcfl.system.storage import storage, write_whole

        for path, text_of in ((self.csv, csv_text), (self.latex, latex_text)):
            if path == STDOUT:
                print(text_of(standing), end="")
            elif path is not None:
                with storage(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, text_of(standing))
        if self.as_json:
            print_json({**standing.to_json(), "verdict": verdict(standing), **folder})

    def tell(self) -> None:
        for option, path in self._files.items():
            print(printable(f"{option.removeprefix('--'):6}  {path}"))


def print_standing(standing: Standing) -> None:
    """The table of methods, what an accuracy costs, and the verdict."""
    from dcfl.cli.tables import comparison_table, plain_table
    from dcfl.cli.terminal import stdout
    from dcfl.comparisons.verdict import verdict
    from dcfl.report.comparison_section import costs_table

    stdout.print(comparison_table(standing))
    if len(standing.groups) > 1:
        for task in standing.tasks:
            print()
            stdout.print(plain_table(costs_table(standing, task)))
    if sentences := verdict(standing):
        print()
        for sentence in sentences:  # whole lines for a pipe, whole words for a person
            stdout.print(printable(sentence), soft_wrap=not stdout.is_terminal)
        print()
