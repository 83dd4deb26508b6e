"""From an experiment and its data to a workbench: the same one wherever clients train."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from dcfl.data import Augmentation, Dataset, Partition
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.federation import cohort_size
from dcfl.methods import Method
from dcfl.privacy import Schedule, account, check_budget


def resolved(experiment: Experiment, dataset: Dataset, partition: Partition) -> Experiment:
    """With what was left open written out: the data's name, its clients and its augmentation, and
    how the server merges what the method sends."""
    augmentation = experiment.data.augmentation(dataset.preparation.augmentation)
    _check_augmentation(augmentation, experiment.method, dataset)
    experiment.federation.require_cohorts(len(partition))
    cohort = cohort_size(len(partition), experiment.federation.participation)
    experiment.server.require_replies(cohort, len(partition))
    complete = replace(
        experiment,
        method=experiment.server.fitted(experiment.method),
        data=replace(
            experiment.data,
            dataset=dataset.name,
            clients=len(partition),
            partition=experiment.data.partition if dataset.partition is None else "given",
            **asdict(augmentation),
        ),
    )
    whole = schedule(complete, complete.federation.rounds)
    check_budget(complete.privacy, complete.method, whole)
    return complete


def schedule(experiment: Experiment, rounds: int) -> Schedule:
    """Who is asked in so many rounds. `experiment` is resolved."""
    federation = experiment.federation
    return Schedule(experiment.data.clients, federation.participation, federation.seed, rounds)


def privacy_spent(experiment: Experiment, rounds: int, again: int = 0) -> dict[str, Any]:
    """What a client gave away in so many rounds, for the summary; see `privacy.account`."""
    at_sites = experiment.engine.name == "flower"
    privacy = replace(experiment.privacy, secret=experiment.privacy.secret or at_sites)
    return account(privacy, experiment.method, schedule(experiment, rounds), again)


def _check_augmentation(augmentation: Augmentation, method: Method, dataset: Dataset) -> None:
    if augmentation.crop >= dataset.size:
        raise ConfigError(
            f"data.crop = {augmentation.crop} could push a whole image of {dataset.size} pixels "
            f"out of sight: choose less"
        )
    if augmentation.cutout >= dataset.size:
        raise ConfigError(
            f"data.cutout = {augmentation.cutout} would blank images of {dataset.size} pixels: "
            f"choose less"
        )
    if method.second_view and not augmentation.active:
        raise ConfigError(
            "the method wants a second view of each image, and without augmentation it would be "
            "the same: set data.crop, data.flip or data.rotation"
        )
