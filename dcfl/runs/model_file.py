"""model.safetensors, the trained weights and all that is needed to rebuild the model, and
best.safetensors, the same for the round with the best accuracy."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from torch import Tensor, nn

from dcfl import tensors as named
from dcfl.data import FederatedData
from dcfl.data.augment import Preparation
from dcfl.data.datasets import Size
from dcfl.data.identical import join_digests
from dcfl.engines.engine import Engine, SiteScoring
from dcfl.errors import CheckpointError, ConfigError, DCFLError, RunFolderError, RunMissing
from dcfl.evaluation import client_accuracies
from dcfl.messages import ClientUpdate, Tensors
from dcfl.models import FeatureModel, ModelSettings, build_model
from dcfl.models.adapted import AdaptedModel
from dcfl.models.own_models import OWN_MODELS, register_model
from dcfl.models.parts import personal_and_rest
from dcfl.models.warm_start import DESCRIPTION, MODEL, is_whole
from dcfl.runs.folder import MODEL_COPY, RecordedRun, require_utf8
from dcfl.runs.prepare import Prepared
from dcfl.runs.rows import damaged, parsed, validated
from dcfl.system.json_types import Json, Number, Text
from dcfl.system.storage import private_folder, require_no_way_out, storage, strict_json
from dcfl.system.tensor_files import read_stored, read_tensors, write_stored, write_tensors
from dcfl.tensors import sha256

PERSONAL = "personal"  # the subfolder of the clients' parts
# Whose a node's memory is, as flower/node_memories.py writes it.
MEMORY = re.compile(r"(?P<run>[0-9a-f]{32}), client (?P<client>\d+), round (?P<round>\d+)")
MOST_NAMED = 20  # clients in an error message


def keep_personal_models(
    engine: Engine, weights: Tensors, data: FederatedData, folder: Path
) -> tuple[Tensor, Tensor]:
    """Write the personal part of each client, and score its model as `client_accuracies` does:
    [clients] in percent, NaN for those that have never trained; and on every client's own test
    images: [clients, clients], empty where these have none. Clients that are elsewhere keep their
    parts, or lend them to the others, and score the models themselves."""
    mixes, weights_sha256 = data.label_mixes(), sha256(weights)
    accuracies = torch.full((len(mixes),), torch.nan, dtype=torch.float64)
    each = engine.sites is not None or data.dataset.test.owners is not None
    on_sites = accuracies.repeat(len(mixes), 1) if each else torch.empty(len(mixes), 0)
    if engine.sites is not None:
        for (client, site), accuracy in _told(engine.sites, weights).items():
            on_sites[client, site] = accuracy
        accuracies = on_sites.diagonal().clone()
    for client, part in engine.personal_parts():
        engine.begin_evaluation({**weights, **part})
        if result := engine.end_evaluation():
            accuracies[client] = client_accuracies(result, mixes)[client]
            if result.by_owner is not None:
                on_sites[client] = result.by_owner
        path = _path(folder, client)
        with storage(path):
            path.parent.mkdir(exist_ok=True)
        write_tensors(path, part, _owner(client, weights_sha256))
    return accuracies, on_sites


def _told(sites: SiteScoring, weights: Tensors) -> Mapping[tuple[int, int], float]:
    """Sites that do not answer must not spoil a finished run."""
    try:
        return sites.personal_accuracies(weights)
    except DCFLError as error:
        warnings.warn(f"the sites have not scored their own models: {error}", stacklevel=3)
        return {}


def read_personal_part(folder: Path, client: int, weights: Tensors) -> dict[str, Tensor]:
    path = _path(folder, client)
    if not path.is_file():
        kept = [file.stem[-6:] for file in path.parent.glob("client-??????.safetensors")]
        numbers = sorted(int(number) for number in kept if number.isdecimal())
        raise RunMissing(
            f"{folder}: client {client} has no personal model; these have one: {_some(numbers)}"
            if numbers
            else f"{folder} holds no personal models: see federation.personal"
        )
    try:
        part, owner = read_tensors(path)
    except CheckpointError as error:
        raise damaged(path, str(error)) from error
    if owner != _owner(client, sha256(weights)):
        raise damaged(path, "it belongs to another run")
    return part


def join_personal_part(folder: Path, state: Path) -> tuple[int, Path]:
    """At a site: put the part that its node has kept beside the run's model, where every reader
    finds it, with the digests of the pictures that it was trained on. `state`: the node's folder of
    memories, or a folder or file in it. Returns the number of the client, and the new file."""
    weights, _ = read_stored(_model_path(folder, "last"))
    run = RecordedRun.open(folder).environment.get("run", "")
    found: dict[int, tuple[int, Path]] = {}  # by client: the last round
    for file in [state] if state.is_file() else sorted(state.rglob("round-*.safetensors")):
        owner = MEMORY.fullmatch(read_tensors(file)[1])
        if owner is not None and run in ("", owner["run"]):
            newest = found.get(int(owner["client"]), (0, file))
            found[int(owner["client"])] = max(newest, (int(owner["round"]), file))
    if len(found) != 1:
        several = f"those of clients {_some(sorted(found))}: name the folder of one of them"
        raise RunMissing(
            f"{state}: what a node has kept of the run {folder} is wanted, and there is "
            f"{several if found else 'nothing of it'}"
        )
    ((client, (_, file)),) = found.items()
    part = personal_and_rest(read_tensors(file)[0])[0]
    if not part or any(n not in weights or t.shape != weights[n].shape for n, t in part.items()):
        raise RunFolderError(f"{file}: no personal part of the model in {folder}")
    path = _path(folder, client)
    with storage(path):
        private_folder(path.parent)
    write_tensors(path, part, _owner(client, sha256(weights)), private=True)
    join_digests(folder, file.parent)
    return client, path


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
    model_config = ConfigDict(strict=True, extra="ignore")

    settings: dict[str, Any]
    code: Text = ""  # SHA-256 of the user's file that defines the network
    channels: Annotated[int, Field(ge=1, le=10**6)]  # feature vectors may be long
    size: Annotated[int, Field(ge=1, le=4096)] | list[Annotated[int, Field(ge=1, le=10**7)]]
    inputs: list[int] = []  # the shape of one, if it is neither an image nor a feature vector
    classes: Annotated[int, Field(ge=2, le=10**6)]
    class_names: list[Text]
    mean: list[Number]
    std: list[Annotated[float, Field(gt=0, le=1e100)]]

    @model_validator(mode="after")
    def _lengths_agree(self) -> ModelShape:
        if len(self.class_names) != self.classes:
            raise ValueError(f"{len(self.class_names)} names of {self.classes} classes")
        if {len(self.mean), len(self.std)} != {0 if self.inputs else self.channels}:
            raise ValueError("a mean and a std for each channel")
        return self


SHAPE: TypeAdapter[ModelShape] = TypeAdapter(ModelShape)
SETTINGS: TypeAdapter[ModelSettings] = TypeAdapter(ModelSettings)


def round_file(round: int, client: int | None = None) -> str:
    owner = "" if client is None else f"-client-{client:06d}"
    return f"round-{round:06d}{owner}.safetensors"


def read_updates(run: RecordedRun, round: int) -> dict[int, ClientUpdate]:
    updates = {}
    for row in run.each_client():
        path = run.folder / round_file(round, row.client)
        if row.round != round or not path.is_file():
            continue
        try:
            sent = named.copies(read_tensors(path)[0])
            weights, upload = named.apart(sent, "weights", "upload")
        except (CheckpointError, KeyError, ValueError) as error:
            raise damaged(path, str(error)) from error
        told = {name: value for name, value in row.metrics.items() if value is not None}
        sizes = (row.num_examples, row.num_steps)
        updates[row.client] = ClientUpdate(row.client, weights, upload, *sizes, told)
    if not updates:
        raise RunMissing(
            f"{run.folder} has kept no update of round {round}: see output.keep_updates"
        )
    return updates


def write_model(path: Path, prepared: Prepared, weights: Tensors) -> None:
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
    if not dataset.preparation.mean:
        shape["inputs"] = dataset.shape
    if not prepared.own_model:
        shape["settings"] = prepared.experiment.model.architecture
        if MODEL_COPY in prepared.own_files:
            shape["code"] = prepared.own_files[MODEL_COPY].code_sha256
    contiguous = {name: weights[name].cpu().contiguous() for name in sorted(weights)}
    checksum = named.checksum(contiguous, strict_json(shape))
    # A single entry: safetensors writes several in arbitrary order.
    metadata = {DESCRIPTION: strict_json({**shape, "checksum": checksum})}
    write_stored(path, contiguous, metadata)


Network = nn.Module | str | Path | None  # the module that was trained, or the file that builds it


def load_model(
    run_folder: str | Path,
    which: Which = "last",
    *,
    model: Network = None,
    round: int | None = None,
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
        model: The module, if the run was trained with one from Python (`dcfl.run(model=...)`): a
            copy of it gets the weights. Or the Python file that defines the network, if the run
            was trained with `--model-file`. The run folder has a copy, `model.py`. It runs only if
            you name it here, so read it first if the folder is not yours.
        round: The model after this round, if the run has kept it (`output.keep_every`).

    Returns:
        The model, ready to be called on a batch of prepared images.

    Raises:
        RunMissing: There is no such model in the folder.
        RunFolderError: The file is damaged, or a network of your own is needed and was not named.
        ConfigError: The network is not the one that the run was trained with.

    Example:
        >>> import dcfl, torch
        >>> result = dcfl.run(federation={"rounds": 1}, out="runs/first")
        >>> model = dcfl.load_model(result.folder)
        >>> pixels = torch.zeros(1, 8, 8, 1, dtype=torch.uint8)
        >>> model(model.preparation.clean(pixels)).logits.shape
        torch.Size([1, 10])
    """
    return load_with_settings(Path(run_folder), which, model, round)[0]


