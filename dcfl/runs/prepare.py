"""Turns an experiment into all that a run needs. Refuses bad settings here, before anything is
written."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dcfl.central_noise import CentralNoise
from dcfl.clock.events import Clock
from dcfl.data import Augmentation, Dataset, DataSettings, FederatedData, Partition, load_dataset
from dcfl.data.datasets import short_name
from dcfl.data.identical import identical_pictures, trained_on
from dcfl.data.splits.grouping import NONE
from dcfl.engines.placement import Load, Placement, place
from dcfl.engines.runner import ClientRunner, client_runner, expected_upload, two_images
from dcfl.errors import ConfigError, LeakWarning
from dcfl.experiment import Experiment
from dcfl.federation import Sampling, cohort_size
from dcfl.methods import Method
from dcfl.models import FeatureModel
from dcfl.models.own_models import OwnModel
from dcfl.models.parts import unsent_tensors
from dcfl.models.warm_start import weights_path, weights_sha256
from dcfl.privacy import PrivacySettings, Schedule, account, check_budget
from dcfl.runs.folder import MODEL_COPY, own_files
from dcfl.runs.identity import fingerprint, own_code
from dcfl.server import Server
from dcfl.system.own_files import OwnFile


@dataclass(frozen=True)
class Prepared:
    experiment: Experiment  # resolved: no setting is left open
    data: FederatedData  # the images, and which client owns which
    model: FeatureModel  # the clients train it in turn
    runner: ClientRunner  # trains clients: the method on the model and the data
    placement: Placement  # how many processes, on which devices
    own_files: Mapping[str, OwnFile]  # the user's, by the names of their copies
    own: Mapping[str, str]  # hashes of the user's own code and initial weights
    own_model: bool  # whether the model is a module from Python, which no name can rebuild

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """All that the run's bits depend on. Lazy, because it hashes all images."""
        return fingerprint(self.experiment, self.data, self.own, self.placement.devices[0])

    @cached_property
    def own_hashes(self) -> dict[str, str]:
        """SHA-256 of each of the user's files, by the name of its copy, and of what they import."""
        files = self.own_files
        imported = {name: sha for file in files.values() for name, sha in file.imported.items()}
        return {**imported, **{name: file.sha256 for name, file in files.items()}}

    @property
    def cohort(self) -> int:
        experiment = self.experiment
        return cohort_size(experiment.data.population, experiment.federation.share)

    @property
    def workers(self) -> str:
        count, engine = len(self.placement.devices), self.experiment.engine
        if engine.at_sites:
            return "SuperNodes"
        if engine.name != "embedded":
            return f"Flower's simulation, {count} Ray actors ({self.placement.reason})"
        where = "clients train in this process" if count == 1 else f"{count} worker processes"
        return f"{where} ({self.placement.reason})"

    def server(self) -> Server:
        experiment = self.experiment
        return Server(
            self.runner.method,
            experiment.data.population,
            frozenset(name for name, _ in self.model.named_parameters()),
            experiment.training,
            experiment.server,
            experiment.federation.minimum_replies,
            expected_upload(self.runner),
            frozenset(unsent_tensors(self.model)),
            self.runner.fixed_point,
            self._central_noise(),
            self.runner.compression,
        )

    def clock(self) -> Clock | None:
        """None if rounds take no virtual time and ask whom they always asked."""
        experiment = self.experiment
        if not experiment.by_clock:
            return None
        settings, federation = experiment.clock, experiment.federation
        return Clock(
            self.server(),
            settings,
            federation.share,
            federation.seed,
            self.data.sizes,
            federation.selection,
            settings.device_mix() if settings.active else None,
            settings.availabilities(),
            frozenset(federation.without),
        )

    def _central_noise(self) -> CentralNoise | None:
        experiment, protection = self.experiment, self.runner.protection
        if protection is None or not experiment.privacy.central:
            return None
        federation, drawn = experiment.federation, schedule(experiment, 0).drawn
        return CentralNoise(
            privacy_of(experiment),
            self.runner.method,
            protection.trainable,
            protection.upload,
            drawn.sampling.expected(experiment.data.population, federation.share),
            federation.seed,
            drawn._replace(correlated=experiment.privacy.correlated).bands,
        )

    @property
    def draws(self) -> Sampling:
        return schedule(self.experiment, 0).sampling


