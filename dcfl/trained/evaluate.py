"""What a run's model is worth: on its own test images, on another data set, for each client."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from torch import Tensor

from dcfl import config
from dcfl import tensors as named
from dcfl.data import Dataset, DataSettings, FederatedData, Images, Preparation
from dcfl.data.to_score import ToScore, Wanted, fitted, images_to_score, own_sites
from dcfl.engines.placement import choose_devices
from dcfl.errors import ConfigError, Diverged, RunFolderError
from dcfl.evaluation import finite_or_none, own_mix_accuracies, score_model
from dcfl.local_training import train_client
from dcfl.messages import Broadcast
from dcfl.methods import METHODS
from dcfl.models import FeatureModel
from dcfl.models.parts import freeze
from dcfl.runs.evaluations import ClientScore, EvaluationRecord, read_evaluations
from dcfl.runs.folder import RecordedRun
from dcfl.runs.model_file import Which, load_model
from dcfl.scores import Scores, scores_of
from dcfl.system.wording import printable
from dcfl.trained.subject import data_settings, inputs_of, kind_of_images, load_own_data

Owned = Iterable[tuple[str, Images]]  # by client or site


def evaluate(
    run_folder: str | Path, data: str | Path | Dataset | None = None, *, which: Which = "last"
) -> Scores:
    """The trained model of a finished run on its own test images, or on another data set.

    Args:
        run_folder: The folder of a run that has finished.
        data: Nothing: the images that the run was scored on. Or a folder of class folders, an .npz
            file, a data set as in `data.dataset` (`"folder:PATH"`, `"cifar10"`), or a Dataset,
            with classes that the model knows. Its test images count, or all if it has none.
        which: "last", the model after the last round, or "best", if the run has kept it; or the
            number of a client: its own model, if the run has `federation.personal`.

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
    return evaluation_of(Path(run_folder), data, which).scores


def evaluation_of(
    folder: Path,
    data: str | Path | Dataset | None = None,
    which: Which = "last",
    clients: bool = False,
    fine_tune: int = 0,
) -> EvaluationRecord:
    """`clients`: score each client on its own images too. `fine_tune`: and after so many epochs of
    training on them."""
    run = RecordedRun.open(folder)
    remote = data_settings(run).dataset == "remote"
    if fine_tune and (data is not None or remote):
        raise ConfigError(
            "fine-tuning needs the clients' images: those of the run, on this machine"
        )
    if data is None and remote:
        return _by_the_sites(run, which)
    model = load_model(run.folder, which)
    preparation, shape = inputs_of(model)
    scoring = ModelScoring(run, which, model, preparation, Wanted(model.class_names, shape))
    if data is not None:
        return scoring.other_data(data, clients)
    return scoring.own_data(clients, fine_tune)


def _by_the_sites(run: RecordedRun, which: Which) -> EvaluationRecord:
    """Their images are not here: what they counted when the run ended."""
    recorded = [found for found in read_evaluations(run.folder) if found.own_data]
    for found in recorded:
        if found.which == which:
            return found
    raise ConfigError(
        f"{run.folder}: its images never left the sites they lie at, and the sites have not scored "
        f"the model {which}: name a folder of pictures"
    )