class ModuleSettings(ModelSettings):
    """Of a module from Python, which has a name and nothing that could rebuild it."""

    def __post_init__(self) -> None:
        pass


def load_with_settings(
    run_folder: Path, which: Which = "last", network: Network = None, round: int | None = None
) -> tuple[FeatureModel, ModelSettings]:
    """The settings are those in the model's file, checked against its tensors."""
    kept: Kept | None = None
    if round is None:
        kept = "last" if isinstance(which, int) else which
        path = _model_path(run_folder, kept)
    else:
        path = run_folder / round_file(round)
        if not path.is_file():
            raise RunMissing(f"{run_folder} has not kept round {round}: see output.keep_every")
        require_no_way_out(run_folder)
    try:
        weights, metadata = read_stored(path)
    except CheckpointError as error:
        raise damaged(path, str(error.__cause__ or error)) from error
    text = metadata.get(DESCRIPTION, "{}")
    description = parsed(text, path)
    _require_whole(path, weights, text, kept)
    shape = validated(SHAPE, {"settings": {}, **description}, path)
    if isinstance(which, int):
        weights = {**weights, **read_personal_part(path.parent, which, weights)}
    settings: ModelSettings
    if isinstance(network, nn.Module):
        own = network.module if isinstance(network, AdaptedModel) else network
        model, settings = _copy_of(network, weights, path), ModuleSettings(type(own).__name__)
    else:
        named_here = "" if network is None else register_model(Path(network))
        if shape.settings:
            _require_code(shape, path)
        elif named_here:  # for the weights of a module from Python, the network of the file
            shape = shape.model_copy(update={"settings": ModelSettings(named_here).architecture})
        else:
            raise RunFolderError(
                f"{path.parent} was trained with a module from Python: give it as model=, or name "
                f"a file that builds it with --model-file or model="
            )
        model, settings = _rebuilt(shape, weights, path)
    model.load_state_dict(weights)
    model.class_names = tuple(shape.class_names)
    model.preparation = Preparation(tuple(shape.mean), tuple(shape.std))
    channels, size = model.built_for = _inputs(shape)
    height_width = (size, size) if isinstance(size, int) else size
    model.image_shape = tuple(shape.inputs) or (*height_width, channels)
    return model.eval(), settings