def prepare(
    experiment: Experiment,
    dataset: Dataset | None = None,
    model: FeatureModel | OwnModel | None = None,
) -> Prepared:
    """Load and split the data, resolve the config, build the model and choose the processes.
    `dataset` and `model` replace those that the config names; a file's network is built here."""
    data = experiment.seeded_data
    if not experiment.engine.at_sites:
        data.require_here()
    dataset = load_dataset(data) if dataset is None else data.fitted(dataset)
    if data.group == NONE:
        dataset = dataset.ungrouped()
    if data.holdout and not dataset.held_out:  # the caller's own
        dataset = dataset.holding_out(data.holdout, data.split_seed)
    _tell_of_leaks(dataset, experiment.model.weights)
    partition = data.split(dataset)
    clients = len(partition)
    if data.clients not in (clients, "auto"):
        _tell_of_other_clients(data, clients)
    experiment = resolved(experiment, dataset, partition)
    if isinstance(model, OwnModel):
        model = model.build(dataset.channels, dataset.size, dataset.classes)
    runner = client_runner(experiment, dataset, partition, model)
    if experiment.clock.takes_stale and not experiment.method.takes_stale:
        raise ConfigError(
            f"clock.mode and clock.late: {experiment.method.name} puts together what the clients "
            f'of one round make of one model; use clock.mode = "rounds" and clock.late = "drop"'
        )
    if experiment.clock.active and expected_upload(runner) is None:
        raise ConfigError(
            f"[clock] needs to know how much {experiment.method.name} sends beside the weights: "
            f"define upload_like"
        )
    files = own_files(experiment)
    # Hashed now: a file may be edited during the run.
    foreign = runner.model if model is not None or not experiment.model.built_in else None
    own = own_code(experiment.method, foreign, files.get(MODEL_COPY))
    if experiment.model.weights:
        own["weights"] = weights_sha256(experiment.model.weights)
    if data.own_split is not None:
        own["split"] = data.own_split.sha256
    own |= {name: file.sha256 for name, file in experiment.clock.files.items()}
    return Prepared(
        experiment=experiment,
        data=runner.data,
        model=runner.model,
        runner=runner,
        placement=placement_for(
            experiment, runner, cohort_size(clients, experiment.federation.share)
        ),
        own_files=files,
        own=own,
        own_model=model is not None,
    )


def _tell_of_other_clients(data: DataSettings, clients: int) -> None:
    """The data decides how many clients there are; one is how people ask for all data together."""
    if data.split_file:
        given = f"the split's file has {clients}"
    elif data.clients == 1:
        raise ConfigError(
            f"data.clients = 1: the data comes as {clients} sites; "
            f"federation.baseline=pooled method.name=fedavg trains on all of them in one place"
        )
    else:
        given = f"the data comes as {clients} sites"
    warnings.warn(f"data.clients = {data.clients} is not used: {given}", stacklevel=4)


def _tell_of_leaks(dataset: Dataset, weights: str) -> None:
    """Pictures that are scored, and that the model sees or has seen in training."""
    # Of numbers, equal rows may well be two.
    compared = dataset.users_own and dataset.train.pictures
    if compared and (found := str(identical_pictures(dataset))):
        text = f"identical pictures: {found}; accuracies may be too high"
        warnings.warn(text, LeakWarning, stacklevel=4)
    known = trained_on(weights_path(weights).parent, dataset.test) if weights else 0
    if known:
        warnings.warn(
            f"model.weights: trained on {known:,} of the {len(dataset.test):,} images that this "
            f"run is scored on; accuracies will be too high",
            LeakWarning,
            stacklevel=4,
        )


def with_own_data(
    experiment: Experiment, dataset: Dataset, folder: Path
) -> tuple[Experiment, Dataset]:
    """The experiment with a data set from memory as the file that `Dataset.save` makes of it in
    this folder, and the data set as it would be read from there."""
    file = folder.resolve() / dataset.file_name
    before = Path(experiment.data.dataset.removeprefix("npz:"))
    name = f"npz:{before if before.name == file.name and before.is_file() else file}"
    output = replace(experiment.output, dir=str(folder))
    named = replace(experiment, data=replace(experiment.data, dataset=name), output=output)
    return named, replace(dataset.by_site(), name=dataset.plain_name)


