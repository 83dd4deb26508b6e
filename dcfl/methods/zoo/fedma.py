"""FedMA: neurons are matched before they are averaged.

Wang et al., "Federated Learning with Matched Averaging", ICLR 2020. The order of a layer's neurons
means nothing, and clients that begin with weights of their own end with orders of their own. For
each layer but the last, with the rows w_k of client k (all that belongs to a neuron):

    order_k = argmax over orders of <w_k in that order, the sum of the other clients' rows>
    w <- mean over k of w_k in order_k;  the next layer's inputs take the same order

With a fixed number of neurons the paper's Bayesian costs lead to this assignment. The paper lets
layers grow and trains the later ones again after each is matched; here the network keeps its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from dcfl.client import Client
from dcfl.errors import ConfigError
from dcfl.messages import Tensors
from dcfl.methods.method import Method, Objective, ServerStep
from dcfl.settings import key
from dcfl.system.transfers import on_device, read_numbers

REFUSED = (
    "fedma cannot match the neurons of this network: it takes layers in a row, without shortcuts, "
    'with model.norm = "batch" or none, such as cnn, lenet and mlp'
)


class Neurons(NamedTuple):
    """Of one layer."""

    weight: str  # the name of what enters them: [neurons, inputs, ...]
    homes: set[str]  # the modules with these weights and with their normalisation

    def names(self, tensors: Tensors) -> list[str]:
        """What has a row for each of them."""
        return [n for n, t in tensors.items() if n.rpartition(".")[0] in self.homes and t.ndim]


@dataclass(frozen=True)
class FedMA(Method):
    """Neurons are matched before they are averaged."""

    own_start: bool = True  # clients begin the first round with weights of their own
    sweeps: int = key(5, ge=0, le=100)  # how often each client is matched anew with all others

    equation: ClassVar = "w <- mean_k of w_k in order_k,  order_k = argmax <w_k in order, others>"
    neutral: ClassVar = None
    keeps_replies: ClassVar = True
    any_optimizer: ClassVar = False
    any_aggregation: ClassVar = False

    def objective(self, client: Client) -> Objective:
        if client.round == 1:
            chain = layers_of({name: live.detach() for name, live in client.federated()})
            require_matchable(client, chain)
            with torch.no_grad():
                for layer in chain[:-1] if self.own_start else ():  # the same numbers, shuffled
                    live = client.model.get_parameter(layer.weight)
                    order = on_device(torch.randperm(live.numel()), live.device)
                    live.copy_(live.flatten()[order].view_as(live))
        return super().objective(client)

    def server_step(self, step: ServerStep) -> ServerStep:
        replies = [dict(update.weights) for update in step.replies]
        for layer, following in pairwise(layers_of(step.weights)):
            names = layer.names(step.weights)
            rows = [
                torch.cat([r[n].double().reshape(len(r[n]), -1) for n in names], dim=1)
                for r in replies
            ]
            for reply, order in zip(replies, self.matched(rows), strict=True):
                reorder(reply, layer, following, order)
        means = {n: torch.stack([r[n].double() for r in replies]).mean(dim=0) for n in replies[0]}
        direction = {name: means[name] - sent for name, sent in step.weights.items()}
        buffers = {n: means[n] if t.is_floating_point() else t for n, t in step.buffers.items()}
        return replace(step, direction=direction, buffers=buffers)

    def matched(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """The order of each client's neurons: one client after the other, then each with all."""
        clients, total = range(len(rows)), rows[0]
        orders = {0: torch.arange(len(total))}
        for k in (*clients[1:], *list(clients) * (self.sweeps if len(rows) > 1 else 0)):
            others = total - rows[k][orders[k]] if k in orders else total
            orders[k] = assigned(rows[k], others)
            total = others + rows[k][orders[k]]
        return [orders[k] for k in clients]


def assigned(rows: Tensor, others: Tensor) -> Tensor:
    import scipy.optimize  # type: ignore[import-untyped]  # slow

    return torch.from_numpy(scipy.optimize.linear_sum_assignment(others @ rows.T, maximize=True)[1])


def layers_of(weights: Tensors) -> list[Neurons]:
    """The layers of a network in which each hands its outputs to the next, and to no other."""
    wide = [name for name, tensor in weights.items() if tensor.ndim > 1]
    home = {name: name.rpartition(".")[0] for name in weights}
    layers = [Neurons(name, {home[name]}) for name in wide]
    norms = [n for n, t in weights.items() if t.ndim == 1 and n.endswith("weight")]
    fit = len(norms) <= len(wide)
    for layer, norm in zip(layers, norms, strict=False):
        layer.homes.add(home[norm])
        fit = fit and len(weights[norm]) == len(weights[layer.weight])
    for before, after in pairwise(wide):
        inputs, outputs = weights[after].shape[1], len(weights[before])
        flat = weights[before].ndim == 4 and weights[after].ndim == 2
        fit = fit and (inputs == outputs or (flat and inputs % outputs == 0))
    known = {one for layer in layers for one in layer.homes}
    if not fit or not known >= {*home.values()}:
        raise ConfigError(REFUSED)
    return layers


def reorder(tensors: dict[str, Tensor], layer: Neurons, following: Neurons, order: Tensor) -> None:
    """Put the neurons of a layer into another order; the network computes the same."""
    for name in layer.names(tensors):
        tensors[name] = tensors[name][order]
    entering = tensors[following.weight]
    # Where maps become a vector, the pixels of a channel stay together.
    blocks = entering.reshape(len(entering), len(order), -1)[:, order]
    tensors[following.weight] = blocks.reshape(entering.shape)


@torch.no_grad()
def require_matchable(client: Client, chain: Sequence[Neurons]) -> None:
    """Refuse a network that computes something else once its neurons are in another order."""
    images = next(iter(client.data.clean_batches(client.model))).images
    shuffled = dict(client.received)
    for layer, following in pairwise(chain):
        neurons, device = len(shuffled[layer.weight]), images.device
        order = torch.arange(neurons, device=device).roll(neurons // 3)
        reorder(shuffled, layer, following, order)
    before, after = (client.frozen(w)(images).logits for w in (client.received, shuffled))
    apart = ~torch.isclose(before, after, rtol=1e-3, atol=1e-3)
    if any(read_numbers([apart.any()])):
        raise ConfigError(REFUSED)
