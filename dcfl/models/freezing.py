"""Parts of a model that are not trained: `model.freeze`.

A frozen part keeps its parameters and its statistics, so nobody needs to send them: whoever trains
has them in the model. It stays in evaluation mode (`FeatureModel.train`): BatchNorm normalises by
the statistics it came with, and dropout is off.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor, nn

from dcfl.errors import ConfigError


def within(name: str, parts: Collection[str]) -> bool:
    """Whether a dotted name is one of these or lies in one: "stages.0" contains "stages.0.first",
    not "stages.01"."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Freeze the parts of these names, for good."""
    if not parts:
        return
    if not hasattr(model, "frozen_parts"):
        raise ConfigError("model.freeze: the model must derive from dcfl.FeatureModel")
    require_parts(model, parts, "model.freeze")
    model.frozen_parts = tuple(parts)  # type: ignore[assignment]
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if within(name, parts):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError("model.freeze leaves nothing to train: name fewer parts")
    model.train(model.training)


def frozen_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Everything that is frozen, by its name in the state dict: the tensors themselves."""
    return tensors_within(model, getattr(model, "frozen_parts", ()))


def tensors_within(model: nn.Module, parts: Collection[str]) -> dict[str, Tensor]:
    """The tensors of these parts, by all of their names in the state dict."""
    if not parts:
        return {}
    state = model.state_dict(keep_vars=True)
    chosen = {id(tensor) for name, tensor in state.items() if within(name, parts)}
    # A parameter that two layers share has two names.
    return {name: tensor.detach() for name, tensor in state.items() if id(tensor) in chosen}


def require_parts(model: nn.Module, parts: Sequence[str], key: str) -> None:
    """Refuse names that fit no tensor of the model. `key`: the setting that has them."""
    names = list(model.state_dict())
    for part in parts:
        if not any(within(name, [part]) for name in names):
            known = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
            raise ConfigError(
                f'{key}: the model has no part "{part}"; it has {known}, and their parts, '
                f"such as {names[0].rpartition('.')[0] or names[0]}"
            )
