"""Networks from users' files. Only the command line or Python can name such a file, never a config:
there the network has a plain name, which means nothing until its file has been given."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

from torch import nn

from dcfl.errors import ConfigError, DCFLError
from dcfl.models.adapted import AdaptedModel, adapt
from dcfl.models.output import FeatureModel
from dcfl.system.own_files import OwnFile, run_file
from dcfl.system.printable import one_line

BUILT_IN = ("cnn", "lenet", "resnet8", "resnet18", "linear", "mlp")  # names that are taken
SHAPE = ("channels", "size", "classes")  # what a network is built for
PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True)
class OwnModel:
    name: str  # of the function or class
    file: OwnFile
    builder: Callable[[int, int, int], object]

    def build(self, channels: int, size: int, classes: int) -> FeatureModel:
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
    """The config's model.head, for a network that is not dcfl's own."""
    if head != "none":
        if not isinstance(model, AdaptedModel):
            name = type(model).__name__
            raise ConfigError(f'model.head = "{head}": {name} says itself what heads it has')
        model.add_side_head(head)
    return model
