"""`dcfl theory`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcfl.cli.options import AsJSON, print_json, whole_numbers
from dcfl.system.printable import printable

if TYPE_CHECKING:
    from dcfl.studies.theory.theory_study import TheoryResult

# Positives and negatives among the other 63 images of a batch of 64: one positive; one positive and
# as many negatives as Dirichlet 0.3 on CIFAR-10 leaves; and all 21 positives of that split.
BATCHES = ((1, 63), (1, 42), (21, 42))
OTHER_TEMPERATURES = (1.0, 0.5, 0.2, 0.1, 0.05)
COMPARED_AT = 64  # negatives

Dimensions = Annotated[
    str,
    typer.Option(metavar="D,...", help="Dimensions of the space whose unit sphere holds features."),
]
Negatives = Annotated[str, typer.Option(metavar="M,...", help="Numbers of negatives.")]
OutFolder = Annotated[
    Path, typer.Option(metavar="DIR", help="For theory.html, theory.csv and theory.json.")
]


def theory(
    temperature: Annotated[float, typer.Option(help="τ of the loss.")] = 0.5,
    dimension: Dimensions = "3,128",
    samples: Negatives = "4,8,16,32,64,128,256,512,1024,2048",
    repetitions: Annotated[int, typer.Option(help="Draws of the loss for each M.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    out: OutFolder = Path("theory"),
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
        _print_result(result)
        print(printable(f"page  {out / 'theory.html'}"))


def _measure(
    temperature: float, dimensions: list[int], negatives: list[int], repetitions: int, seed: int
) -> TheoryResult:
    from dcfl.studies.theory.limits import measure, require_counts
    from dcfl.studies.theory.sphere import Sphere
    from dcfl.studies.theory.theory_study import TheoryResult, study

    # Checked before anything is drawn: a mistake in the last number costs no time.
    spheres = [Sphere(temperature, dimension) for dimension in dict.fromkeys(dimensions)]
    require_counts(negatives, repetitions, seed)
    others = sorted({*OTHER_TEMPERATURES, temperature}, reverse=True)
    return TheoryResult(
        [study(sphere, negatives, repetitions, seed, BATCHES) for sphere in spheres],
        [
            (sphere, measure(sphere, COMPARED_AT, repetitions, seed))
            for sphere in (Sphere(other, spheres[0].dimension) for other in others)
        ],
        repetitions,
        seed,
    )


def _write(result: TheoryResult, out: Path) -> dict[str, Any]:
    from dcfl.studies.theory.theory_page import render
    from dcfl.studies.theory.theory_tables import csv_text
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


def _print_result(result: TheoryResult) -> None:
    from dcfl.cli.terminal import new_table, stdout
    from dcfl.studies.theory.claims import claims
    from dcfl.studies.theory.theory_tables import batches_table, points_table, slopes_table

    for study in result.studies:
        for table in (points_table(study), slopes_table(study), batches_table(study)):
            shown = new_table(*table.columns, title=table.title)
            for row in table.rows:
                shown.add_row(*row)
            stdout.print(shown)
            stdout.print(f"{table.note}\n")
        for claim, finding in claims(study):
            stdout.print(claim, style="bold")
            stdout.print(f"{finding}\n")
