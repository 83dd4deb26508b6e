"""model.safetensors, the trained weights and all that is needed to rebuild the model, and
best.safetensors, the same for the round with the best accuracy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from torch import Tensor

from dcfl import tensors as named
from dcfl.data import FederatedData
from dcfl.data.augment import Preparation
from dcfl.engines.engine import Engine, SiteScoring
from dcfl.errors import CheckpointError, ConfigError, DCFLError, RunFolderError, RunMissing
from dcfl.evaluation import own_mix_accuracies
from dcfl.messages import Tensors
from dcfl.models import FeatureModel, ModelSettings, build_model
from dcfl.models.own_models import OWN_MODELS, register_model
from dcfl.models.warm_start import MODEL
from dcfl.runs.folder import MODEL_COPY, RecordedRun, require_utf8
from dcfl.runs.prepare import Prepared
from dcfl.runs.rows import damaged, parsed, validated
from dcfl.system.json_types import Json, Number, Text
from dcfl.system.storage import storage, strict_json
from dcfl.system.tensor_files import read_stored, read_tensors, write_stored, write_tensors
from dcfl.tensors import sha256

PERSONAL = "personal"  # the subfolder of the clients' parts
MOST_NAMED = 20  # clients in an error message


def keep_personal_models(
    engine: Engine, weights: Tensors, data: FederatedData, folder: Path
) -> Tensor:
    """Write the personal part of each client, and score its model on its own mix of classes:
    [clients] in percent, NaN for those that have never trained. Clients that are elsewhere keep
    their parts and score their models themselves."""
    mixes, weights_sha256 = data.label_mixes(), sha256(weights)
    accuracies = torch.full((len(mixes),), torch.nan, dtype=torch.float64)
    if engine.sites is not None:
        for client, accuracy in _told(engine.sites, weights).items():
            accuracies[client] = accuracy
    for client, part in engine.personal_parts():
        engine.begin_evaluation({**weights, **part})
        by_class = engine.end_evaluation().by_class
        accuracies[client] = own_mix_accuracies(by_class, mixes[client : client + 1])[0]
        path = _path(folder, client)
        with storage(path):
            path.parent.mkdir(exist_ok=True)
        write_tensors(path, part, _owner(client, weights_sha256))
    return accuracies


def _told(sites: SiteScoring, weights: Tensors) -> Mapping[int, float]:
    """Sites that do not answer must not spoil a finished run."""
    try:
        return sites.personal_accuracies(weights)
    except DCFLError as error:
        warnings.warn(f"the sites have not scored their own models: {error}", stacklevel=3)
        return {}


def read_personal_part(folder: Path, client: int, weights: Tensors) -> dict[str, Tensor]:
    """What the client has in place of some of the global weights."""
    path = _path(folder, client)
    if not path.is_file():
        kept = [file.stem[-6:] for file in path.parent.glob("client-??????.safetensors")]
        numbers = sorted(int(number) for number in kept if number.isdecimal())
        raise RunMissing(
            f"{folder}: client {client} has no personal model; these have one: {_some(numbers)}"
            if numbers
            else f"{folder} holds no personal models: train with federation.personal"
        )
    try:
        part, owner = read_tensors(path)
    except CheckpointError as error:
        raise damaged(path, str(error)) from error
    if owner != _owner(client, sha256(weights)):
        raise damaged(path, "it belongs to another run")
    return part


def _some(clients: Sequence[int]) -> str:
    shown = ", ".join(map(str, clients[:MOST_NAMED]))
    return f"{shown}, ... ({len(clients)} clients)" if len(clients) > MOST_NAMED else shown


def _path(folder: Path, client: int) -> Path:
    return folder / PERSONAL / f"client-{client:06d}.safetensors"


def _owner(client: int, weights_sha256: str) -> str:
    return f"client {client} of the model {weights_sha256}"


Kept = Literal["last", "best"]
Which = Kept | int  # a number: the model of that client, if a part of it is personal
MODEL_FILES: dict[Kept, str] = {"last": MODEL, "best": "best.safetensors"}


class ModelShape(BaseModel):
    """How to rebuild the model, and what its inputs and outputs mean."""

    model_config = ConfigDict(strict=True, extra="ignore")

    settings: dict[str, Any]
    code: Text = ""  # SHA-256 of the user's file that defines the network
    channels: Annotated[int, Field(ge=1, le=10**6)]  # feature vectors may be long
    size: Annotated[int, Field(ge=1, le=4096)]
    classes: Annotated[int, Field(ge=2, le=10**6)]
    class_names: list[Text]
    mean: list[Number]
    std: list[Annotated[float, Field(gt=0, le=1e100)]]

    @model_validator(mode="after")
    def _lengths_agree(self) -> ModelShape:
        if len(self.class_names) != self.classes:
            raise ValueError(f"{len(self.class_names)} names of {self.classes} classes")
        if {len(self.mean), len(self.std)} != {self.channels}:
            raise ValueError("a mean and a std for each channel")
        return self


SHAPE: TypeAdapter[ModelShape] = TypeAdapter(ModelShape)
SETTINGS: TypeAdapter[ModelSettings] = TypeAdapter(ModelSettings)


def write_model(folder: Path, prepared: Prepared, weights: Tensors, which: Kept = "last") -> None:
    """Write the file. Equal runs write equal bytes."""
    dataset = prepared.data.dataset
    shape: Json = {
        "channels": dataset.channels,
        "size": dataset.size,
        "classes": dataset.classes,
        "class_names": dataset.class_names,
        "mean": dataset.preparation.mean,
        "std": dataset.preparation.std,
    }
    if not prepared.own_model:
        shape["settings"] = prepared.experiment.model.architecture
        if MODEL_COPY in prepared.own_hashes:
            shape["code"] = prepared.own_hashes[MODEL_COPY]
    contiguous = {name: weights[name].cpu().contiguous() for name in sorted(weights)}
    checksum = named.checksum(contiguous, strict_json(shape))
    # A single entry: safetensors writes several in arbitrary order.
    metadata = {"dcfl": strict_json({**shape, "checksum": checksum})}
    write_stored(folder / MODEL_FILES[which], contiguous, metadata)


def load_model(
    run_folder: str | Path, which: Which = "last", *, model_file: str | Path | None = None
) -> FeatureModel:
    """The trained model of a finished run, in evaluation mode, on the CPU.

    It carries `class_names`, and `preparation`, which turns uint8 pixels of `image_shape` into its
    inputs. A model with `model.norm = "batch-nostats"` needs batches that mix the classes, not
    single images.

    Args:
        run_folder: The folder of a run that has finished.
        which: "last", the model after the last round, or "best", that of the round with the best
            accuracy, which runs with `output.keep_best` keep; or the number of a client: its own
            model, if the run has `federation.personal`.
        model_file: The Python file that defines the network, if the run was trained with
            `--model-file`. The run folder has a copy, `model.py`. It runs only if you name it
            here, so read it first if the folder is not yours.

    Returns:
        The model, ready to be called on a batch of prepared images.

    Raises:
        RunMissing: There is no such model in the folder.
        RunFolderError: The file is damaged, or holds the weights of a module of your own.
        ConfigError: The network's file is not the one that the run was trained with.

    Example:
        >>> import dcfl, torch
        >>> result = dcfl.run(federation={"rounds": 1}, out="runs/first")
        >>> model = dcfl.load_model(result.folder)
        >>> pixels = torch.zeros(1, 8, 8, 1, dtype=torch.uint8)
        >>> model(model.preparation.clean(pixels)).logits.shape
        torch.Size([1, 10])
    """
    model, _ = load_with_settings(Path(run_folder), which, model_file)
    return model


def load_with_settings(
    run_folder: Path, which: Which = "last", model_file: str | Path | None = None
) -> tuple[FeatureModel, ModelSettings]:
    """The settings are those in the model's file, checked against its tensors."""
    kept: Kept = "last" if isinstance(which, int) else which
    path = _model_path(run_folder, kept)
    try:
        weights, metadata = read_stored(path)
    except CheckpointError as error:
        raise damaged(path, str(error.__cause__)) from error
    description = parsed(metadata.get("dcfl", "{}"), path)
    _require_whole(path, weights, description, kept)
    if "settings" not in description:
        raise RunFolderError(
            f"{path} holds the weights of a module of your own: build it and load them with "
            f"safetensors.torch.load_file"
        )
    shape = validated(SHAPE, description, path)
    if isinstance(which, int):
        weights = {**weights, **read_personal_part(path.parent, which, weights)}
    if model_file is not None:
        register_model(Path(model_file))
    _require_code(shape, path)
    model, settings = _rebuilt(shape, weights, path)
    model.load_state_dict(weights)
    model.class_names = tuple(shape.class_names)
    model.preparation = Preparation(tuple(shape.mean), tuple(shape.std))
    model.image_shape = (shape.size, shape.size, shape.channels)
    return model.eval(), settings


