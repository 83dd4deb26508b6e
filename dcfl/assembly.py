"""From an experiment and its data to a workbench: the same one wherever clients train."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from dcfl.client import evaluating
from dcfl.data import Augmentation, Dataset, FederatedData, Partition
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.federation import cohort_size
from dcfl.messages import Tensors
from dcfl.methods import Method
from dcfl.methods.prototypes import PrototypeMethod
from dcfl.models import FeatureModel, Output, build_model
from dcfl.privacy import Schedule, account, check_budget, check_covered
from dcfl.simulation.attacks import Attack, attack_on
from dcfl.simulation.instructions import (
    LIMIT,
    WITHOUT_AMX,
    avoid_broken_instructions,
    half_precision_works,
)
from dcfl.simulation.placement import choose_devices
from dcfl.simulation.workbench import Workbench


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
    check_budget(complete.privacy, whole)
    return complete


def workbench(
    experiment: Experiment,
    dataset: Dataset,
    partition: Partition,
    model: FeatureModel | None = None,
) -> Workbench:
    """On the CPU. `experiment` is resolved; a `model` of the user's is copied."""
    avoid_broken_instructions()
    if model is None:
        shape = (dataset.channels, dataset.size, dataset.classes)
        made = build_model(experiment.model, *shape, experiment.federation.seed)
    else:
        made = copy.deepcopy(model)
    made = made.to("cpu", memory_format=torch.channels_last)  # type: ignore[call-overload]
    if model is not None:
        _check_outputs(made, dataset)
    engine = experiment.engine
    if engine.precision != "float32":
        if not isinstance(made, FeatureModel):
            raise ConfigError(
                "engine.precision: the model must derive from dcfl.models.FeatureModel"
            )
        on_cpu = choose_devices(engine.device)[0].type == "cpu"
        if on_cpu and not half_precision_works():
            raise ConfigError(
                f"engine.precision: this CPU dies of half precision, and torch was in use before "
                f"dcfl could help it: set {LIMIT}={WITHOUT_AMX} before Python starts"
            )
        made.autocast = getattr(torch, engine.precision)
    check_covered(experiment.privacy, experiment.method, experiment.server.aggregation, made)
    augmentation = experiment.data.augmentation(dataset.preparation.augmentation)
    return Workbench(
        experiment.method,
        made,
        FederatedData(dataset.augmented_by(augmentation), partition),
        experiment.training,
        experiment.federation.seed,
        experiment.faults,
        privacy=experiment.privacy,
        attack=_attack(experiment),
        compile=engine.compile,
    )


def _attack(experiment: Experiment) -> Attack | None:
    method = experiment.method
    return attack_on(
        experiment.data.clients,
        experiment.attack,
        experiment.federation.seed,
        isinstance(method, PrototypeMethod) and method.prototype_normalize,
    )


def expected_upload(bench: Workbench) -> Tensors | None:
    """By its names, shapes and dtypes; None if the method does not say."""
    with torch.no_grad(), evaluating(bench.model):
        width = bench.model(two_images(bench.data.dataset)).embedding.shape[1]
    parameters = dict(bench.model.named_parameters())
    return bench.method.upload_like(parameters, bench.data.dataset.classes, width)


def schedule(experiment: Experiment, rounds: int) -> Schedule:
    """Who is asked in so many rounds. `experiment` is resolved."""
    federation = experiment.federation
    return Schedule(experiment.data.clients, federation.participation, federation.seed, rounds)


def privacy_spent(experiment: Experiment, rounds: int, again: int = 0) -> dict[str, Any]:
    """What a client gave away in so many rounds, for the summary; see `privacy.account`."""
    at_sites = experiment.engine.name == "flower"
    privacy = replace(experiment.privacy, secret=experiment.privacy.secret or at_sites)
    return account(privacy, schedule(experiment, rounds), again)


def two_images(dataset: Dataset) -> Tensor:
    """To try a model on; blank if the data set's images are elsewhere."""
    if not len(dataset.train):
        return torch.zeros(2, dataset.channels, dataset.size, dataset.size)
    return dataset.preparation.clean(dataset.train.pixels[:2])


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


def _check_outputs(model: FeatureModel, dataset: Dataset) -> None:
    """A module of the user's: does it return what methods need?"""
    with torch.no_grad(), evaluating(model):
        output = model(two_images(dataset))
    if not isinstance(output, Output) or output.logits.shape != (2, dataset.classes):
        raise ConfigError(
            f"the model must return dcfl.models.Output with logits [batch, {dataset.classes}], "
            f"not {type(output).__name__}"
        )
