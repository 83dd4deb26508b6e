"""The cells of a reproduction on disk: which are done, and what the others will cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dcfl import tensors as named
from dcfl.config import as_tables
from dcfl.data import Dataset, load_dataset
from dcfl.engines.placement import choose_devices
from dcfl.engines.runner import client_runner, reproducible
from dcfl.errors import ConfigError, RunFolderError
from dcfl.evaluation import score
from dcfl.experiment import Experiment
from dcfl.federation import cohort_size
from dcfl.messages import Broadcast
from dcfl.methods import METHODS
from dcfl.models import FeatureModel
from dcfl.runs.folder import RecordedRun
from dcfl.runs.identity import complete, differences, flat
from dcfl.runs.prepare import resolved
from dcfl.studies.recipes.recipe import Cell

WARM_UP = 5.0  # seconds: a client's epoch that took less is timed again
FAILED = "failed.txt"  # in the folder of a cell whose clients all diverged: says why
TIMED_IMAGES = 500  # test images, to time the evaluation


@dataclass(frozen=True)
class CellFolder:
    """A cell, and the folder that its run is recorded in."""

    cell: Cell
    path: Path

    @property
    def name(self) -> str:
        return self.cell.name

    @cached_property
    def run(self) -> RecordedRun | None:
        """As it was when first read; None if it has not begun."""
        if not (self.path / "config.toml").is_file():
            return None
        run = RecordedRun.open(self.path)
        refuse_another_run(self.cell.experiment, run)
        return run

    def check(self) -> None:
        """Refuse a damaged or a different run, before any time is spent on the other cells."""
        if self.run is not None and self.run.finished:
            _ = self.run.rounds  # reading them checks them

    @property
    def finished(self) -> bool:
        return self.run is not None and self.run.finished

    @property
    def failed(self) -> str:
        """Why the method diverged; empty if it did not, or has not yet."""
        path = self.path / FAILED
        return path.read_text(encoding="utf-8") if path.is_file() and not self.finished else ""

    @property
    def ended(self) -> bool:
        return self.finished or bool(self.failed)

    @property
    def rounds_left(self) -> int:
        done = len(self.run.rounds) if self.run else 0
        return 0 if self.ended else self.cell.experiment.federation.rounds - done

    @property
    def experiment(self) -> Experiment:
        return replace(
            self.cell.experiment,
            output=replace(self.cell.experiment.output, dir=str(self.path), report=False),
        )


def refuse_another_run(experiment: Experiment, run: RecordedRun) -> None:
    """A folder of the same name with other settings must not pass for a result of this recipe."""
    wanted, recorded = complete(flat(as_tables(experiment))), complete(flat(run.config))
    for key, value, before in differences(wanted, recorded, "result", "seed"):
        if value != "auto":  # a recorded config has what "auto" stood for
            raise RunFolderError(
                f"{run.folder} holds another run: {key} was {before!r} and would be {value!r}; "
                f"give the recipe another folder with --out"
            )


def matching(cells: Iterable[CellFolder], only: Sequence[str]) -> list[CellFolder]:
    """The cells whose name contains one of the texts; each once, though recipes may share them."""
    unique = {cell.name: cell for cell in cells}
    if not only:
        return list(unique.values())
    for text in only:
        if not any(text in name for name in unique):
            raise ConfigError(
                f"--only {text}: no such cell; the first is {next(iter(unique))}, and `--plan` "
                f"shows all {len(unique)}"
            )
    return [cell for cell in unique.values() if any(text in cell.name for text in only)]


class Costs:
    """Seconds, from a measured part of a round of FedAvg and the methods' stated costs."""

    def __init__(self) -> None:
        self._measured: dict[tuple[object, ...], tuple[float, float]] = {}

    def of(self, cell_folder: CellFolder) -> float:
        return (
            cell_folder.rounds_left * self.round(cell_folder.cell.experiment)
            if cell_folder.rounds_left
            else 0.0
        )

    def round(self, experiment: Experiment) -> float:
        epoch, evaluation = self._parts(experiment)
        method, data = experiment.method, experiment.data
        step = (method.cost.forwards + 2 * method.cost.backwards) / 3
        passes = step * (2 if method.second_view else 1) * experiment.training.epochs
        cohort = cohort_size(data.clients, experiment.federation.participation)
        return cohort * epoch * (passes + method.cost.passes / 3) + evaluation

    def _parts(self, experiment: Experiment) -> tuple[float, float]:
        """An epoch of one client, and an evaluation; measured once for all cells of that kind."""
        data, batch = experiment.data, experiment.training.batch_size
        key = (data.dataset, data.clients, experiment.model, batch, experiment.engine)
        if key not in self._measured:
            self._measured[key] = _measure(experiment)
        return self._measured[key]


def _measure(experiment: Experiment) -> tuple[float, float]:
    plain = replace(
        experiment,
        method=METHODS["fedavg"](),
        training=replace(experiment.training, epochs=1),
    ).seeded
    dataset = load_dataset(plain.data)
    device = choose_devices(plain.engine.device)[0]
    partition = plain.data.split(dataset)
    runner = client_runner(resolved(plain, dataset, partition), dataset, partition).on(device)
    broadcast = Broadcast(1, named.snapshot(runner.model), {})
    with reproducible(plain.engine.threads):
        epoch = _timed(lambda: runner.train(broadcast, 0, {}))
        if epoch < WARM_UP:  # most of it was spent on the very first step
            epoch = _timed(lambda: runner.train(broadcast, 0, {}))
        return epoch, _evaluation(runner.model, runner.data.dataset)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _evaluation(model: FeatureModel, dataset: Dataset) -> float:
    sample = replace(dataset, test=dataset.test[:TIMED_IMAGES])
    images = len(sample.test)
    return _timed(lambda: score(model, sample, 0, images)) * len(dataset.test) / max(images, 1)
