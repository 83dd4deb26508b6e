"""What makes two runs the same: one definition for resuming, comparing, grouping and sharing cells.

The kind of each key is declared beside it. What the user brought along counts by its content:
images, split, initial weights and code, wherever they lie. A fingerprint is all that a run's bits
depend on: the machine and the versions too.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from dcfl.config import CHOICES, DEFAULT, SECTIONS, Tables, as_tables, experiment_from
from dcfl.data import FederatedData
from dcfl.engines.placement import name_of
from dcfl.engines.runner import reproducible
from dcfl.experiment import Experiment
from dcfl.methods import METHODS, Method
from dcfl.models import FeatureModel
from dcfl.models.adapted import AdaptedModel
from dcfl.models.warm_start import weights_sha256
from dcfl.runs.folder import RecordedRun
from dcfl.server.optimizers import OPTIMIZERS
from dcfl.settings import Kind, kind_of_field
from dcfl.system.own_files import OwnFile, own_file_of

Identity = dict[str, Any]  # settings by dotted key, and facts
BUILT_IN = "built in"  # stands in for the hash that the user's own code has

# Without [method] and [server]: their fields depend on the choice by name, and all change numbers.
KINDS: dict[str, Kind] = {
    f"{section}.{field.name}": kind_of_field(field)
    for section in SECTIONS
    if section not in CHOICES
    for field in fields(getattr(DEFAULT, section))
}
# Hashes of what the user brought along, and the setting that each of them stands for.
CONTENTS = {
    "data": "data.dataset",
    "split": "data.partition",
    "devices": "clock.devices",
    "availability": "clock.availability",
    "weights": "model.weights.sha256",
    "method": "method.source",
    "model": "model.source",
}


class Difference(NamedTuple):
    key: str
    first: Any
    second: Any


def kind_of(key: str) -> Kind:
    """Unknown keys, from other versions of dcfl, may change numbers too."""
    return KINDS.get(key, "result")


def identity(described: Mapping[str, Any]) -> Identity:
    """All that decides the numbers of a run. `described`: its settings by dotted key, and facts,
    whose names have no dot: those of CONTENTS, and of the machine where bits matter."""
    settings = complete({key: value for key, value in described.items() if "." in key})
    facts = {key: fact for key, fact in described.items() if "." not in key and fact is not None}
    files = ("data", "split", "devices", "availability")
    for key in (CONTENTS[fact] for fact in files if fact in facts):
        settings[key] = str(settings[key]).partition(":")[0]  # the hash replaces the path
    return {**of_kind(settings, "result", "seed"), **facts}


def of_run(run: RecordedRun) -> Identity:
    built_in = {"method": BUILT_IN, "model": BUILT_IN}
    contents = {fact: run.environment.get(fact, built_in.get(fact)) for fact in CONTENTS}
    return {**flat(run.config), **contents}


def across_seeds(run: RecordedRun) -> Identity:
    described = of_run(run)
    if run.holdout:  # what is left to train on, and so its hash, is drawn by the seed
        described["data"] = None
    return of_kind(identity(described), "result")


def flat(tables: Mapping[str, Mapping[str, Any]]) -> Identity:
    return {
        f"{section}.{key}": value
        for section, table in tables.items()
        for key, value in table.items()
    }


def complete(settings: Mapping[str, Any]) -> Identity:
    """Add the default of every missing key: another version may have written the settings. Lists,
    which files hold, become tuples."""
    completed = {**defaults(settings), **settings}
    if not str(completed["model.head"]).startswith("side"):  # then it plays no part
        completed.pop("method.embedding", None)
    if completed["data.seed"] == "federation":
        completed["data.seed"] = completed["federation.seed"]
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in completed.items()
    }


def defaults(settings: Mapping[str, Any]) -> Identity:
    method, optimizer = str(settings.get("method.name")), str(settings.get("server.optimizer"))
    return _defaults(
        str(settings.get("data.dataset", "digits")),
        method if method in METHODS else "",
        optimizer if optimizer in OPTIMIZERS else "",
    )


@cache
def _defaults(dataset: str, method: str, optimizer: str) -> Identity:
    chosen: Tables = {"data": {"dataset": dataset}}
    if method:
        chosen["method"] = {"name": method}
    if optimizer:
        chosen["server"] = {"optimizer": optimizer}
    values = flat(as_tables(experiment_from(None, chosen)))
    if not method:  # a user-defined method, whose fields only its file knows
        values = {key: value for key, value in values.items() if not key.startswith("method.")}
    return values


def of_kind(settings: Mapping[str, Any], *kinds: Kind) -> Identity:
    return {key: value for key, value in settings.items() if kind_of(key) in kinds}


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    return [
        Difference(key, first.get(key), second.get(key))
        for key in {**first, **second}
        if first.get(key) != second.get(key)
    ]


def fingerprint(
    experiment: Experiment, data: FederatedData, own: Mapping[str, str], device: torch.device
) -> dict[str, Any]:
    """Dotted keys are settings, the others facts. `own`: hashes of what the user brought along."""
    settings = of_kind(flat(as_tables(experiment)), "result", "seed")
    facts = {
        **own,
        "data": f"{data.dataset.fingerprint[:16]} {data.partition.sha256[:16]}",
        "dcfl": version("dcfl"),
        "torch": version("torch"),
        "cpu": f"{torch.backends.cpu.get_cpu_capability()} {_arithmetic()[:16]}",
    }
    if not experiment.engine.at_sites:  # SuperNodes choose their own devices
        gpu = name_of(device) if device.type == "cuda" else None
        facts["device"] = gpu or device.type
    return {**{key: _plain(value) for key, value in settings.items()}, **facts}


def _plain(value: Any) -> Any:
    """The value as JSON returns it: without tuples or infinity."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def own_contents(experiment: Experiment) -> dict[str, str | None]:
    """Hashes of what the user brought along, as far as they are known without loading the data and
    building the model."""
    weights, split = experiment.model.weights, experiment.data.own_split
    return {
        "method": own_code(experiment.method, None)["method"],
        "weights": weights_sha256(weights) if weights else None,
        "split": split.sha256 if split else None,
        **{name: file.sha256 for name, file in experiment.clock.files.items()},
    }


