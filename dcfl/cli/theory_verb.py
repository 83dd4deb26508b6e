"""`dcfl theory`. numpy and matplotlib are imported inside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcfl.cli.options import AsJSON, print_json, whole_numbers
from dcfl.system.printable import printable

if TYPE_CHECKING:
    from dcfl.studies.theory.theory_page import Result

# Of 64 in a batch, 63 are others; with Dirichlet 0.3 on CIFAR-10 21 of these are positives.
BATCHES = ((1, 63), (1, 42), (21, 42))
OTHER_TEMPERATURES = (1.0, 0.5, 0.2, 0.1, 0.05)
COMPARED_AT = 64  # negatives


def theory(
    temperature: Annotated[float, typer.Option(help="τ of the loss.")] = 0.5,
    dimension: Annotated[
        str, typer.Option(metavar="D,...", help="Of the space whose unit sphere features lie on.")
    ] = "3,128",
    samples: Annotated[
        str, typer.Option(metavar="M,...", help="Numbers of negatives.")
    ] = "4,8,16,32,64,128,256,512,1024,2048",
    repetitions: Annotated[int, typer.Option(help="Draws of the loss for each M.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="For theory.html, theory.csv and theory.json.")
    ] = Path("theory"),
    as_json: AsJSON = False,
) -> None:
    """The paper's theorem and proposition measured: the loss with M negatives, and its limit."""
    result = _measure(
        temperature,
        whole_numbers(dimension, "--dimension"),
        whole_numbers(samples, "--samples"),
        repetitions,
        seed,
    )
    values = _write(result, out)
    if as_json:
        print_json({**values, "folder": str(out)})
    else:
        _show(result)
        print(printable(f"page  {out / 'theory.html'}"))


def _measure(
    temperature: float, dimensions: list[int], negatives: list[int], repetitions: int, seed: int
) -> Result:
    from dcfl.studies.theory.limits import Sphere, measure, require_counts, study
    from dcfl.studies.theory.theory_page import Result

    # Before anything is drawn: a mistake in the last word costs no time.
    spheres = [Sphere(temperature, dimension) for dimension in dict.fromkeys(dimensions)]
    require_counts(negatives, repetitions, seed)
    others = sorted({*OTHER_TEMPERATURES, temperature}, reverse=True)
    return Result(
        [study(sphere, negatives, repetitions, seed, BATCHES) for sphere in spheres],
        [
            (sphere, measure(sphere, COMPARED_AT, repetitions, seed))
            for sphere in (Sphere(other, spheres[0].dimension) for other in others)
        ],
        repetitions,
        seed,
    )


def _write(result: Result, out: Path) -> dict[str, Any]:
    from dcfl.studies.theory.theory_page import csv_text, render
    from dcfl.system.storage import storage, strict_json, write_whole

    values = {
        "repetitions": result.repetitions,
        "seed": result.seed,
        "studies": [study.as_json() for study in result.studies],
        "temperatures": [
            {"temperature": sphere.temperature, "dimension": sphere.dimension, **point.as_json()}
            for sphere, point in result.temperatures
        ],
    }
    with storage(out):
        out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "theory.html", render(result))
    write_whole(out / "theory.csv", csv_text(result))
    write_whole(out / "theory.json", strict_json(values, indent=2) + "\n")
    return values


def _show(result: Result) -> None:
    from dcfl.cli.terminal import stdout, table
    from dcfl.studies.theory.theory_page import batches_table, claims, points_table, slopes_table

    for study in result.studies:
        for each in (points_table(study), slopes_table(study), batches_table(study)):
            shown = table(*each.columns, title=each.title)
            for row in each.rows:
                shown.add_row(*row)
            stdout.print(shown)
            stdout.print(f"{each.note}\n")
        for said, found in claims(study):
            stdout.print(said, style="bold")
            stdout.print(f"{found}\n")
