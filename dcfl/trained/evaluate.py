"""What a run's model is worth: on its own test images, on another data set, for each client; how
sure that is, and how sure the difference between two models."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dcfl import config
from dcfl import tensors as named
from dcfl.data import Dataset, DataSettings, FederatedData, Images, Preparation, load_dataset
from dcfl.data.identical import trained_on
from dcfl.data.to_score import ToScore, Wanted, fitted, images_to_score
from dcfl.engines.placement import choose_devices
from dcfl.errors import ConfigError, Diverged
from dcfl.evaluation import (
    OWN_IMAGES,
    OWN_MIX,
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
from dcfl.runs.model_file import PERSONAL, Network, Which, load_model
from dcfl.scores import Interval, Scores, Z, wilson
from dcfl.system.wording import printable
from dcfl.trained.subject import (
    data_settings,
    embed,
    inputs_of,
    kind_of_images,
    load_own_data,
    require_finite,
    sees_pictures,
)

RESAMPLES = 5000
Numbers = NDArray[np.float64]


def accuracy_interval(right: Tensor, groups: Tensor | None) -> Interval:
    """`right`: one bool per image. Images of one group, such as a patient's, are no independent
    witnesses: then whole groups are drawn again and again (bootstrap)."""
    if groups is None:
        return wilson(float(right.sum()), len(right))
    sums, sizes = _by_group(right.double(), groups)
    if sums.sum() in (0, sizes.sum()):  # nothing varies: as if a group were one image
        return wilson(len(sizes) * float(sums.sum() / sizes.sum()), len(sizes))
    return _resampled(sums, sizes)


@dataclass(frozen=True)
class PairedModels:
    """A second model less a first one, image by image."""

    images: int
    groups: int | None
    only_first: int  # images that the first alone gets right
    only_second: int
    difference: float  # of accuracies, in percentage points
    interval: Interval
    p_value: float
    test: str  # which

    @classmethod
    def of(cls, first: Tensor, second: Tensor, groups: Tensor | None) -> PairedModels:
        """Which images each gets right. Without groups McNemar's exact test, and the interval of
        Bonett and Price (2012); with them, whole groups are drawn again, or change signs."""
        from scipy.stats import binomtest  # type: ignore[import-untyped]  # a third of a second

        won, lost = int((second & ~first).sum()), int((first & ~second).sum())
        change = second.double() - first.double()
        difference = 100 * float(change.mean())
        if groups is None:
            interval, test = _bonett_price(won, lost, len(first)), "McNemar's exact test"
            p_value = float(binomtest(won, won + lost).pvalue) if won + lost else 1.0
            return cls(len(first), None, lost, won, difference, interval, p_value, test)
        sums, sizes = _by_group(change, groups)
        interval, test = _resampled(sums, sizes), "whole groups change signs"
        if not won + lost:  # nothing varies: as if a group were one image
            interval = _bonett_price(0, 0, len(sums))
        p_value = _sign_flips(sums)
        return cls(len(first), len(sums), lost, won, difference, interval, p_value, test)


def number_of_groups(groups: Tensor) -> int:
    return len(np.unique(groups.cpu().numpy()))


def _by_group(values: Tensor, groups: Tensor) -> tuple[Numbers, Numbers]:
    _, which = np.unique(groups.cpu().numpy(), return_inverse=True)
    counts = np.bincount(which).astype(np.float64)
    return np.bincount(which, values.numpy()).astype(np.float64), counts


def _resampled(sums: Numbers, sizes: Numbers) -> Interval:
    generator, count = np.random.default_rng(0), len(sums)  # the same for the same answers
    draws = (generator.integers(count, size=count) for _ in range(RESAMPLES))
    shares = [100 * sums[drawn].sum() / sizes[drawn].sum() for drawn in draws]
    low, high = np.quantile(shares, (0.025, 0.975))
    return float(low), float(high)


def _sign_flips(sums: Numbers) -> float:
    """How often a difference as large comes about if each group may as well favour the other."""
    generator = np.random.default_rng(0)
    totals = [generator.choice((-1.0, 1.0), len(sums)) @ sums for _ in range(RESAMPLES)]
    as_large = np.abs(totals) >= abs(sums.sum()) - 1e-9
    return float((as_large.sum() + 1) / (RESAMPLES + 1))


def _bonett_price(won: int, lost: int, images: int) -> Interval:
    gain, loss = (won + 1) / (images + 2), (lost + 1) / (images + 2)
    reach = Z * math.sqrt((gain + loss - (gain - loss) ** 2) / (images + 2))
    return 100 * max(gain - loss - reach, -1.0), 100 * min(gain - loss + reach, 1.0)


PART = 10_000  # images whose answers are counted at a time


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
        data: Nothing: the images that the run was scored on, of a client's own model the client's
            own if it has any. Or a folder of class folders, an .npz
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
    """`clients`: score each client too, as everywhere: on its own test images or else on its own
    mix of classes. `fine_tune`: and after so many epochs of training on its training images.
    `parts`: see `fine_tuned_accuracies`."""
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


def untouched(folder: Path, which: Which, network: Network = None) -> EvaluationRecord:
    """On the test images of a run with `data.holdout`, which no round was scored on."""
    scoring = ModelScoring.of(RecordedRun.open(folder), which, network)
    settings = data_settings(scoring.run)
    load_own_data(scoring.run, scoring.model)  # refuses images that have changed
    if not settings.holdout:
        raise ConfigError(f"{folder}: its rounds were scored on the test images: leave out --test")
    test = load_dataset(replace(settings, holdout=0.0)).test
    name = f"{settings.dataset}, which no round was scored on"
    return scoring.record(name, "test images", test, scoring.logits(test), own=False)


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
        """A client's own model on the client's own test images, if it has any."""
        settings, dataset = data_settings(self.run), load_own_data(self.run, self.model)
        test, logits = dataset.test, self.logits(dataset.test)
        record = self.record(settings.dataset, kind_of_images(settings), test, logits)
        client = self.which if isinstance(self.which, int) else None
        if not (clients or fine_tune or client is not None):
            return record
        data = self._split(settings, dataset)
        names = client_names(data)
        if test.owners is not None:
            kind, rows = OWN_IMAGES, _client_scores(names, test, test.owners, _right(logits, test))
        else:
            kind = f"{record.kind} in {OWN_MIX}"
            found = own_mix_accuracies(record.scores.recall, data.label_mixes()).tolist()
            scored = zip(names, found, strict=True)
            rows = tuple(ClientScore(name, 0, x) for name, x in scored if math.isfinite(x))
        if client is not None:
            mine = test.owners == client if test.owners is not None else torch.zeros(0)
            if mine.any():
                own = f"own {record.kind}"
                record = self.record(settings.dataset, own, test[mine], logits[mine])
            if not clients:  # a client's model is for nobody else
                rows = tuple(row for row in rows if row.name == names[client])
        if clients or fine_tune or test.owners is None:
            record = replace(record, clients=rows, clients_kind=kind)
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
        frozen = () if parts else tuple(self.run.config["model"].get("freeze", ()))
        return replace(record, clients=clients, fine_tuned=epochs, frozen=frozen)

    def other_data(self, data: str | Path | Dataset, clients: bool) -> EvaluationRecord:
        found = self.to_score(data)
        if clients and not found.owners:
            raise ConfigError(
                f"{printable(found.name)} has no clients: they need sites:PATH, or the run's own "
                f"data"
            )
        logits = self.logits(found.images)
        record = self.record(found.name, "images", found.images, logits, own=False)
        if not clients:
            return record
        whole, owners = _together([*found.owners.values()])  # a common test set has other images
        right = _right(self.logits(whole), whole)
        rows = _client_scores([*found.owners], whole, owners, right)
        return replace(record, clients=rows, clients_kind="its own images")

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

    def logits(self, images: Images) -> Tensor:
        """All images go through the model together: those of one client alone would be another
        input to a model that normalises by the batch."""
        if not len(images):
            raise ConfigError(f"{self.run.folder.name}: there are no images to score it on")
        device = choose_devices("auto")[0]
        logits = embed(self.model.to(device), images.to(device), self.preparation)[1]
        require_finite(self.run.folder, logits)
        return logits

    def record(
        self, name: str, kind: str, images: Images, logits: Tensor, own: bool = True
    ) -> EvaluationRecord:
        labels, starts = images.labels.cpu(), range(0, len(images), PART)
        parts = (Scores.of(logits[at : at + PART], labels[at : at + PART]) for at in starts)
        groups = _groups(images)
        return EvaluationRecord(
            data=name,
            own_data=own,
            kind=kind,
            which=self.which,
            weights_sha256=named.sha256(self.model.state_dict()),
            class_names=self.wanted.class_names,
            scores=reduce(add, parts),
            interval=accuracy_interval(_right(logits, images), groups),
            groups=number_of_groups(groups) if groups is not None else None,
            trained_on=trained_on(self.run.folder, images),
        )


def _right(logits: Tensor, images: Images) -> Tensor:
    return logits.argmax(dim=1) == images.labels.cpu()


def _groups(images: Images) -> Tensor | None:
    """None if they are all of one, of which nothing can be drawn."""
    groups = images.groups
    return groups if groups is not None and number_of_groups(groups) > 1 else None


def _client_scores(
    names: Sequence[str], images: Images, owners: Tensor, right: Tensor
) -> tuple[ClientScore, ...]:
    rows = []
    for number, name in enumerate(names):
        mine, own = right[owners == number], images[owners == number]
        if len(own):
            accuracy = 100 * int(mine.sum()) / len(own)
            interval = accuracy_interval(mine, _groups(own))
            rows.append(ClientScore(name, len(own), accuracy, interval))
    return tuple(rows)


def _together(parts: Sequence[Images]) -> tuple[Images, Tensor]:
    groups = [part.groups for part in parts if part.groups is not None]
    pixels, labels = (torch.cat([getattr(part, n) for part in parts]) for n in ("pixels", "labels"))
    whole = Images(pixels, labels, torch.cat(groups) if len(groups) == len(parts) else None)
    sizes = torch.tensor([len(part) for part in parts])
    return whole, torch.arange(len(parts)).repeat_interleave(sizes)


class TwoModels(NamedTuple):
    first: EvaluationRecord
    second: EvaluationRecord
    paired: PairedModels  # the second less the first


def compare_models(
    folders: Sequence[Path],
    data: str | Path | Dataset | None = None,
    network: Network = None,
    client: int | None = None,
    best: bool = False,
) -> TwoModels:
    """Models of two runs, image by image: on a data set, or on the first run's own images. Of a
    `client` its own models, or those that it shares, on its own test images. `best`: of the models
    that are shared."""
    runs = [RecordedRun.open(folder) for folder in folders]
    used = [_model_of(run, client, best) for run in runs]
    if best and "best" not in used:
        raise ConfigError(f"--best and --client {client} name two models: give one of them")
    if isinstance(client, int) and used == [client] * 2 and not _is_same(client, *runs):
        raise ConfigError(f"client {client} of {runs[1].folder} is not that of {runs[0].folder}")
    scorings = [ModelScoring.of(run, which, network) for run, which in zip(runs, used, strict=True)]
    source = load_own_data(runs[0], scorings[0].model) if data is None else data
    kind, mine = "images", None
    if isinstance(source, Dataset) and client is not None and source.test.owners is not None:
        kind, mine = "own test images", source.test.owners == client
        if not mine.any():
            raise ConfigError(f"{folders[0]}: client {client} has no test images: name others")
    judged = []
    for scoring in scorings:
        found = scoring.to_score(source)
        images, logits = found.images, scoring.logits(found.images)
        if mine is not None:
            images, logits = images[mine], logits[mine]
        record = scoring.record(found.name, kind, images, logits, own=False)
        truth = np.array(scoring.wanted.class_names)[images.labels.numpy()]
        judged.append((record, _right(logits, images), truth, images))
    (first, right, truth, images), (second, also_right, also_truth, _) = judged
    if not np.array_equal(truth, also_truth):
        raise ConfigError("the two models are shown other images: some can be read for one only")
    return TwoModels(first, second, PairedModels.of(right, also_right, _groups(images)))


def _model_of(run: RecordedRun, client: int | None, best: bool) -> Which:
    """The client's own or, if the run has none, the one that all share."""
    if client is not None and (run.folder / PERSONAL).is_dir():
        return client
    return "best" if best else "last"


def _is_same(client: int, *runs: RecordedRun) -> bool:
    """By the site's name; of clients without names, the number is that of a split."""
    return len({run.site_names.get(client, run.partition_sha256) for run in runs}) == 1


def client_names(data: FederatedData) -> Sequence[str]:
    return data.dataset.site_names or [f"client {n}" for n in range(len(data.partition))]


def fine_tuned_accuracies(
    run: RecordedRun,
    model: FeatureModel,
    data: FederatedData,
    epochs: int,
    clients: Sequence[int],
    parts: Sequence[str],
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