def _copy_of(module: nn.Module, weights: Tensors, path: Path) -> FeatureModel:
    if not isinstance(module, FeatureModel):
        raise ConfigError("model= takes what was trained: dcfl.adapt(module) makes it of a module")
    _require_fitting(module, weights, path, own=True)
    return copy.deepcopy(module)


def _model_path(folder: Path, which: Kept) -> Path:
    if which not in get_args(Kept):
        raise ConfigError(f'which model: "last", "best" or a client\'s number, not {which!r}')
    name = MODEL_FILES[which]
    require_utf8(folder / name)
    require_no_way_out(folder)
    if (folder / name).is_file():
        return folder / name
    if not folder.is_dir():
        raise RunMissing(f"{folder}: no such folder")
    if which == "best" and (folder / MODEL_FILES["last"]).is_file():
        raise RunMissing(f"{folder} holds no {name}: train with output.keep_best = true")
    raise RunMissing(f"{folder}: holds no {name}: has the run finished?")


def _require_whole(path: Path, weights: Tensors, description: str, which: Kept | None) -> None:
    """Check the file's own checksum, and the hash in summary.json if there is one."""
    if not is_whole(weights, description):
        raise damaged(path, "its checksum is another one")
    summary = RecordedRun(path.parent).summary
    recorded_hash = summary.hash_of(which) if summary and which else ""
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
            f"--model-file or model=; {copy} is a copy, to be read before it is run"
        )
    if own is not None and shape.code != own.file.code_sha256:
        recorded = RecordedRun(path.parent).environment.get("own_files")
        known = recorded if isinstance(recorded, dict) else {}
        changed = [name for name, sha in own.file.imported.items() if known.get(name) != sha]
        if known.get(MODEL_COPY) != own.file.sha256:
            changed = [f"its SHA-256 {own.file.sha256[:16]}", *changed]
        raise ConfigError(
            f"{own.file.path} is not the file that {path.parent} was trained with: "
            f"{', '.join(changed) or 'what it imports'} has changed"
        )


def _rebuilt(shape: ModelShape, weights: Tensors, path: Path) -> tuple[FeatureModel, ModelSettings]:
    size = (*_inputs(shape), shape.classes)
    try:
        settings = SETTINGS.validate_python(shape.settings)
        if settings.built_in:
            with torch.device("meta"):  # takes no memory, whatever the size
                _require_fitting(build_model(settings, *size, seed=0), weights, path)
    except (ValidationError, ValueError, RuntimeError) as error:
        raise damaged(path, f"settings: {error}") from error
    model = build_model(settings, *size, seed=0)
    _require_fitting(model, weights, path, own=not settings.built_in)
    return model, settings


def _inputs(shape: ModelShape) -> tuple[int, Size]:
    size = shape.size if isinstance(shape.size, int) else tuple(shape.size)
    return shape.channels, size


def _require_fitting(model: FeatureModel, weights: Tensors, path: Path, own: bool = False) -> None:
    def described(tensors: Tensors) -> dict[str, tuple[torch.dtype, torch.Size]]:
        return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}

    if described(model.state_dict()) != described(weights):
        raise (
            ConfigError(f"{path} does not fit the network: its tensors have other names or shapes")
            if own
            else damaged(path, "its tensors are not those of the model that it names")
        )
