"""Any classifier as a FeatureModel: hooks listen to its layers, and the module stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from dcfl.errors import ConfigError
from dcfl.models.networks import perceptron, require_head
from dcfl.models.output import FeatureModel, Output

SIDE = "side"  # the name of a side head, as in dcfl's own models
# What the two share: a parameter that is replaced, or a hook on the state dict, counts for both.
SHARED = (
    "_parameters",
    "_buffers",
    "_non_persistent_buffers_set",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def adapt(
    module: nn.Module,
    embedding: str | None = None,
    stages: Sequence[str] = (),
    head: str = "none",
) -> FeatureModel:
    """A FeatureModel from any module that maps images to class scores.

    The module is neither copied nor rebuilt. Its tensors keep their names, so files of pretrained
    weights fit. Where the result is trained, so is the module; `dcfl.run` trains a copy.

    Args:
        module: Takes images [B, C, H, W] and returns logits [B, classes], or an object that has
            them as `logits`.
        embedding: The name of the classifier's layer, such as "fc"; what enters it is the
            embedding. By default the last linear layer of the module.
        stages: Names of modules, shallow to deep, whose outputs are what `method.levels` means,
            all of them with FedRCL. Maps [B, C, H, W] and tokens [B, T, D] are averaged to one
            vector for each image. Without any, the embedding is the only level.
        head: "side256" adds a projection head of that width beside the classifier, called `side`.

    Returns:
        The model. It fails with a ConfigError on its first images if they do not pass its layers
        as promised here.

    Raises:
        ConfigError: There is no such layer, or no linear layer at all.

    Example:
        >>> import dcfl, torch
        >>> hidden = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32))
        >>> network = torch.nn.Sequential(hidden, torch.nn.ReLU(), torch.nn.Linear(32, 10))
        >>> model = dcfl.adapt(network, stages=["0"])
        >>> model(torch.zeros(2, 1, 8, 8)).embedding.shape
        torch.Size([2, 32])
        >>> list(model.state_dict()) == list(network.state_dict())
        True
        >>> dcfl.run(model=model, federation={"rounds": 1}).summary.parameters
        2410
    """
    if not isinstance(module, nn.Module):
        raise ConfigError(f"adapt takes a torch.nn.Module, not {type(module).__name__}")
    if isinstance(module, FeatureModel):
        raise ConfigError(f"{type(module).__name__} is a FeatureModel already: use it as it is")
    model = AdaptedModel(module, embedding, tuple(stages))
    if head != "none":
        model.add_side_head(head)
    return model


class AdaptedModel(FeatureModel):
    """Has the module's children, parameters and buffers, and calls it for its forward pass."""

    module: nn.Module

    def __init__(
        self, module: nn.Module, embedding: str | None = None, stages: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self._guessed = embedding is None
        self._embedding = _last_linear(module) if embedding is None else embedding
        self._stages, self._has_side = stages, False
        self.stage_layers = stages
        self.last_block = stages[-1:]
        object.__setattr__(self, "module", module)  # not a child: its names would get a prefix
        for name in SHARED:
            self.__dict__[name] = module.__dict__[name]
        self._modules = {**module._modules}
        self._version = module._version
        self.training = module.training
        self._entering, self._leaving = _Tap(), tuple(_Tap() for _ in stages)
        _layer(module, self._embedding).register_forward_pre_hook(self._entering.enters)
        for name, tap in zip(stages, self._leaving, strict=True):
            _layer(module, name).register_forward_hook(tap.leaves)
        state = self.state_dict()
        others = [name for name, value in state.items() if not isinstance(value, Tensor)]
        if others or state.keys() != module.state_dict().keys():
            reason = f"{others[0]} is no tensor" if others else "the module changes its names"
            raise ConfigError(f"{self._title} has a state dict that cannot be sent: {reason}")

    def add_side_head(self, head: str) -> None:
        require_head(head)
        if not head.startswith("side"):
            raise ConfigError(
                f'model.head = "{head}": {self._title} keeps its own classifier; '
                f'use "side256", a head beside it, or another width'
            )
        taken = {name.partition(".")[0] for name in self.state_dict()} | {*self._modules}
        if SIDE in taken:
            raise ConfigError(f"{self._title} has a layer called {SIDE} already: no side head")
        layer = _layer(self.module, self._embedding)
        width = getattr(layer, "in_features", None) or getattr(layer, "in_channels", None)
        if not isinstance(width, int):
            raise ConfigError(f"{self._where}: nobody knows its width, which a side head needs")
        self.add_module(SIDE, perceptron(width, int(head.removeprefix("side"))))
        self._has_side = True

    def forward(self, images: Tensor) -> Output:
        taps = (self._entering, *self._leaving)
        try:
            for tap in taps:
                tap.seen = []
            logits = self._logits(self.module(images))
            embedding = self._entering.the_one(self._where)
            stages = tuple(
                tap.the_one(f'{self._title}, "{name}"')
                for name, tap in zip(self._stages, self._leaving, strict=True)
            )
        finally:
            for tap in taps:
                tap.seen = None  # keeps no graph alive, and a copy of the model stays possible
        projection = self.get_submodule(SIDE)(embedding) if self._has_side else None
        return Output(logits, embedding, stages or (embedding,), projection)

    def train(self, mode: bool = True) -> AdaptedModel:
        super().train(mode)
        self.module.train(mode)  # the module may keep some of its layers as they are
        self.settle_frozen()  # last: the line above knows nothing of frozen parts
        return self

    def extra_repr(self) -> str:
        stages = f", stages={list(self._stages)}" if self._stages else ""
        return f'{type(self.module).__name__}, embedding="{self._embedding}"{stages}'

    def _save_to_state_dict(self, *arguments: Any) -> None:
        self.module._save_to_state_dict(*arguments)

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *arguments: Any) -> None:
        if self._has_side:  # which the module does not know
            side = f"{prefix}{SIDE}."
            state = {name: tensor for name, tensor in state.items() if not name.startswith(side)}
        self.module._load_from_state_dict(state, prefix, *arguments)

    @property
    def _title(self) -> str:
        return type(self.module).__name__

    @property
    def _where(self) -> str:
        guess = "its last linear layer, " if self._guessed else ""
        return f'{self._title}, {guess}"{self._embedding}"'

    def _logits(self, returned: object) -> Tensor:
        logits = getattr(returned, "logits", returned)
        if not isinstance(logits, Tensor) or logits.dim() != 2:
            shape = list(logits.shape) if isinstance(logits, Tensor) else type(returned).__name__
            raise ConfigError(f"{self._title} must return logits [batch, classes], not {shape}")
        wide = getattr(_layer(self.module, self._embedding), "out_features", None)
        if self._guessed and wide != logits.shape[1]:
            raise ConfigError(
                f"{self._where}, gives {wide} numbers and not the {logits.shape[1]} class scores: "
                f'name the classifier\'s layer, embedding="..."'
            )
        return logits


