"""What a run's model is worth: on its own test images, on another data set, for each client."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dcfl import config
from dcfl import tensors as named
from dcfl.data import Dataset, DataSettings, FederatedData, Images, Preparation
from dcfl.data.client_data import normalises_by_batch
from dcfl.data.identical import trained_on
from dcfl.data.to_score import ToScore, Wanted, fitted, images_to_score
from dcfl.engines.placement import choose_devices
from dcfl.errors import ConfigError, Diverged, RunFolderError
from dcfl.evaluation import (
    OWN_IMAGES,
    client_accuracies,
    finite_or_none,
    own_mix_accuracies,
    score_model,
)
from dcfl.local_training import train_client
from dcfl.messages import Broadcast
from dcfl.methods import METHODS
from dcfl.models import FeatureModel
from dcfl.models.parts import all_but, freeze
from dcfl.runs.evaluations import ClientScore, EvaluationRecord, read_evaluations
from dcfl.runs.folder import RecordedRun
from dcfl.runs.model_file import Network, Which, load_model
from dcfl.scores import Scores
from dcfl.system.wording import printable
from dcfl.trained.certainty import PairedModels, accuracy_interval, number_of_groups
from dcfl.trained.subject import (
    data_settings,
    embed,
    inputs_of,
    kind_of_images,
    load_own_data,
    sees_pictures,
)

PART = 10_000  # images whose answers are counted at a time
Owned = Iterable[tuple[str, Images]]  # by client or site


def evaluate(
    run_folder: str | Path,
    data: str | Path | Dataset | None = None,
    *,
    which: Which = "last",
    model: Network = None,
) -> Scores:
    """The trained model of a finished run on its own test images, or on another data set.

    Args:
        run_folder: The folder of a run that has finished.
        data: Nothing: the images that the run was scored on. Or a folder of class folders, an .npz
            file, a data set as in `data.dataset` (`"folder:PATH"`, `"cifar10"`), or a Dataset,
            with classes that the model knows. Its test images count, or all if it has none.
        which: "last", the model after the last round, or "best", if the run has kept it; or the
            number of a client: its own model, if the run has `federation.personal`.
        model: The network, if it is one of your own, see `load_model`.

    Returns:
        Counts, and all that follows from them: `accuracy`, `balanced_accuracy`, `macro_f1`,
        `recall` and `precision` and `auc` of each class, `mean_auc`, `calibration_error`, `loss`,
        `confusion`. Those of two data sets can be added.

    Raises:
        RunMissing: There is no trained model in the folder.
        ConfigError: The data set has other classes, or images of another shape.

    Example:
        >>> import dcfl
        >>> result = dcfl.run(federation={"rounds": 1})
        >>> scores = dcfl.evaluate(result.folder)
        >>> scores.images, scores.confusion.shape
        (355.0, torch.Size([10, 10]))
        >>> abs(scores.accuracy - result.summary.final_accuracy) < 1e-6
        True
        >>> (scores + scores).accuracy == scores.accuracy
        True
    """
    found = evaluation_of(Path(run_folder), data, which, network=model)
    if found.trained_on:
        warnings.warn(found.notes[0], stacklevel=2)
    return found.scores


def evaluation_of(
    folder: Path,
    data: str | Path | Dataset | None = None,
    which: Which = "last",
    clients: bool = False,
    fine_tune: int = 0,
    network: Network = None,
    parts: Sequence[str] = (),
) -> EvaluationRecord:
    """`clients`: score each client on its own images too. `fine_tune`: and after so many epochs of
    training on them. `parts`: see `fine_tuned_accuracies`."""
    run = RecordedRun.open(folder)
    remote = data_settings(run).dataset == "remote"
    if fine_tune and (data is not None or remote):
        raise ConfigError(
            "fine-tuning needs the clients' images: those of the run, on this machine"
        )
    if data is None and remote:
        return _by_the_sites(run, which)
    scoring = ModelScoring.of(run, which, network)
    if data is not None:
        return scoring.other_data(data, clients)
    return scoring.own_data(clients, fine_tune, parts)


def _by_the_sites(run: RecordedRun, which: Which) -> EvaluationRecord:
    """Their images are not here: what they counted when the run ended."""
    recorded = [found for found in read_evaluations(run.folder) if found.own_data]
    for found in recorded:
        if found.which == which:
            return found
    model = f"client {which}'s own model" if isinstance(which, int) else f"the {which} model"
    raise ConfigError(
        f"{run.folder}: its images never left the sites they lie at, and they have counted nothing "
        f"for {model}: name a folder of pictures"
    )


@dataclass(frozen=True)
class ModelScoring:
    """A run's model, ready to be scored."""

    run: RecordedRun
    which: Which
    model: FeatureModel
    preparation: Preparation
    wanted: Wanted

    @classmethod
    def of(cls, run: RecordedRun, which: Which, network: Network) -> ModelScoring:
        model = load_model(run.folder, which, model=network)
        preparation, shape = inputs_of(model)
        wanted = Wanted(model.class_names, shape, sees_pictures(model))
        return cls(run, which, model, preparation, wanted)

    def own_data(
        self, clients: bool, fine_tune: int = 0, parts: Sequence[str] = ()
    ) -> EvaluationRecord:
        settings, dataset = data_settings(self.run), load_own_data(self.run, self.model)
        kind = kind_of_images(settings)
        record, _ = self.judged(settings.dataset, kind, dataset.test, own=True)
        client = self.which if isinstance(self.which, int) else None
        if not (clients or fine_tune or client is not None):
            return record
        data = self._split(settings, dataset)
        names = client_names(data)
        kind, owned = self._own_clients(data)
        only = names[client] if client is not None and not clients else None
        mixed = own_mix_accuracies(record.scores.recall, data.label_mixes())
        mixes = dict(zip(names, mixed, strict=True)) if dataset.test.owners is None else {}
        record = self._with_clients(record, kind, owned, mixes, only)
        return self._fine_tuned(record, data, fine_tune, parts) if fine_tune else record

    def _fine_tuned(
        self, record: EvaluationRecord, data: FederatedData, epochs: int, parts: Sequence[str]
    ) -> EvaluationRecord:
        numbers = {name: number for number, name in enumerate(client_names(data))}
        wanted = [numbers[client.name] for client in record.clients]
        accuracies = fine_tuned_accuracies(self.run, self.model, data, epochs, wanted, parts)
        clients = tuple(
            replace(client, fine_tuned_accuracy=finite_or_none(value))
            for client, value in zip(record.clients, accuracies, strict=True)
        )
        return replace(record, clients=clients, fine_tuned=epochs)

    def other_data(self, data: str | Path | Dataset, clients: bool) -> EvaluationRecord:
        found = self.to_score(data)
        if clients and not found.owners:
            raise ConfigError(
                f"{printable(found.name)} has no clients: they need sites:PATH, or the run's own "
                f"data"
            )
        record, _ = self.judged(found.name, "images", found.images, own=False)
        if not clients:
            return record
        return self._with_clients(record, "its own images", found.owners.items())

    def to_score(self, data: str | Path | Dataset) -> ToScore:
        if isinstance(data, Dataset):
            images = fitted(data.name, data.test, data.class_names, self.wanted)
            return ToScore(data.name, images)
        return images_to_score(str(data), data_settings(self.run), self.wanted)

    def _split(self, settings: DataSettings, dataset: Dataset) -> FederatedData:
        data = FederatedData(dataset, settings.split(dataset))
        if self.run.partition_sha256 not in ("", data.partition.sha256):
            raise ConfigError(
                f"{self.run.folder.name}: {dataset.name} is split differently now than when the "
                f"run was trained"
            )
        return data

    def _own_clients(self, data: FederatedData) -> tuple[str, Owned]:
        """The kind of the clients' images, and those images."""
        names, test = enumerate(client_names(data)), data.dataset.test
        if test.owners is None:
            owned = ((name, data.client(number).images) for number, name in names)
            return "images that it trained on", owned
        own = ((name, test.of(number)) for number, name in names)
        return OWN_IMAGES, ((name, images) for name, images in own if len(images))

    def _answers(self, images: Images) -> tuple[Scores, Tensor]:
        """The scores, and which images it gets right."""
        if not len(images):
            raise ConfigError(f"{self.run.folder.name}: there are no images to score it on")
        device = choose_devices("auto")[0]
        model, here = self.model.to(device), images.to(device)
        logits, labels = embed(model, here, self.preparation)[1], images.labels.cpu()
        try:
            starts = range(0, len(labels), PART)
            parts = (Scores.of(logits[at : at + PART], labels[at : at + PART]) for at in starts)
            scores = reduce(add, parts)
        except ValueError as error:
            raise RunFolderError(
                f"{self.run.folder}: the model's outputs are not finite: the run has diverged"
            ) from error
        return scores, logits.argmax(dim=1) == labels

    def judged(
        self, name: str, kind: str, images: Images, own: bool
    ) -> tuple[EvaluationRecord, Tensor]:
        """The record, and which images the model gets right."""
        scores, right = self._answers(images)
        groups = number_of_groups(images.groups) if images.groups is not None else 0
        record = EvaluationRecord(
            data=name,
            own_data=own,
            kind=kind,
            which=self.which,
            weights_sha256=named.sha256(self.model.state_dict()),
            class_names=self.wanted.class_names,
            scores=scores,
            interval=accuracy_interval(right, images.groups if groups > 1 else None),
            groups=groups if groups > 1 else None,
            trained_on=trained_on(self.run.folder, images),
        )
        return record, right

    def _with_clients(
        self,
        record: EvaluationRecord,
        kind: str,
        owned: Owned,
        mixed: Mapping[str, Tensor] = MappingProxyType({}),
        only: str | None = None,
    ) -> EvaluationRecord:
        """`mixed`: by name, the accuracy on a client's own mix of classes; NaN if they have no test
        images. `only`: this client alone, whose model is for nobody else."""
        by_batch = normalises_by_batch(self.model)
        found = [(name, images) for name, images in owned if by_batch or only in (None, name)]
        if by_batch:  # beside each other: a batch of one client's classes would be another input
            pixels = torch.cat([images.pixels for _, images in found])
            whole = Images(pixels, torch.cat([images.labels for _, images in found]))
            ends = np.cumsum([len(images) for _, images in found])[:-1]
            rights = [*self._answers(whole)[1].tensor_split(torch.from_numpy(ends))]
        else:
            rights = [self._answers(images)[1] for _, images in found]
        clients = tuple(
            ClientScore(
                name,
                len(right),
                100 * int(right.sum()) / len(right),
                finite_or_none(float(mixed[name])) if name in mixed else None,
            )
            for (name, _), right in zip(found, rights, strict=True)
            if only in (None, name)
        )
        return replace(record, clients=clients, clients_kind=kind)


