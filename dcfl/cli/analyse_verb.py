"""`dcfl analyse`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcfl.cli.options import (
    AsJSON,
    FiguresFolder,
    Folders,
    MethodFile,
    ModelFile,
    print_json,
    run_own_files,
)
from dcfl.system.wording import printable, say

if TYPE_CHECKING:
    from rich.table import Table

    from dcfl.analysis.findings import Analysis

RUNS_PER_TABLE = 4  # more do not fit beside each other on a terminal

AnalysisFolder = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Where to write the page and the numbers; if not given, analysis/ in the run's "
        "folder, or here for several runs.",
    ),
]
DriftClients = Annotated[
    int, typer.Option(min=1, metavar="N", help="How many clients train a round for the drift.")
]
WithDrift = Annotated[
    bool, typer.Option("--drift/--no-drift", help="Let clients train a round, or not.")
]
AlignmentAlpha = Annotated[
    float,
    typer.Option("--alignment-alpha", metavar="ALPHA", help="Alignment: mean |u - v|^ALPHA."),
]
UniformityT = Annotated[
    float,
    typer.Option("--uniformity-t", metavar="T", help="Uniformity: log mean e^(-T |u - v|^2)."),
]


def analyse(
    folders: Folders,
    out: AnalysisFolder = None,
    figures: FiguresFolder = None,
    clients: DriftClients = 10,
    drift: WithDrift = True,
    alpha: AlignmentAlpha = 2.0,
    t: UniformityT = 2.0,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    as_json: AsJSON = False,
) -> None:
    """What finished runs have learned: cosines, alignment, dimensions in use, drift, a picture.

    Several runs are shown side by side.
    """
    from dcfl.analysis.analysis_page import write_analysis
    from dcfl.analysis.findings import analyse_runs
    from dcfl.analysis.similarity import Exponents
    from dcfl.report import find_runs
    from dcfl.runs.folder import require_own

    exponents = Exponents(alpha, t)
    run_own_files(method_file, model_file)
    if out is None:
        out = folders[0] / "analysis" if len(folders) == 1 else Path("analysis")
        require_own(out)
    runs = {run.folder.resolve(): run for folder in folders for run in find_runs(folder)}
    analyses = analyse_runs(list(runs.values()), clients, drift, _tell, exponents)
    page = write_analysis(analyses, out, figures)
    if as_json:
        print_json({"runs": [analysis.as_json() for analysis in analyses], "page": str(page)})
    else:
        _print_analyses(analyses, page)


def _tell(text: str) -> None:
    say(printable(f"analyse  {text}"))


def _print_analyses(analyses: Sequence[Analysis], page: Path) -> None:
    from dcfl.cli.terminal import stdout

    for start in range(0, len(analyses), RUNS_PER_TABLE):
        stdout.print(numbers_table(analyses[start : start + RUNS_PER_TABLE]))
    for analysis in analyses:
        for caution in analysis.cautions:
            print(printable(f"dcfl: warning: {analysis.label}: {caution}"), file=sys.stderr)
    print(printable(f"page  {page}"))


def numbers_table(analyses: Sequence[Analysis]) -> Table:
    """A column per run."""
    from dcfl.cli.terminal import new_table

    table = new_table("", *(analysis.label for analysis in analyses))
    for row in zip(*map(_numbers, analyses), strict=True):
        name, _ = row[0]
        table.add_row(name, *(value for _, value in row))
    return table


def _numbers(analysis: Analysis) -> Iterator[tuple[str, str]]:
    from dcfl.report.text import number

    yield "accuracy", f"{number(analysis.accuracy, 2)} %"
    for kind, cosines in analysis.kinds:
        mean, deviation = number(cosines.mean, 3), number(cosines.deviation, 3)
        yield f"{kind}-class cosine", f"{mean} ± {deviation}"
        yield "  5, 50, 95 %", ", ".join(number(value, 2) for value in cosines.percentiles)
    similarity = analysis.similarity
    alpha, t = similarity.exponents.alpha, similarity.exponents.t
    yield "overlap", f"{number(100 * similarity.overlap, 1)} %"
    yield f"alignment (α = {alpha:g}), same class", number(similarity.alignment, 3)
    yield "  two views", number(similarity.view_alignment, 3)
    yield f"uniformity (t = {t:g})", number(similarity.uniformity, 3)
    yield "  different classes", number(similarity.inter_uniformity, 3)
    dimensions = analysis.dimensions
    rank, share = number(dimensions.effective_rank, 1), number(100 * dimensions.rank_share, 1)
    yield "constant dimensions", f"{dimensions.still} of {dimensions.width}"
    yield "effective rank", f"{rank} ({share} %)"
    if drift := analysis.drift:
        yield "drift of weights", number(drift.weights, 4)
        yield "drift of features", number(drift.features, 4)
        yield "cosine of two updates", number(drift.agreement, 3)
