"""Networks that are not dcfl's own: from a user's file, or of timm and torchvision by name
("timm:resnet18"), where these are installed. Nothing is downloaded: pretrained weights come from a
file, model.weights.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn

from dcfl.data.datasets import Size
from dcfl.errors import ConfigError, DCFLError
from dcfl.models.adapted import AdaptedModel, adapt
from dcfl.models.output import FeatureModel
from dcfl.system.own_files import OwnFile, run_file
from dcfl.system.wording import install_command, one_line

# Names that are taken.
BUILT_IN = ("cnn", "lenet", "resnet8", "resnet18", "linear", "mlp", "cnn1d", "transformer")
SHAPE = ("channels", "size", "classes")  # what a network is built for
PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True)
class OwnModel:
    name: str  # of the function or class
    file: OwnFile
    builder: Callable[[int, Size, int], object]

    def build(self, channels: int, size: Size, classes: int) -> FeatureModel:
        """Whatever goes wrong in the user's code is one line."""
        call = f"{self.file.path}: {self.name}({channels}, {size}, {classes})"
        try:
            built = self.builder(channels, size, classes)
        except DCFLError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise ConfigError(f"{call} raised {reason}") from error
        if not isinstance(built, nn.Module):
            raise ConfigError(f"{call} is no torch.nn.Module but {type(built).__name__}")
        if any(map(nn.parameter.is_lazy, (*built.parameters(), *built.buffers()))):
            raise ConfigError(
                f"{call} has layers without sizes (torch's Lazy...): give their sizes"
            )
        return built if isinstance(built, FeatureModel) else adapt(built)


OWN_MODELS: dict[str, OwnModel] = {}  # those that have been given to this process


def model_in(file: OwnFile) -> OwnModel | None:
    """The one network that a file defines, if any: a function of (channels, size, classes), or a
    class derived from FeatureModel that is made of these three. A function comes first, because it
    says how to make the classes; names that begin with _ do not count."""
    functions: dict[str, Callable[..., object]] = {
        name: value
        for name, value in vars(file.module).items()
        if isinstance(value, FunctionType)
        and value.__module__ == file.module.__name__
        and tuple(inspect.signature(value).parameters) == SHAPE
    }
    classes = file.classes(FeatureModel)
    bases = {base for kind in classes for base in kind.__mro__[1:]}
    derived = {kind.__name__: kind for kind in classes if kind not in bases}
    found = {name: one for name, one in (functions or derived).items() if name[0] != "_"}
    if len(found) > 1:
        raise ConfigError(f"{file.path} defines several networks, {', '.join(found)}: one a file")
    for name, builder in found.items():
        if not PLAIN_NAME.fullmatch(name):
            raise ConfigError(f"{file.path}: {name!r} is no name for a network: use plain letters")
        return OwnModel(name, file, builder)
    return None


def register_model(path: Path) -> str:
    """Run a user's file and make its network known by name, for this process."""
    own = model_in(run_file(path))
    if own is None:
        raise ConfigError(
            f"{path} defines no network: write a function of (channels, size, classes) that "
            f"returns a torch.nn.Module, or derive a class from dcfl.FeatureModel"
        )
    if own.name in BUILT_IN:
        raise ConfigError(f"{path}: the name {own.name} is taken: give yours another")
    OWN_MODELS[own.name] = own
    return own.name


def with_head(model: FeatureModel, head: str) -> FeatureModel:
    if head != "none":
        if not isinstance(model, AdaptedModel):
            name = type(model).__name__
            raise ConfigError(f'model.head = "{head}": {name} says itself what heads it has')
        model.add_side_head(head)
    return model


# Plain names alone: timm would take "hf-hub:..." for an address.
NAMED = re.compile(r"(timm|torchvision):([A-Za-z0-9_.]{1,100})")


def library_model(name: str, channels: int, size: int, classes: int) -> FeatureModel:
    match = NAMED.fullmatch(name)
    if match is None:
        raise ConfigError(f'model.name = "{name}": use "timm:NAME" or "torchvision:NAME"')
    library, network = match.groups()
    try:
        return adapt(BUILDERS[library](network, channels, size, classes))
    except ModuleNotFoundError as error:
        if error.name not in BUILDERS:  # timm needs torchvision
            raise
        hint = f"it is not installed: {install_command(library)}"
        raise ConfigError(f'model.name = "{name}" needs {library}, and {hint}') from error


def _timm(network: str, channels: int, size: int, classes: int) -> nn.Module:
    _import_torchvision()  # which timm imports
    import timm

    # After a dot stands the name of pretrained weights.
    _require_known("timm", network.partition(".")[0], timm.list_models())
    options: dict[str, Any] = {"num_classes": classes, "in_chans": channels}
    described = timm.get_pretrained_cfg(network)
    if described is not None and described.fixed_input_size:  # transformers and mixers
        options["img_size"] = size
    return _built(
        f"timm:{network}", lambda: timm.create_model(network, pretrained=False, **options)
    )


def _torchvision(network: str, channels: int, size: int, classes: int) -> nn.Module:
    torchvision = _import_torchvision()
    # Classifiers alone: others fetch the weights of their backbones, whatever `weights` says.
    known = torchvision.models.list_models(module=torchvision.models)
    _require_known("torchvision", network, known)
    if channels != 3:
        raise ConfigError(
            f'model.name = "torchvision:{network}" takes three channels, and the images have '
            f"{channels}; timm's networks take any number"
        )
    options = {"image_size": size} if network.startswith("vit_") else {}
    return _built(
        f"torchvision:{network}",
        lambda: torchvision.models.get_model(network, weights=None, num_classes=classes, **options),
    )


def _import_torchvision() -> Any:
    """Built for another torch, as PyPI's is for CUDA, it cannot load its operators, and stops where
    it describes two of them. Classifiers use none: declared, they let it go on."""
    try:
        import torchvision
    except (RuntimeError, OSError, ImportError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torchvision":
            raise
        if "operator torchvision::nms does not exist" not in str(error):
            raise ConfigError(
                f"torchvision cannot be imported beside torch {torch.__version__} "
                f"({one_line(error)}): remove it, then {install_command('torchvision')}"
            ) from error
        for operator in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{operator}", schema)
        import torchvision
    return torchvision


BUILDERS: dict[str, Callable[[str, int, int, int], nn.Module]] = {
    "timm": _timm,
    "torchvision": _torchvision,
}


def _require_known(library: str, network: str, names: list[str]) -> None:
    if network not in names:
        matches = get_close_matches(network, names, n=1, cutoff=0.5)
        hint = f": did you mean {library}:{matches[0]}?" if matches else ""
        raise ConfigError(f'model.name = "{library}:{network}": no such network{hint}')


def _built(name: str, build: Callable[[], Any]) -> nn.Module:
    try:
        network = build()
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ConfigError(f'model.name = "{name}" cannot be built: {reason}') from error
    if not isinstance(network, nn.Module):
        raise ConfigError(f'model.name = "{name}" is no network')
    return network
