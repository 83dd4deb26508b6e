"""`python -m benchmarks.bench`: dcfl, the floor and other frameworks on the same jobs, and what a
round of each method costs beside FedAvg's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import torch
import typer

from benchmarks.bench.jobs import JOBS, tiny, write_job
from benchmarks.bench.measure import (
    Measurement,
    as_json,
    contenders,
    jobs_table,
    measure_all,
    methods_json,
    methods_table,
    peer_environment,
)
from dcfl.cli.options import AsJSON, print_json
from dcfl.config import method_named
from dcfl.data import Augmentation, Dataset, DataSettings, Images, Partition
from dcfl.data.augment import Preparation
from dcfl.errors import ConfigError
from dcfl.experiment import EngineSettings, Experiment, FederationSettings, OutputSettings
from dcfl.local_training import LocalTraining
from dcfl.methods import METHODS
from dcfl.models import ModelSettings
from dcfl.runs.run import Run
from dcfl.system.storage import strict_json, write_whole
from dcfl.system.wording import print_warning, say

Seconds = dict[str, list[float]]
IMAGES = {"lenet": 512, "cnn": 512, "resnet18": 64}  # of the client, for a round of seconds


def method_seconds(
    model: str, methods: Sequence[str], repeats: int, show: Callable[[str], None]
) -> Seconds:
    """Seconds of `repeats` rounds of each method: five epochs of one client with the paper's
    settings. The round before them gives the client its memory and the prototypes."""
    dataset = _noise(IMAGES[model])
    seconds: Seconds = {name: [] for name in methods}
    with ExitStack() as folders:
        rounds = {}
        for name in methods:
            folder = folders.enter_context(tempfile.TemporaryDirectory())
            rounds[name] = Run(_experiment(name, model, repeats, folder), dataset).rounds()
        for repeat in range(repeats + 1):
            for name, rows in rounds.items():
                row = next(rows)
                if repeat:
                    seconds[name].append(row.seconds - row.evaluation_seconds)
            show(f"{repeat}/{repeats}")
        for rows in rounds.values():
            rows.close()
    return seconds


def _experiment(method: str, model: str, repeats: int, folder: str) -> Experiment:
    return Experiment(
        data=DataSettings(clients=1),
        model=ModelSettings(model),
        training=LocalTraining(),
        method=METHODS[method](),
        federation=FederationSettings(rounds=repeats + 2, participation=1.0),
        engine=EngineSettings(workers=1, device="cpu"),
        output=OutputSettings(folder, report=False, keep_checkpoint=False),
    )


def _noise(images: int) -> Dataset:
    """Ten classes of random images of 32 pixels, all of one client; cropped and flipped."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, 32, 32, 3), generator=generator, dtype=torch.uint8)
    labels = torch.arange(images) % 10
    return Dataset(
        "noise",
        Images(pixels, labels),
        Images(pixels[:10], labels[:10]),
        tuple("0123456789"),
        Preparation((0.5,) * 3, (0.25,) * 3, Augmentation(crop=4, flip=True)),
        Partition.of_parts([np.arange(images)]),
    )


WATCHED_SECONDS = 1.0  # in which this process does nothing
BUSY = 0.25  # of the cores: times are not to be trusted


def time_jobs(
    jobs: str, repeats: int, peers: Path | None, out: Path | None, small: bool
) -> dict[str, dict[str, list[Measurement]]]:
    """By job and contender. `jobs`: comma-separated names; `peers`: holds the peers'
    environments."""
    chosen = _names(jobs, JOBS, "--jobs: no job")
    _warn_if_busy()
    pythons = {}
    if peers is not None:
        for name in ("pfl", "flower"):
            _say("environment of")(name)
            pythons[name] = peer_environment(name, peers.absolute())
    measured: dict[str, dict[str, list[Measurement]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        # On a busy machine, two threads of the floor wait for each other for minutes.
        competing = contenders(pythons, floor_threads=1 if small else 2)
        for name in chosen:
            folder = Path(scratch) / name
            write_job(tiny(JOBS[name]) if small else JOBS[name], folder)
            measured[name] = measure_all(competing, folder, repeats, _say(name))
            _save(out, as_json(measured))
    return measured


def time_methods(models: str, methods: str, repeats: int, out: Path | None) -> dict[str, Seconds]:
    """By model and method. Without `methods`, all of them."""
    chosen = _names(models, IMAGES, "--models: no model")
    others = [method_named(name.strip()).name for name in methods.split(",") if name.strip()]
    compared = list(dict.fromkeys(["fedavg", *(others or METHODS)]))
    measured: dict[str, Seconds] = {}
    _warn_if_busy()
    for name in chosen:
        measured[name] = method_seconds(name, compared, repeats, _say(name))
        _save(out, methods_json(measured))
    return measured


def _warn_if_busy() -> None:
    cores = os.cpu_count() or 1
    busy = psutil.cpu_percent(WATCHED_SECONDS) / 100 * cores
    if busy > BUSY * cores:
        print_warning(
            f"the machine is busy: {busy:.1f} of {cores} cores are at work on something else, so "
            f"times will be too long, and ratios wrong"
        )


def _names(text: str, known: Collection[str], complaint: str) -> list[str]:
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in known:
            raise ConfigError(f"{complaint} {name!r}; known: {', '.join(known)}")
    return chosen


def _say(about: str) -> Callable[[str], None]:
    return lambda text: say(f"{about} {text}")


def _save(out: Path | None, measured: Mapping[str, Any]) -> None:
    """After each part, so that an interrupted benchmark keeps what it has."""
    if out is not None:
        write_whole(out, strict_json(measured, indent=1) + "\n")


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
    in_json: AsJSON = False,
) -> None:
    """Time J1, J2 and J3: seconds per round, start-up and memory, beside the bare SGD steps."""
    if context.invoked_subcommand:
        return
    measured = time_jobs(jobs, repeats or (1 if tiny else 5), peers, out, tiny)
    if in_json:
        print_json(as_json(measured))
        return
    print(jobs_table(measured))
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
    in_json: AsJSON = False,
) -> None:
    """What a round of each method costs beside FedAvg's."""
    measured = time_methods(models, methods, repeats, out)
    if in_json:
        print_json(methods_json(measured))
    else:
        print(methods_table(measured))


if __name__ == "__main__":
    bench(prog_name="python -m benchmarks.bench")
