"""What a run's model is worth to each client after some epochs of training on its own images."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from dcfl import config
from dcfl.client import LocalTraining
from dcfl.data import FederatedData
from dcfl.engines.placement import choose_devices
from dcfl.errors import ConfigError, Diverged
from dcfl.evaluation import own_mix_accuracies, score_model
from dcfl.local_training import train_client
from dcfl.messages import Broadcast
from dcfl.methods import METHODS
from dcfl.models import FeatureModel
from dcfl.models.parts import freeze
from dcfl.runs.folder import RecordedRun
from dcfl.tensors import snapshot
from dcfl.trained.subject import data_settings


def fine_tuned_accuracies(
    run: RecordedRun,
    model: FeatureModel,
    data: FederatedData,
    epochs: int,
    clients: Sequence[int],
) -> list[float]:
    """Percent, each on its own mix of classes. Each of these clients begins with this model, and
    trains it with plain cross-entropy and the run's [training], as in the round after the last."""
    settings = data_settings(run)
    augmentation = settings.augmentation(data.dataset.preparation.augmentation)
    device = choose_devices("auto")[0]
    dataset = data.dataset.augmented_by(augmentation).to(device)
    scratch = copy.deepcopy(model).requires_grad_(True).to(device)
    freeze(scratch, run.config["model"].get("freeze", ()))
    start = Broadcast(run.rounds[-1].round + 1 if run.rounds else 1, snapshot(scratch), {})
    training = replace(_training(run), epochs=epochs, head_epochs=0)
    mixes, owned = data.label_mixes(), FederatedData(dataset, data.partition)
    return [
        _fine_tuned(scratch, start, owned, client, training, mixes[client]) for client in clients
    ]


def _fine_tuned(
    model: FeatureModel,
    start: Broadcast,
    data: FederatedData,
    client: int,
    training: LocalTraining,
    mix: Tensor,
) -> float:
    """The model is overwritten with the weights to start from."""
    images = data.client(client)
    try:
        train_client(METHODS["fedavg"](), model, images, start, {}, training, client, seed=0)
    except Diverged as error:
        raise ConfigError(f"fine-tuning of client {client}: {error}") from error
    return float(own_mix_accuracies(score_model(model, data.dataset).by_class, mix[None])[0])


def _training(run: RecordedRun) -> LocalTraining:
    """The run's [training]. Its method plays no part."""
    table = {**run.config.get("training", {}), "head_epochs": 0}
    return config.experiment_from(None, {"training": table}).training
