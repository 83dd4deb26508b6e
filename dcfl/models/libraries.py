"""Networks of timm and torchvision by name, where these are installed: "timm:resnet18".

Never with pretrained weights: nothing is downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from torch import nn

from dcfl.errors import ConfigError
from dcfl.models.adapted import adapt
from dcfl.models.output import FeatureModel
from dcfl.system.installing import install_command
from dcfl.system.printable import one_line

# Plain names alone: timm would take "hf-hub:..." for an address.
NAMED = re.compile(r"(timm|torchvision):([A-Za-z0-9_.]{1,100})")


def library_model(name: str, channels: int, classes: int) -> FeatureModel:
    """Build a network of a library, with weights drawn at random."""
    match = NAMED.fullmatch(name)
    if match is None:
        raise ConfigError(f'model.name = "{name}": use "timm:NAME" or "torchvision:NAME"')
    library, network = match.groups()
    try:
        return adapt(BUILDERS[library](network, channels, classes))
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        hint = f"it is not installed: {install_command(library)}"
        raise ConfigError(f'model.name = "{name}" needs {library}, and {hint}') from error


def _timm(network: str, channels: int, classes: int) -> nn.Module:
    import timm

    # After a dot stands the name of pretrained weights.
    _require_known("timm", network.partition(".")[0], timm.list_models())
    return _built(
        f"timm:{network}",
        lambda: timm.create_model(
            network, pretrained=False, num_classes=classes, in_chans=channels
        ),
    )


def _torchvision(network: str, channels: int, classes: int) -> nn.Module:
    import torchvision

    # Classifiers alone: others fetch the weights of their backbones, whatever `weights` says.
    known = torchvision.models.list_models(module=torchvision.models)
    _require_known("torchvision", network, known)
    if channels != 3:
        raise ConfigError(
            f'model.name = "torchvision:{network}" takes three channels, and the images have '
            f"{channels}; timm's networks take any number"
        )
    return _built(
        f"torchvision:{network}",
        lambda: torchvision.models.get_model(network, weights=None, num_classes=classes),
    )


BUILDERS: dict[str, Callable[[str, int, int], nn.Module]] = {
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