class TwoModels(NamedTuple):
    first: EvaluationRecord
    second: EvaluationRecord
    paired: PairedModels  # the second less the first


def compare_models(
    folders: Sequence[Path], data: str | Path | Dataset | None = None, network: Network = None
) -> TwoModels:
    """The last models of two runs, image by image: on a data set, or on the first run's own
    images."""
    scorings = [ModelScoring.of(RecordedRun.open(folder), "last", network) for folder in folders]
    source = load_own_data(scorings[0].run, scorings[0].model) if data is None else data
    found = [scoring.to_score(source) for scoring in scorings]
    judged = [
        scoring.judged(one.name, "images", one.images, own=False)
        for scoring, one in zip(scorings, found, strict=True)
    ]
    truths = [
        [scoring.wanted.class_names[label] for label in one.images.labels.tolist()]
        for scoring, one in zip(scorings, found, strict=True)
    ]
    if truths[0] != truths[1]:
        raise ConfigError("the two models are shown other images: some can be read for one only")
    (first, right), (second, also_right) = judged
    groups = found[0].images.groups if first.groups else None
    return TwoModels(first, second, PairedModels.of(right, also_right, groups))


def client_names(data: FederatedData) -> Sequence[str]:
    return data.dataset.site_names or [f"client {n}" for n in range(len(data.partition))]