def own_code(
    method: Method, model: FeatureModel | None, model_file: OwnFile | None = None
) -> dict[str, str]:
    """Hashes of user-defined code, which no version number covers. `model`: one that is not dcfl's
    own; `model_file`: where it came from, if that was a file."""
    described = BUILT_IN
    if model is not None:
        state = model.state_dict()
        tensors = [(name, tensor.dtype, tensor.shape) for name, tensor in state.items()]
        layers = hashlib.sha256(f"{model} {tensors}".encode()).hexdigest()[:16]
        kinds = {type(module) for module in model.modules()}
        if isinstance(model, AdaptedModel):
            kinds.add(type(model.module))
        texts = {model_file.text} if model_file else set()
        described = f"{type(model).__qualname__} {layers} {_source(kinds, texts)}".strip()
    return {"method": _source({type(method)}) or BUILT_IN, "model": described}


def _source(classes: Collection[type], more: Collection[str] = ()) -> str:
    """A hash of the source of these classes and their bases, and of `more`; empty if all of it
    belongs to dcfl or torch."""
    derived_from = {base for kind in classes for base in kind.__mro__}
    texts = {
        _text(kind)
        for kind in derived_from
        if kind.__module__.partition(".")[0] not in ("builtins", "abc", "typing", "dcfl", "torch")
    }
    texts |= {*more}
    return hashlib.sha256("\0".join(sorted(texts)).encode()).hexdigest()[:16] if texts else ""


def _text(kind: type) -> str:
    """The source of the whole file, because a class may use anything in it. Of the main script only
    the class, because another script may resume the run; its name if it has no source."""
    own = own_file_of(kind)
    if own is not None:  # as it was when it ran
        return own.text
    try:
        file = inspect.getsourcefile(kind) if kind.__module__ != "__main__" else None
        return Path(file).read_text("utf-8", "replace") if file else inspect.getsource(kind)
    except (OSError, TypeError):
        return f"{kind.__module__}.{kind.__qualname__}"


def _arithmetic() -> str:
    """A hash of the bits that a small training step and a random draw give on this machine.

    ATen, oneDNN and MKL each choose kernels by processor and by environment variables. No single
    setting reveals their choice, but the last bits do.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 16, 16, 16, generator=generator)
    kernels, matrix = (
        torch.randn(shape, generator=generator).requires_grad_()
        for shape in ((32, 16, 3, 3), (32, 100))
    )
    with reproducible(threads=1):
        maps = F.conv2d(images.contiguous(memory_format=torch.channels_last), kernels, padding=1)
        features = F.relu(F.batch_norm(maps, None, None, training=True)).mean(dim=(2, 3))
        loss = F.cross_entropy(features @ matrix, torch.arange(len(images)))
        gradients = torch.autograd.grad(loss, (kernels, matrix))
    drawn = np.random.default_rng([0, 1]).choice(1000, 20, replace=False)
    digest = hashlib.sha256(repr(drawn.tolist()).encode())
    for tensor in (features.detach(), *gradients):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