@dataclass(frozen=True)
class ModelScoring:
    """A run's model, ready to be scored."""

    run: RecordedRun
    which: Which
    model: FeatureModel
    preparation: Preparation
    wanted: Wanted

    def own_data(self, clients: bool, fine_tune: int = 0) -> EvaluationRecord:
        settings, dataset = data_settings(self.run), load_own_data(self.run, self.model)
        scores = self._scores(dataset.test)
        record = self._record(settings.dataset, kind_of_images(settings), scores, own_data=True)
        client = self.which if isinstance(self.which, int) else None
        if not (clients or fine_tune or client is not None):
            return record
        data = self._split(settings, dataset)
        names = client_names(data)
        kind, owned = self._own_clients(settings, data)
        if client is not None and not clients:  # its model is for nobody else
            owned = ((name, images) for name, images in owned if name == names[client])
        mixed = dict(zip(names, own_mix_accuracies(scores.recall, data.label_mixes()), strict=True))
        record = self._with_clients(record, kind, owned, mixed)
        return self._fine_tuned(record, data, fine_tune) if fine_tune else record

    def _fine_tuned(
        self, record: EvaluationRecord, data: FederatedData, epochs: int
    ) -> EvaluationRecord:
        numbers = {name: number for number, name in enumerate(client_names(data))}
        wanted = [numbers[client.name] for client in record.clients]
        accuracies = fine_tuned_accuracies(self.run, self.model, data, epochs, wanted)
        clients = tuple(
            replace(client, fine_tuned_accuracy=finite_or_none(value))
            for client, value in zip(record.clients, accuracies, strict=True)
        )
        return replace(record, clients=clients, fine_tuned=epochs)

    def other_data(self, data: str | Path | Dataset, clients: bool) -> EvaluationRecord:
        if isinstance(data, Dataset):
            images = fitted(data.name, data.test, data.class_names, self.wanted)
            found = ToScore(data.name, images)
        else:
            found = images_to_score(str(data), data_settings(self.run), self.wanted)
        if clients and not found.owners:
            raise ConfigError(
                f"{printable(found.name)} has no clients: they need sites:PATH, or the run's own "
                f"data"
            )
        record = self._record(found.name, "images", self._scores(found.images), own_data=False)
        if not clients:
            return record
        return self._with_clients(record, "its own images", found.owners.items())

    def _split(self, settings: DataSettings, dataset: Dataset) -> FederatedData:
        data = FederatedData(dataset, settings.split(dataset))
        if self.run.partition_sha256 not in ("", data.partition.sha256):
            raise ConfigError(
                f"{self.run.folder.name}: {dataset.name} is split differently now than when the "
                f"run was trained"
            )
        return data

    def _own_clients(self, settings: DataSettings, data: FederatedData) -> tuple[str, Owned]:
        """The kind of the clients' images, and those images."""
        dataset = data.dataset
        if dataset.site_names and (own := own_sites(settings, self.wanted)):
            return "test images of its own", own.items()
        names = enumerate(client_names(data))
        owned = ((name, data.client(number).images) for number, name in names)
        return "images that it trained on", owned

    def _scores(self, images: Images) -> Scores:
        if not len(images):
            raise ConfigError(f"{self.run.folder.name}: there are no images to score it on")
        device = choose_devices("auto")[0]
        model, here = self.model.to(device), images.to(device)
        try:
            return scores_of(model, here, self.preparation, len(self.wanted.class_names))
        except ValueError as error:
            raise RunFolderError(
                f"{self.run.folder}: the model's outputs are not finite: the run has diverged"
            ) from error

    def _record(self, name: str, kind: str, scores: Scores, own_data: bool) -> EvaluationRecord:
        return EvaluationRecord(
            data=name,
            own_data=own_data,
            kind=kind,
            which=self.which,
            weights_sha256=named.sha256(self.model.state_dict()),
            class_names=self.wanted.class_names,
            scores=scores,
        )

    def _with_clients(
        self,
        record: EvaluationRecord,
        kind: str,
        owned: Owned,
        mixed: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> EvaluationRecord:
        """`mixed`: by name, the accuracy on a client's own mix of classes; NaN if they have no test
        images."""
        clients = tuple(
            ClientScore(
                name,
                len(images),
                self._scores(images).accuracy,
                finite_or_none(float(mixed[name])) if name in mixed else None,
            )
            for name, images in owned
        )
        return replace(record, clients=clients, clients_kind=kind)


def client_names(data: FederatedData) -> Sequence[str]:
    return data.dataset.site_names or [f"client {n}" for n in range(len(data.partition))]


def fine_tuned_accuracies(
    run: RecordedRun,
    model: FeatureModel,
    data: FederatedData,
    epochs: int,
    clients: Sequence[int],
) -> list[float]:
    """Percent, each on its own mix of classes. Each of these clients begins with this model, and
    trains it with plain cross-entropy and the run's [training], as in the round after the last."""
    augmentation = data_settings(run).augmentation(data.dataset.preparation.augmentation)
    device = choose_devices("auto")[0]
    dataset = data.dataset.augmented_by(augmentation).to(device)
    scratch = copy.deepcopy(model).requires_grad_(True).to(device)
    freeze(scratch, run.config["model"].get("freeze", ()))
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
        by_class = score_model(scratch, dataset).by_class
        accuracies.append(float(own_mix_accuracies(by_class, mixes[client][None])[0]))
    return accuracies