def fine_tuned_accuracies(
    run: RecordedRun,
    model: FeatureModel,
    data: FederatedData,
    epochs: int,
    clients: Sequence[int],
    parts: Sequence[str] = (),
) -> list[float]:
    """Percent, as `client_accuracies` has them. Each of these clients begins with this model, and
    trains it with plain cross-entropy and the run's [training], as in the round after the last: all
    that the run trained, or these parts of the model, frozen ones too, or ["all"]."""
    augmentation = data_settings(run).augmentation(data.dataset.preparation.augmentation)
    device = choose_devices("auto")[0]
    dataset = data.dataset.augmented_by(augmentation).to(device)
    scratch = copy.deepcopy(model).requires_grad_(True).to(device)
    freeze(scratch, all_but(scratch, parts) if parts else run.config["model"].get("freeze", ()))
    start = Broadcast(run.rounds[-1].round + 1 if run.rounds else 1, named.snapshot(scratch), {})
    table = {**run.config.get("training", {}), "epochs": epochs, "head_epochs": 0}
    training = config.experiment_from(None, {"training": table}).training
    mixes, owned = data.label_mixes(), FederatedData(dataset, data.partition)
    accuracies = []
    for client in clients:
        images = owned.client(client)
        try:  # the weights to start from overwrite those of the client before
            train_client(METHODS["fedavg"](), scratch, images, start, {}, training, client, seed=0)
        except Diverged as error:
            raise ConfigError(f"fine-tuning of client {client}: {error}") from error
        found = client_accuracies(score_model(scratch, dataset), mixes)
        accuracies.append(float(found[client]))
    return accuracies
