"""Trains one client at a time, with a model as scratch space. One per process."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dcfl.central_noise import NoisySum
from dcfl.client import evaluating
from dcfl.data import Dataset, Partition
from dcfl.data.client_data import FederatedData
from dcfl.engines.attacks import Attack, attack_on, strike
from dcfl.engines.half_precision import (
    LIMIT,
    WITHOUT_AMX,
    avoid_broken_instructions,
    half_precision_works,
)
from dcfl.engines.memories import Memories
from dcfl.engines.placement import choose_devices
from dcfl.errors import ClientFailure, ConfigError, DCFLError, Diverged
from dcfl.experiment import EngineSettings, Experiment, FaultSettings
from dcfl.federation import cohort_size
from dcfl.local_training import LocalTraining, train_client
from dcfl.messages import Broadcast, ClientUpdate, Tensors, private_and_rest
from dcfl.methods.alone import Alone
from dcfl.methods.method import Method
from dcfl.models import FeatureModel, Output, build_model
from dcfl.models.parts import (
    freeze,
    personal_and_rest,
    personal_tensors,
    personalise,
    with_personal,
)
from dcfl.models.warm_start import warm_start
from dcfl.privacy import Protection, check_covered, in_floats
from dcfl.server.compression import RESIDUAL, Compression, compression_for
from dcfl.server.fixed_point import FixedPoint
from dcfl.system.processes import Terminated
from dcfl.system.transfers import to_device
from dcfl.system.wording import described
from dcfl.tensors import copies, split


@dataclass(frozen=True)
class ClientRunner:
    method: Method
    model: FeatureModel  # trained by each client in turn
    data: FederatedData
    training: LocalTraining
    seed: int
    faults: FaultSettings | None = None  # that clients are to have
    protection: Protection | None = None
    fixed_point: FixedPoint | None = None  # with server.secure
    attack: Attack | None = None
    compression: Compression = Compression()
    compile: bool = False
    # The personal part that every client begins with; empty if no part of the model is personal.
    personal: Tensors = field(default_factory=dict)

    def on(self, device: torch.device) -> ClientRunner:
        """The runner with its model and data on a device. Call it in the process that will use it:
        the compiler has threads, which do not survive a fork.

        On a GPU the model is another one: this one stays on the CPU, with the server.
        """
        dataset = self.data.dataset.to(device)
        model = self.model if device.type == "cpu" else copy.deepcopy(self.model).to(device)
        if self.compile:
            model.compile()
        return replace(self, model=model, data=replace(self.data, dataset=dataset))

    @torch.enable_grad()  # whatever a method of the user's has switched off before
    def train(
        self, broadcast: Broadcast, client: int, memory: Tensors
    ) -> tuple[ClientUpdate | ClientFailure, Tensors]:
        """One client's round: its reply and its new memory, on the device. `broadcast`: see
        `received`.

        An error costs this client alone, unless it is a setting that no client can use.
        """
        try:
            if self.faults:
                strike(self.faults, self.seed, broadcast.round, client)
            attack = self.attack if self.attack and client in self.attack.clients else None
            data = self.data.client(client)
            received = replace(broadcast, shared=private_and_rest(broadcast.shared)[1])
            residual, remembered = split(memory, (RESIDUAL,))
            update, new_memory = train_client(
                self.method,
                self.model,
                attack.data(data) if attack else data,
                received,
                self.here(remembered or with_personal(self.personal, {})),
                self.training,
                client,
                self.seed,
            )
            if self.protection:
                update = self.protection.protect(update, broadcast)
            if attack:
                update = attack.reply(update, broadcast, self.method, self.model, self.training)
            if self.fixed_point:
                return self.fixed_point.encode(update, broadcast), new_memory
            update, unsent = self.compression.packed_update(update, broadcast, self.here(residual))
            return update, {**new_memory, **unsent}
        except (ConfigError, Terminated):
            raise
        except Diverged as error:
            return ClientFailure(client, str(error), "diverged"), {}
        except (MemoryError, torch.OutOfMemoryError) as error:
            return ClientFailure(client, described(error), "memory"), {}
        except (Exception, SystemExit) as error:  # an exit would end the run as if all were well
            return ClientFailure(client, described(error)), {}

    @property
    def keeps_own(self) -> bool:
        return bool(self.personal) or self.method.has_own_model

    def personal_parts(self, memories: Memories) -> Iterator[tuple[int, Tensors]]:
        for client in memories.clients if self.keeps_own else ():
            yield client, personal_and_rest(memories[client])[0]

    def received(self, broadcast: Broadcast) -> Broadcast:
        """A message as it came, unpacked on the model's device."""
        weights, shared = self.here(broadcast.weights), self.here(broadcast.shared)
        return self.compression.received(replace(broadcast, weights=weights, shared=shared))

    def here(self, tensors: Tensors) -> dict[str, Tensor]:
        return to_device(tensors, next(self.model.parameters()).device)


