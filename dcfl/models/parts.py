"""Parts of a model that are frozen, or that every client has for itself (`federation.personal`).

A client trains its personal part with the rest and keeps it between its rounds, beside what its
method remembers. Nobody sends it. The server's own copy stays as it was at the beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor, nn

from dcfl.errors import ConfigError
from dcfl.messages import Tensors
from dcfl.tensors import apart, together

NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def within(name: str, parts: Collection[str]) -> bool:
    """Whether a dotted name is one of these or lies in one: "stages.0" contains "stages.0.first",
    not "stages.01"."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
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


def all_but(model: nn.Module, parts: Sequence[str], key: str = "--parts") -> list[str]:
    """The names of all layers and tensors in none of these parts; ["all"] is the whole model."""
    if [*parts] == ["all"]:
        return []
    require_parts(model, parts, key)
    tensors = [*model.state_dict()]
    layers = dict.fromkeys(name.rpartition(".")[0] or name for name in tensors)
    return [name for name in layers if not any(within(name, [part]) for part in parts)]


def frozen_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Everything that is frozen, by its name in the state dict: the tensors themselves."""
    return tensors_within(model, getattr(model, "frozen_parts", ()))


def tensors_within(model: nn.Module, parts: Collection[str]) -> dict[str, Tensor]:
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


NORMS = "norms"  # stands for all normalisation layers, with their statistics
ALL_BUT = "all but "  # begins what stands for everything outside the part that follows


def personalise(model: nn.Module, parts: Sequence[str], key: str = "federation.personal") -> None:
    """Make the parts of these names personal, for good. Call it after `freeze`: what is frozen
    stays the same for everybody. `key`: the setting that has them."""
    if not parts:
        return
    if not hasattr(model, "personal_parts"):
        raise ConfigError(f"{key}: the model must derive from dcfl.FeatureModel")
    named = [part for part in parts if part != NORMS and not part.startswith(ALL_BUT)]
    require_parts(model, named, key)
    for part in parts:
        if part.startswith(ALL_BUT):
            named += all_but(model, [part.removeprefix(ALL_BUT)], key)
    norms = [n for n, layer in model.named_modules() if isinstance(layer, NORMALISATIONS)]
    if NORMS in parts and not norms:
        raise ConfigError(f'{key} = ["{NORMS}"]: the model has no normalisation layers')
    model.personal_parts = (*named, *(norms if NORMS in parts else ()))  # type: ignore[assignment]
    own = personal_tensors(model)
    trained = {name for name, live in model.named_parameters() if live.requires_grad}
    if not trained & own.keys():
        raise ConfigError(f"{key} names nothing that is trained: {', '.join(parts)}")
    if not trained - own.keys():
        raise ConfigError(f"{key} leaves nothing to train together: name fewer parts")


def personal_tensors(model: nn.Module) -> dict[str, Tensor]:
    frozen = frozen_tensors(model)
    own = tensors_within(model, getattr(model, "personal_parts", ()))
    return {name: tensor for name, tensor in own.items() if name not in frozen}


def unsent_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All that is in no message: what is frozen, since everybody has it, and what is personal."""
    return {**frozen_tensors(model), **personal_tensors(model)}


def sent_modules(model: nn.Module) -> list[nn.Module]:
    unsent = (*getattr(model, "frozen_parts", ()), *getattr(model, "personal_parts", ()))
    return [module for name, module in model.named_modules() if not within(name, unsent)]


# In a client's memory. Without a personal part it is the method's alone.


def with_personal(own: Tensors, remembered: Tensors) -> Tensors:
    """What a client keeps: its personal part and what its method remembers."""
    return together(personal=own, method=remembered) if own else remembered


def personal_and_rest(memory: Tensors) -> tuple[Tensors, Tensors]:
    """Undo `with_personal`, for a model that has a personal part. What `[compression]` keeps beside
    them is left out."""
    own, remembered, _ = apart(memory, "personal", "method", "compression")
    return own, remembered
