"""What a federation is compared with: every client alone, all data in one place, fine-tuning."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Literal

from dcfl.clock.settings import ClockSettings
from dcfl.comparisons.cells import Cell, CellFolder
from dcfl.comparisons.groups import EPOCHS, fine_tuned
from dcfl.data import Dataset, load_dataset
from dcfl.errors import (
    ConfigError,
    DatasetCorrupt,
    DatasetMissing,
    PartitionError,
    RunFolderError,
    SettingsWarning,
)
from dcfl.experiment import AttackSettings, Experiment, FaultSettings
from dcfl.federation import cohort_size
from dcfl.methods import METHODS
from dcfl.privacy import PrivacySettings
from dcfl.runs.evaluations import BASELINE, write_evaluation
from dcfl.runs.folder import RecordedRun
from dcfl.runs.prepare import resolved
from dcfl.server import ServerSettings
from dcfl.server.compression import CompressionSettings

Kind = Literal["alone", "pooled"]
KINDS: tuple[Kind, ...] = ("alone", "pooled")


def baselines_for(experiment: Experiment, dataset: Dataset | None = None) -> dict[Kind, Experiment]:
    """With as many passes over the images as the experiment makes, to whole rounds. All clients
    train in each of them, and the learning rate falls as far. `dataset`: the images, if they are
    in memory."""
    experiment.data.require_here()
    plain = replace(
        experiment,
        method=METHODS["fedavg"](),
        training=replace(experiment.training, head_epochs=0),
        server=ServerSettings(),
        privacy=PrivacySettings(),
        compression=CompressionSettings(),
        faults=FaultSettings(),
        attack=AttackSettings(),
        clock=ClockSettings(),
        output=replace(experiment.output, keep_best=False),
        federation=replace(
            experiment.federation,
            personal=(),
            minimum_replies=1,
            patience=0,
            target_accuracy=0.0,
            selection="uniform",
        ),
    )
    data = plain.seeded_data
    dataset = load_dataset(data) if dataset is None else data.fitted(dataset)
    partition = data.split(dataset)
    clients = len(partition)
    share = resolved(plain, dataset, partition).federation.share
    before = plain.federation.rounds
    rounds = max(1, round(before * cohort_size(clients, share) / clients))
    decay = plain.training.lr_decay ** (before / rounds)
    training = replace(plain.training, lr_decay=decay)
    return {
        kind: replace(
            plain,
            training=training,
            federation=replace(
                plain.federation,
                baseline=kind,
                rounds=rounds,
                participation=1.0 if kind == "alone" else 1 / clients,
                # Alone, clients are scored at the end: there is no global model.
                evaluate_every=rounds if kind == "alone" else plain.federation.evaluate_every,
            ),
        )
        for kind in KINDS
    }


TUNED_FURTHER = ("fedavg", "fedbabu")  # methods whose clients train the model that they get
# What of a run cannot be evaluated: for one, a network that cannot be built from its name, images
# that have gone, a model that has diverged.
CANNOT = (ConfigError, DatasetCorrupt, DatasetMissing, PartitionError, RunFolderError)


def fine_tune(cell: CellFolder[Cell]) -> None:
    """Every client trains a run's last model on its own images; what it then scores is recorded."""
    from dcfl.trained.evaluate import evaluation_of

    experiment = cell.cell.experiment
    shared = experiment.method.name in TUNED_FURTHER and not experiment.own_models
    here = cell.begun and not experiment.engine.at_sites
    if not (shared and here and experiment.federation.baseline == "none"):
        return
    run = RecordedRun.open(cell.path)
    if not run.finished:
        return
    try:
        if fine_tuned(run) is None:
            record = evaluation_of(cell.path, clients=True, fine_tune=EPOCHS)
            write_evaluation(cell.path, record, BASELINE)
    except CANNOT as error:
        warnings.warn(f"{cell.name} is not fine-tuned: {error}", SettingsWarning, stacklevel=2)