def resolved(experiment: Experiment, dataset: Dataset, partition: Partition) -> Experiment:
    """Fill in all that the config leaves open: the seed of the split, the data's name, clients and
    augmentation, the file of the initial weights, and how the server merges what methods send."""
    augmentation = experiment.data.augmentation(dataset.preparation.augmentation)
    _check_augmentation(augmentation, experiment.method, dataset)
    clients = len(partition)
    share = _participation(experiment, dataset, clients)
    federation = replace(experiment.federation, participation=share)
    cohort = federation.cohort_of(clients)
    replies = experiment.clock.replies(cohort)
    if experiment.clock.asynchronous and replies > federation.draws.clients(clients):
        raise ConfigError(f"clock.buffer = {replies} of {clients} clients would never be full")
    experiment.server.require_replies(replies, clients)
    least = max(federation.minimum_replies, experiment.server.survivors(cohort))
    federation = replace(federation, minimum_replies=least)
    model = experiment.model
    if model.weights:
        model = replace(model, weights=str(weights_path(model.weights)))
    data = experiment.seeded_data
    split = data.partition if data.own_split is None else str(data.own_split)
    complete = replace(
        experiment,
        model=model,
        method=experiment.server.fitted(experiment.method),
        federation=federation,
        clock=experiment.clock.with_whole_paths(),
        data=replace(
            data,
            dataset=data.dataset if short_name(data.dataset) == dataset.name else dataset.name,
            clients=clients,
            partition=split if dataset.partition is None else "given",
            **asdict(augmentation),
        ),
    )
    whole = schedule(complete, complete.federation.rounds)
    check_budget(complete.privacy, complete.method, whole)
    return complete


def _participation(experiment: Experiment, dataset: Dataset, clients: int) -> float:
    federation = experiment.federation
    if federation.baseline == "pooled":
        return 1 / clients
    if federation.participation != "auto":
        return federation.participation
    if dataset.partition is not None:
        return 1.0
    if experiment.data.clients == "auto" and dataset.users_own:
        return max(federation.share, min(1.0, 2 / clients))
    return federation.share


def placement_for(experiment: Experiment, runner: ClientRunner, cohort: int) -> Placement:
    dataset = runner.data.dataset
    load = Load(runner.model, two_images(dataset), experiment.training.batch_size)
    return place(experiment.engine, cohort, load)


def schedule(experiment: Experiment, rounds: int) -> Schedule:
    """Which clients take part in the first `rounds` rounds. `experiment` must be resolved."""
    federation, privacy = experiment.federation, privacy_of(experiment)
    # What is claimed of noise at the server holds if nobody else knows who was drawn.
    draws = replace(federation.draws, secret=privacy.central and privacy.secret)
    clients, seed = experiment.data.population, federation.seed
    return Schedule(clients, federation.share, seed, rounds, draws)


def privacy_of(experiment: Experiment) -> PrivacySettings:
    """Where sites are real, so is the secret."""
    secret = experiment.privacy.secret or experiment.engine.at_sites
    return replace(experiment.privacy, secret=secret)


def privacy_spent(experiment: Experiment, rounds: int, repeated: int = 0) -> dict[str, Any]:
    privacy, drawn = privacy_of(experiment), schedule(experiment, rounds)
    return account(privacy, experiment.method, drawn, repeated)


def _check_augmentation(augmentation: Augmentation, method: Method, dataset: Dataset) -> None:
    if not dataset.train.pictures and (augmentation.active or method.second_view):
        kind = "feature vectors" if dataset.vectors else "no images"
        raise ConfigError(
            f"{dataset.name} has {kind}, of which there are no views: data.crop, "
            f"data.flip, data.rotation, data.cutout and methods with a second view are for images"
        )
    size = min(dataset.shape[1:], default=1)
    for key in ("crop", "cutout"):
        if (pixels := getattr(augmentation, key)) >= size:
            raise ConfigError(
                f"data.{key} = {pixels} would leave nothing of images of {size} pixels: choose less"
            )
    if method.second_view and not augmentation.active:
        raise ConfigError(
            "the method wants a second view of each image, and without augmentation it would be "
            "the same: set data.crop, data.flip or data.rotation"
        )
