"""`dcfl analyse`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcfl.cli.options import AsJSON, MethodFile, print_json, register
from dcfl.system.printable import printable

if TYPE_CHECKING:
    from rich.table import Table

    from dcfl.studies.analysis.findings import Analysis

BESIDE = 4  # runs in one table on the terminal


def analyse(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Where to write the page and the numbers; analysis/ in the run's folder, or here "
            "for several runs, if not given.",
        ),
    ] = None,
    clients: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many clients train a round for the drift.")
    ] = 10,
    drift: Annotated[
        bool, typer.Option("--drift/--no-drift", help="Let clients train a round, or not.")
    ] = True,
    alpha: Annotated[
        float,
        typer.Option("--alignment-alpha", metavar="ALPHA", help="Alignment: mean |u - v|^ALPHA."),
    ] = 2.0,
    t: Annotated[
        float,
        typer.Option("--uniformity-t", metavar="T", help="Uniformity: log mean e^(-T |u - v|^2)."),
    ] = 2.0,
    method_file: MethodFile = None,
    as_json: AsJSON = False,
) -> None:
    """What finished runs have learned: cosines within and between classes, alignment, uniformity,
    dimensions in use, drift, and a picture. Several runs side by side."""
    from dcfl.cli.terminal import stdout
    from dcfl.report import find_runs
    from dcfl.runs.folder import require_own
    from dcfl.studies.analysis.analysis_page import write_analysis
    from dcfl.studies.analysis.findings import analyse_runs
    from dcfl.studies.analysis.similarity import Exponents

    exponents = Exponents(alpha, t)
    if method_file:
        register(method_file)
    if out is None:
        out = folders[0] / "analysis" if len(folders) == 1 else Path("analysis")
        require_own(out)
    runs = {run.folder.resolve(): run for folder in folders for run in find_runs(folder)}

    def tell(text: str) -> None:
        print(printable(f"analyse  {text}"), file=sys.stderr, flush=True)

    analyses = analyse_runs(list(runs.values()), clients, drift, tell, exponents)
    page = write_analysis(analyses, out)
    if as_json:
        print_json({"runs": [each.as_json() for each in analyses], "page": str(page)})
        return
    for first in range(0, len(analyses), BESIDE):
        stdout.print(numbers_table(analyses[first : first + BESIDE]))
    for each in analyses:
        for caution in each.cautions:
            print(printable(f"dcfl: warning: {each.label}: {caution}"), file=sys.stderr)
    print(printable(f"page  {page}"))


def numbers_table(analyses: list[Analysis]) -> Table:
    """A column per run."""
    from dcfl.cli.terminal import table
    from dcfl.report.text import number

    made = table("", *(each.label for each in analyses))

    def row(name: str, values: list[float], digits: int = 3, unit: str = "") -> None:
        made.add_row(name, *(f"{number(value, digits)}{unit}" for value in values))

    row("accuracy", [each.accuracy for each in analyses], 2, " %")
    for kind in ("intra", "inter"):
        cosines = [getattr(each.similarity, kind) for each in analyses]
        made.add_row(
            f"{kind}-class cosine",
            *(f"{number(each.mean, 3)} ± {number(each.deviation, 3)}" for each in cosines),
        )
        made.add_row(
            "  5, 50, 95 %",
            *(", ".join(number(value, 2) for value in each.percentiles) for each in cosines),
        )
    found = [each.similarity for each in analyses]
    row("overlap", [100 * each.overlap for each in found], 1, " %")
    exponents = found[0].exponents
    row(f"alignment (α = {exponents.alpha:g}), same class", [each.alignment for each in found])
    row("  two views", [each.view_alignment for each in found])
    row(f"uniformity (t = {exponents.t:g})", [each.uniformity for each in found])
    row("  different classes", [each.inter_uniformity for each in found])
    dimensions = [each.dimensions for each in analyses]
    made.add_row("constant dimensions", *(f"{each.still} of {each.width}" for each in dimensions))
    made.add_row(
        "effective rank",
        *(
            f"{number(each.effective_rank, 1)} ({number(100 * each.rank_share, 1)} %)"
            for each in dimensions
        ),
    )
    drifts = [each.drift for each in analyses if each.drift]
    if drifts:
        row("drift of weights", [each.weights for each in drifts], 4)
        row("drift of features", [each.features for each in drifts], 4)
        row("cosine of two updates", [each.agreement for each in drifts])
    return made