def client_runner(
    experiment: Experiment,
    dataset: Dataset,
    partition: Partition,
    model: FeatureModel | None = None,
) -> ClientRunner:
    """Make a runner on the CPU. `experiment` is resolved; a user's own `model` is copied."""
    avoid_broken_instructions()
    seed = experiment.federation.seed
    augmentation = experiment.data.augmentation(dataset.preparation.augmentation)
    own_model = model_for(experiment, dataset, model)
    attacked, population = experiment.attack.kind != "none", experiment.data.population
    baseline = experiment.federation.baseline
    augmented = dataset.augmented_by(augmentation)
    runner = ClientRunner(
        Alone() if baseline == "alone" else experiment.method,
        own_model,
        FederatedData(augmented, partition, pooled=baseline == "pooled"),
        experiment.training,
        seed,
        faults=experiment.faults if any(vars(experiment.faults).values()) else None,
        attack=attack_on(population, experiment.attack, seed) if attacked else None,
        compression=compression_for(experiment.compression, own_model, seed),
        compile=experiment.engine.compile,
        personal=copies(personal_tensors(own_model)),
    )
    if experiment.privacy.active:
        method, upload, named = runner.method, expected_upload(runner), own_model.named_parameters()
        check_covered(experiment.privacy, method, experiment.server.aggregation, own_model, upload)
        trainable = frozenset(name for name, live in named if live.requires_grad)
        protection = Protection(experiment.privacy, method, trainable, upload or {}, seed)
        runner = replace(runner, protection=protection)
    if experiment.server.secure:
        runner = replace(runner, fixed_point=_fixed_point_for(runner, experiment))
    return runner


def model_for(
    experiment: Experiment, dataset: Dataset, given: FeatureModel | None = None
) -> FeatureModel:
    if given is None:
        experiment.model.require_fitting(dataset.name, dataset.shape, dataset.train.integers)
        shape = (dataset.channels, dataset.size, dataset.classes)
        model = build_model(experiment.model, *shape, experiment.federation.seed)
    else:
        model = copy.deepcopy(given)
    model.to("cpu", memory_format=torch.channels_last)  # type: ignore[call-overload]
    if given is not None or not experiment.model.built_in:
        _check_outputs(model, dataset)
    if experiment.model.weights:
        warm_start(model, experiment.model.weights, experiment.model.weights_skip)
    freeze(model, experiment.model.freeze)
    by_name = f"method {experiment.method.name}: " if experiment.method.personal else ""
    personalise(model, experiment.personal, f"{by_name}federation.personal")
    if experiment.engine.precision != "float32":
        _use_half_precision(model, experiment.engine)
    return model


def _use_half_precision(model: FeatureModel, engine: EngineSettings) -> None:
    if not isinstance(model, FeatureModel):
        raise ConfigError("engine.precision: the model must derive from dcfl.models.FeatureModel")
    on_cpu = choose_devices(engine.device)[0].type == "cpu"
    if on_cpu and not half_precision_works():
        raise ConfigError(
            f"engine.precision: this CPU dies of half precision, and torch was in use before "
            f"dcfl could help it: set {LIMIT}={WITHOUT_AMX} before Python starts"
        )
    model.autocast = getattr(torch, engine.precision)


def _fixed_point_for(runner: ClientRunner, experiment: Experiment) -> FixedPoint:
    """Refuses what cannot be summed."""
    method, server, upload = runner.method, experiment.server, expected_upload(runner)
    cohort = cohort_size(len(runner.data.partition), experiment.federation.share)
    if cohort < 2:
        raise ConfigError(
            "server.secure: the sum of one reply is that reply; set federation.participation so "
            "that a round has two clients or, to bear with the loss of one, three"
        )
    if upload is None:
        raise ConfigError(
            f"server.secure needs to know the names and shapes of what {method.name} sends beside "
            f"the weights: define upload_like"
        )
    parameters = dict(runner.model.named_parameters())
    survivors, privacy = server.survivors(cohort), experiment.privacy
    if runner.protection is None or not privacy.shared:
        return FixedPoint(frozenset(parameters), upload, server.secure_range, cohort, survivors)
    moving, seed = runner.protection.trainable, runner.seed
    form = NoisySum(moving, upload, privacy.clip, cohort, survivors, privacy, method, seed)
    form.check({name: live for name, live in parameters.items() if name not in runner.personal})
    return form


def expected_upload(runner: ClientRunner) -> Tensors | None:
    """An example of what is uploaded: names, shapes and dtypes; None if the method does not say."""
    with torch.no_grad(), evaluating(runner.model):
        output = runner.model(two_images(runner.data.dataset))
        width = sum(level.shape[1] for level in runner.method.levels_of(output))
    named = runner.model.named_parameters()
    parameters = {name: live for name, live in named if name not in runner.personal}
    example = runner.method.upload_like(parameters, runner.data.dataset.classes, width)
    return in_floats(example) if example and runner.protection else example


def two_images(dataset: Dataset) -> Tensor:
    """A batch to try a model on; blank if the data set's images are elsewhere."""
    if not len(dataset.train):
        return torch.zeros(2, *dataset.shape)
    return dataset.preparation.clean(dataset.train.pixels[:2])


def _check_outputs(model: FeatureModel, dataset: Dataset) -> None:
    images = two_images(dataset)
    try:
        with torch.no_grad(), evaluating(model):
            output = model(images)
    except DCFLError:
        raise
    except Exception as error:
        shape = list(images.shape)
        raise ConfigError(f"the model fails on images {shape}: {described(error)}") from error
    wanted = f"dcfl.models.Output with logits [batch, {dataset.classes}]"
    if not isinstance(output, Output):
        kind = type(output).__name__
        raise ConfigError(f"the model must return {wanted}, not {kind}; dcfl.adapt makes it do so")
    if output.logits.shape != (2, dataset.classes):
        shape = list(output.logits.shape)
        raise ConfigError(f"the model must return {wanted}, not logits {shape} of two images")


@contextmanager
def reproducible(threads: int) -> Iterator[None]:
    """The same bits on every run: a fixed number of threads, and deterministic kernels on a GPU."""
    before = torch.get_num_threads()
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
