"""`dcfl bench ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    repeats: Annotated[int, typer.Option(min=1, help="How often each contender runs.")] = 5,
    peers: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also pfl and Flower, in environments of their own below DIR; made if missing.",
        ),
    ] = None,
    out: Measurements = None,
    tiny: Annotated[bool, typer.Option(help="A few seconds of each, to try it out.")] = False,
) -> None:
    """Time J1, J2 and J3: seconds per round, start-up and memory, beside the bare SGD steps."""
    if context.invoked_subcommand:
        return
    from dcfl.studies.bench.harness import time_jobs

    print(time_jobs(jobs, repeats, peers, out, tiny))


@bench.command("methods")
def methods(
    models: Annotated[str, typer.Option(metavar="cnn,resnet18", help="On which models.")] = "cnn",
    methods: Annotated[
        str, typer.Option(metavar="A,B,C", help="Which, besides FedAvg; all if not given.")
    ] = "",
    repeats: Annotated[int, typer.Option(min=1, help="How often each method runs.")] = 5,
    out: Measurements = None,
) -> None:
    """What a round of each method costs beside FedAvg's."""
    from dcfl.studies.bench.harness import time_methods

    print(time_methods(models, methods, repeats, out))
