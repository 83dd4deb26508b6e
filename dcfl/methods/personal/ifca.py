"""IFCA: several shared models; each client trains the one that fits its images best.

Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning",
NeurIPS 2020; the variant that averages models. In each round a client receives w_1 .. w_k, and

    j = argmin_j L_CE(w_j; all its images),  trains w_j,  and says which j it was
    w_j <- the mean of the models of the clients that chose j, weighed as server.aggregation says;
           without any it stays

What the client trained is its own model. The server's weights are the mean over all clients, which
nobody begins with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Client
from dcfl.errors import ProtocolError
from dcfl.local_training import LocalTraining
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods.method import Cost, Method, ServerStep
from dcfl.settings import key
from dcfl.system.transfers import on_device
from dcfl.tensors import RunningMean, apart, cast_like, together


@dataclass(frozen=True)
class IFCA(Method):
    """Several shared models; each client trains the one that fits its images best."""

    clusters: int = key(2, ge=1, le=100)  # how many models; the paper's k

    equation: ClassVar = "j = argmin_j L_CE(w_j),  w_j <- mean of the clients that chose j"
    cost: ClassVar = Cost(passes=2, copies=2, up="8", down="2 * weights", kept="weights")
    neutral: ClassVar = None
    keeps_model: ClassVar = True
    any_aggregation: ClassVar = False
    any_optimizer: ClassVar = False  # which would move weights that nobody begins with
    keeps_replies: ClassVar = True

    def start(self, client: Client) -> Tensors:
        sent = {name: client.received[name] for name, _ in client.trainable()}
        models = apart(client.shared, *self._names()) if client.shared else []
        if not models:  # all clients make the same ones
            models = [begun(sent, cluster) for cluster in range(self.clusters)]
        losses = torch.stack([self._loss(client, model) for model in models])
        client.tally["cluster"] = best = losses.argmin()
        # Picked where it is: whoever reads its number waits for the device.
        return {
            name: torch.stack([model[name] for model in models]).index_select(0, best)[0]
            for name in models[0]
        }

    @torch.no_grad()
    def _loss(self, client: Client, weights: Tensors) -> Tensor:
        model = client.frozen({**client.received, **weights})
        return torch.stack(
            [
                F.cross_entropy(model(batch.images).logits, batch.labels, reduction="sum")
                for batch in client.data.clean_batches(model)
            ]
        ).sum()

    def upload(self, client: Client) -> Tensors:
        return client.tally

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors:
        return {"cluster": torch.empty((), dtype=torch.int64, device="meta")}

    def check_upload(self, update: ClientUpdate, training: LocalTraining) -> None:
        if not 0 <= int(update.upload["cluster"]) < self.clusters:
            raise ProtocolError("a cluster that is not there")

    def server_step(self, step: ServerStep) -> ServerStep:
        rest, like = {**step.weights, **step.buffers}, step.replies[0].weights
        before = apart(step.shared, *self._names()) if step.shared else []
        models: dict[str, Tensors] = {}
        for number, name in enumerate(self._names()):
            mean = RunningMean()
            for reply, share in zip(step.replies, step.shares, strict=True):
                if int(reply.upload["cluster"]) == number:
                    mean.add(reply.weights, share)
            if means := mean.mean():
                models[name] = cast_like(means, like)
            elif before:
                models[name] = before[number]
            else:
                models[name] = cast_like({**rest, **begun(step.weights, number)}, like)
        return replace(step, shared=together(**models))

    def _names(self) -> list[str]:
        return [str(number) for number in range(self.clusters)]


def begun(weights: Tensors, cluster: int) -> dict[str, Tensor]:
    """A cluster's first model: the initial one, from the second on with the numbers of each tensor
    in another order, which is as good a draw."""
    generator = torch.Generator().manual_seed(cluster)

    def shuffled(tensor: Tensor) -> Tensor:
        order = on_device(torch.randperm(tensor.numel(), generator=generator), tensor.device)
        return tensor.flatten()[order].view(tensor.shape)

    return {n: shuffled(one) if cluster else one for n, one in weights.items()}
