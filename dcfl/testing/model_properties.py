"""The properties that every network has, one function each: what `dcfl check` asks of a model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from torch import Tensor

from dcfl.client import evaluating
from dcfl.data import Augmentation, ClientData, Images
from dcfl.data.augment import Preparation
from dcfl.local_training import LocalTraining, train_client
from dcfl.messages import Broadcast
from dcfl.methods import METHODS
from dcfl.models import FeatureModel, ModelSettings, Output, build_model
from dcfl.system.wording import some
from dcfl.tensors import as_rows, from_rows, sha256, snapshot
from dcfl.testing.toys import Broken

TOLERANCE = 1e-4  # of the largest number: kernels for the two layouts round differently


@dataclass(frozen=True)
class Network:
    settings: ModelSettings
    channels: int
    size: int
    classes: int

    def build(self, seed: int = 0) -> FeatureModel:
        model = build_model(self.settings, self.channels, self.size, self.classes, seed)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def images(self, count: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(count, self.channels, self.size, self.size, generator=generator)
        return images.contiguous(memory_format=torch.channels_last)

    def labels(self, count: int) -> Tensor:
        return torch.arange(count) % self.classes


Check = Callable[[Network], str | None]  # returns a remark, if any, where it holds


def _observed(model: FeatureModel, images: Tensor) -> Output:
    with torch.no_grad(), evaluating(model):
        return model(images)


def _traced(images: Tensor) -> Tensor:
    """The images with a gradient: even an embedding without weights behind it is in the graph."""
    return images.requires_grad_().clone()


def _stepped(network: Network, model: FeatureModel, count: int = 6) -> Output:
    """One forward and backward pass in training mode, as training does it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        output = model.train()(_traced(network.images(count)))
        loss = F.cross_entropy(output.logits, network.labels(count))
        if output.projection is not None:
            loss = loss + output.projection.square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
    return output


def gradients_of(model: FeatureModel) -> dict[str, Tensor]:
    return {name: live.grad for name, live in model.named_parameters() if live.grad is not None}


def gives_what_methods_need(network: Network) -> str:
    model = network.build()
    for count in (1, 2, 5):
        output = _observed(model, network.images(count))
        if not isinstance(output, Output):
            raise Broken(f"it returns {type(output).__name__}, not dcfl.Output")
        if output.logits.shape != (count, network.classes):
            raise Broken(
                f"logits {[*output.logits.shape]} for {count} images of {network.classes} classes"
            )
        for name, part in _parts(output).items():
            if part.dim() != 2 or len(part) != count:
                raise Broken(f"{name} is {[*part.shape]}: not a vector for each of {count} images")
            if not part.isfinite().all():
                raise Broken(f"{name} is not finite")
    if not output.stages:
        raise Broken("there are no stages: give the embedding, if nothing else")
    stages = ", ".join(str(stage.shape[1]) for stage in output.stages)
    return f"{network.classes} logits, an embedding of {output.embedding.shape[1]}, stages {stages}"


def _parts(output: Output) -> dict[str, Tensor]:
    stages = {f"stage {level}": stage for level, stage in enumerate(output.stages)}
    side = {} if output.projection is None else {"projection": output.projection}
    return {"logits": output.logits, "embedding": output.embedding, **stages, **side}


def repeatable(network: Network) -> None:
    one, other = network.build(), network.build()
    if sha256(one.state_dict()) != sha256(other.state_dict()):
        raise Broken("built twice with one seed, its weights differ: draw them from torch alone")
    for model in (one, other):
        _stepped(network, model)
    if sha256(gradients_of(one)) != sha256(gradients_of(other)):
        raise Broken("two equal steps gave different gradients: something random is not torch's")


def gradients_reach_every_parameter(network: Network) -> str | None:
    model = network.build()
    output = _stepped(network, model)
    missed = [
        name for name, live in model.named_parameters() if live.requires_grad and live.grad is None
    ]
    if missed:
        raise Broken(f"{some(missed, 1, 300)} got no gradient: the logits do not depend on it")
    if not output.embedding.requires_grad:
        raise Broken("the embedding is cut off from the graph: terms on it would train nothing")
    still = sum(not live.requires_grad for live in model.parameters())
    return f"{still} parameters do not want any" if still else None


