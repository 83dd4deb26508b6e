"""`python -m benchmarks.bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dcfl.cli.options import AsJSON, print_json

bench = typer.Typer(
    help="Speed: dcfl, the floor and other frameworks.", invoke_without_command=True
)

Measurements = Annotated[
    Path | None, typer.Option(metavar="FILE.json", help="Write the measurements here.")
]


@bench.callback()
def jobs(
    context: typer.Context,
    jobs: Annotated[str, typer.Option(metavar="J1,J2,J3", help="Which jobs.")] = "J1,J2,J3",
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="How often each contender runs: 5 times, with --tiny once."),
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also pfl and Flower, in environments of their own below DIR; made if missing.",
        ),
    ] = None,
    out: Measurements = None,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="About a minute in all, to try it out.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Time J1, J2 and J3: seconds per round, start-up and memory, beside the bare SGD steps."""
    if context.invoked_subcommand:
        return
    from benchmarks.bench import measurements
    from benchmarks.bench.harness import time_jobs

    measured = time_jobs(jobs, repeats or (1 if tiny else 5), peers, out, tiny)
    if as_json:
        print_json(measurements.as_json(measured))
        return
    print(measurements.jobs_table(measured))
    if tiny:
        print(
            "\nA trial, with the floor on one core: it shows that it works, and little about speed."
        )


@bench.command("methods")
def methods(
    models: Annotated[str, typer.Option(metavar="cnn,resnet18", help="On which models.")] = "cnn",
    methods: Annotated[
        str, typer.Option(metavar="A,B,C", help="Which, besides FedAvg; all if not given.")
    ] = "",
    repeats: Annotated[int, typer.Option(min=1, help="How often each method runs.")] = 5,
    out: Measurements = None,
    as_json: AsJSON = False,
) -> None:
    """What a round of each method costs beside FedAvg's."""
    from benchmarks.bench import measurements
    from benchmarks.bench.harness import time_methods

    measured = time_methods(models, methods, repeats, out)
    if as_json:
        print_json(measurements.methods_json(measured))
    else:
        print(measurements.methods_table(measured))


if __name__ == "__main__":
    bench(prog_name="python -m benchmarks.bench")