class _Tap:
    """Hears what passes a layer while its model listens. A copied model gets copies of its taps,
    because the hooks are methods of them."""

    def __init__(self) -> None:
        self.seen: list[Tensor] | None = None  # None: nobody listens

    def enters(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._hear(inputs[0] if inputs else None)

    def leaves(self, layer: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        self._hear(output)

    def _hear(self, value: object) -> None:
        if self.seen is not None and isinstance(value, Tensor):
            self.seen.append(_pooled(value))

    def the_one(self, where: str) -> Tensor:
        """The tensor that passed, if it was one."""
        count = len(self.seen or ())
        if not self.seen or count > 1:
            times = f"{count} times" if count else "never"
            raise ConfigError(f"{where}: a tensor passed it {times} instead of once")
        if self.seen[0].dim() != 2:
            raise ConfigError(f"{where}: {list(self.seen[0].shape)} is no vector for each image")
        return self.seen[0]


def _pooled(value: Tensor) -> Tensor:
    """A vector for each image; now, because a later layer may work in place."""
    if value.dim() > 3:
        return value.flatten(2).mean(dim=2) if value.dim() > 4 else value.mean(dim=(2, 3))
    return value.mean(dim=1) if value.dim() == 3 else value


def _last_linear(module: nn.Module) -> str:
    layers = module.named_modules()
    names: list[str] = [name for name, layer in layers if isinstance(layer, nn.Linear)]
    if not names:
        raise ConfigError(
            f"{type(module).__name__} has no linear layer: name the classifier's layer, "
            f'embedding="..."'
        )
    return names[-1]


def _layer(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except (AttributeError, TypeError):
        known = ", ".join(child for child, _ in module.named_children()) or "none"
        raise ConfigError(
            f"{type(module).__name__} has no layer {name!r}; its layers: {known}"
        ) from None