def logits_come_from_the_embedding(network: Network) -> None:
    output = network.build().train()(_traced(network.images(6)))
    reached = torch.autograd.grad(output.logits.sum(), output.embedding, allow_unused=True)
    if reached[0] is None:
        raise Broken("the logits do not depend on the embedding: it is not the classifier's input")


def batch_norm_moves_in_training_alone(network: Network) -> str | None:
    model = network.build()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    _observed(model, network.images(4))
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise Broken(f"{name} changed in evaluation mode")
    _stepped(network, model)
    for name, buffer in model.named_buffers():
        if name.endswith("num_batches_tracked") and int(buffer - before[name]) != 1:
            steps = int(buffer - before[name])
            raise Broken(f"{name} counted {steps} batches in one step: its layer ran so often")
    alone, together = network.images(1), network.images(4)
    first, among = _observed(model, alone).logits, _observed(model, together).logits[:1]
    if not torch.allclose(first, among, rtol=1e-3, atol=1e-4 * float(among.abs().max())):
        return "an image's output depends on the rest of its batch, in evaluation too"
    return None


def the_memory_layout_changes_nothing(network: Network) -> None:
    model, images = network.build(), network.images(4)
    last = _observed(model, images)
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    first = _observed(model, images.contiguous())
    for (name, one), other in zip(_parts(first).items(), _parts(last).values(), strict=True):
        if one.shape != other.shape or (one - other).abs().max() > TOLERANCE * one.abs().max():
            raise Broken(f"{name} differs between channels-last and row-major images")


def state_survives_being_sent(network: Network) -> None:
    """Sent as messages, memories and checkpoints are, and loaded into another model."""
    model, other = network.build(), network.build(seed=1)
    _stepped(network, model)
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise Broken(f"{name} of its state dict is no tensor")
    other.load_state_dict(from_rows(load(save(as_rows(state)))))
    images = network.images(4)
    if not torch.equal(_observed(model, images).logits, _observed(other, images).logits):
        raise Broken("loaded into another copy, its weights give other logits: some are missing")
    names = {name for name, _ in model.named_parameters()}
    if not names <= state.keys():
        raise Broken(f"{min(names - state.keys())} is trained and not in the state dict")


def copies_are_independent(network: Network) -> None:
    model, images = network.build(), network.images(4)
    before = _observed(model, images)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5).add_(0.1)
    after = _observed(model, images)
    if not all(map(torch.equal, _parts(before).values(), _parts(after).values())):
        raise Broken("a change of its copy changed it: they share a tensor")


def trains_with_every_kind_of_method(network: Network) -> None:
    """One client trains a round without contrast, with prototypes, stages, an earlier model."""
    shape, generator = (12, network.size, network.size, network.channels), torch.Generator()
    pixels = torch.randint(0, 256, shape, generator=generator.manual_seed(0), dtype=torch.uint8)
    grey = (0.5,) * network.channels
    preparation = Preparation(grey, (0.25,) * network.channels, Augmentation(flip=True))
    data = ClientData(Images(pixels, network.labels(12)), network.classes, preparation)
    training = LocalTraining(epochs=1, batch_size=6)
    for name in ("fedavg", "dcfl-pw", "fedrcl", "moon"):
        model = network.build()
        broadcast = Broadcast(1, snapshot(model), {})
        update, _ = train_client(METHODS[name](), model, data, broadcast, {}, training, 0, seed=0)
        trained = [name for name, live in model.named_parameters() if live.requires_grad]
        if all(torch.equal(update.weights[key], broadcast.weights[key]) for key in trained):
            raise Broken(f"a round of {name} did not change it")


MODEL_PROPERTIES: dict[str, Check] = {
    "gives what methods need": gives_what_methods_need,
    "gives the same bits again": repeatable,
    "gradients reach every parameter": gradients_reach_every_parameter,
    "the logits come from the embedding": logits_come_from_the_embedding,
    "BatchNorm moves in training alone": batch_norm_moves_in_training_alone,
    "the memory layout changes nothing": the_memory_layout_changes_nothing,
    "its state survives being sent": state_survives_being_sent,
    "copies are independent": copies_are_independent,
    "trains with every kind of method": trains_with_every_kind_of_method,
}