def _model_path(folder: Path, which: Kept) -> Path:
    if which not in get_args(Kept):
        raise ConfigError(f'which model: "last", "best" or a client\'s number, not {which!r}')
    name = MODEL_FILES[which]
    require_utf8(folder / name)
    if (folder / name).is_file():
        return folder / name
    if not folder.is_dir():
        raise RunMissing(f"{folder}: no such folder")
    if which == "best" and (folder / MODEL_FILES["last"]).is_file():
        raise RunMissing(f"{folder} holds no {name}: train with output.keep_best = true")
    raise RunMissing(f"{folder}: holds no {name}: has the run finished?")


def _require_whole(path: Path, weights: Tensors, description: Json, which: Kept) -> None:
    """Check the file's own checksum, and the hash in summary.json if there is one."""
    ordered = {name: weights[name] for name in sorted(weights)}
    shape = {key: value for key, value in description.items() if key != "checksum"}
    if description.get("checksum") != named.checksum(ordered, strict_json(shape)):
        raise damaged(path, "its checksum is another one")
    summary = RecordedRun(path.parent).summary
    recorded_hash = summary.hash_of(which) if summary else ""
    if recorded_hash and recorded_hash != named.sha256(weights):
        raise damaged(path, "summary.json has the hash of other weights")


def _require_code(shape: ModelShape, path: Path) -> None:
    """Is the network's file there that the run was trained with? The folder never brings it."""
    name = str(shape.settings.get("name"))
    own = OWN_MODELS.get(name)
    copy = path.with_name(MODEL_COPY)
    if shape.code and own is None:
        raise RunFolderError(
            f"{path.parent} was trained with a network of your own, {name!r}: name its file with "
            f"--model-file or model_file=; {copy} is a copy, to be read before it is run"
        )
    if own is not None and shape.code != own.file.sha256:
        raise ConfigError(
            f"{own.file.path} is not the file that {path.parent} was trained with: its SHA-256 is "
            f"{own.file.sha256[:16]}, not {shape.code[:16] or 'any that is recorded'}"
        )


def _rebuilt(shape: ModelShape, weights: Tensors, path: Path) -> tuple[FeatureModel, ModelSettings]:
    """Build the model, after checking that its tensors match those of the file."""
    size = (shape.channels, shape.size, shape.classes)
    try:
        settings = SETTINGS.validate_python(shape.settings)
        if settings.built_in:
            with torch.device("meta"):  # takes no memory, whatever the size
                _require_fitting(build_model(settings, *size, seed=0), weights, path)
    except (ValidationError, ValueError, RuntimeError) as error:
        raise damaged(path, f"settings: {error}") from error
    model = build_model(settings, *size, seed=0)
    _require_fitting(model, weights, path)
    return model, settings


def _require_fitting(model: FeatureModel, weights: Tensors, path: Path) -> None:
    """Check that the model has the tensors of the file."""

    def described(tensors: Tensors) -> dict[str, tuple[torch.dtype, torch.Size]]:
        return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}

    if described(model.state_dict()) != described(weights):
        raise damaged(path, "its tensors are not those of the model that it names")
