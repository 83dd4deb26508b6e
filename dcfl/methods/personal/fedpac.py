"""FedPAC: features are drawn to shared prototypes, and each client gets its own mix of classifiers.

Xu, Tong and Huang, "Personalized Federated Learning with Feature Alignment and Classifier
Collaboration", ICLR 2023. A round's first epochs train the classifier alone by L_CE, the others all
else by FedProto's loss. With the features z as a client received them, of its n_i images:

    h_i[g] = the sum of z over the images of class g, / n_i
    v_i    = (mean |z|^2 - |h_i|^2) / n_i
    a_i    = argmin_a  sum_j a_j^2 v_j + |sum_j a_j (h_i - h_j)|^2        a_j >= 0, sum_j a_j = 1

The server averages the features. The next classifier of client i is sum_j a_ij theta_j, over the
classifiers of this round's clients; the server keeps it until i takes part again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client, evaluating
from dcfl.errors import ConfigError, ProtocolError
from dcfl.local_training import LocalTraining
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods.method import Cost, Objective, ServerStep
from dcfl.methods.personal.fedproto import FedProto
from dcfl.methods.personal.fedrep import take_turns
from dcfl.models.parts import within
from dcfl.settings import key
from dcfl.tensors import RunningMean, cast_like

PART = "classifier"
NEGLIGIBLE = 1e-3  # a smaller share in a client's classifier is none


@dataclass(frozen=True)
class FedPAC(FedProto):
    """Features are drawn to shared prototypes; each client gets its own mix of classifiers."""

    classifier_epochs: int = key(1, ge=1)  # a round's first epochs train the classifier alone
    prototype_model: Literal["trained", "received", "running"] = "trained"
    prototype_weights: Literal["counts", "uniform"] = "counts"

    equation: ClassVar = "L = L_CE + mu * mean (z_i - c_{y_i})^2,  theta_i <- sum_j a_ij theta_j"
    cost: ClassVar = Cost(
        passes=2,
        up="8 * classes * d + 8 * classes + 4",
        down="8 * classes * d + 5 * classes",
        kept="weights",
    )
    any_optimizer: ClassVar = True
    any_aggregation: ClassVar = False
    keeps_replies: ClassVar = True

    @torch.no_grad()
    def start(self, client: Client) -> Tensors:
        names = [name for name, _ in client.trainable() if within(name, (PART,))]
        if f"{PART}.weight" not in names:
            raise ConfigError(f"{self.name} needs a trained layer `{PART}`")
        images, sums, squares = len(client.data), [], []
        with evaluating(client.model):
            for batch in client.data.clean_batches(client.model):
                z = client.model(batch.images).embedding.double()
                sums.append(F.one_hot(batch.labels, client.data.classes).double().T @ z)
                squares.append(z.square().sum())
        means = torch.stack(sums).sum(dim=0) / images
        spread = torch.stack(squares).sum() / images - means.square().sum()
        client.tally["means"] = means.float()
        client.tally["variance"] = (spread / images).clamp(min=0).float()
        return {name: client.shared[name] for name in names if name in client.shared}

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        loss = super().gradient(client, objective, batch)
        take_turns(client, batch, (PART,), self.classifier_epochs, "method.classifier_epochs")
        return loss

    def _withhold(self, client: Client) -> None:
        super()._withhold(client)
        absent = client.tally["counts"] == 0
        client.tally["means"] = client.tally["means"].masked_fill(absent[:, None], 0)

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors:
        seen = parameters[f"{PART}.weight"].shape[1]  # by the classifier
        means, variance = (torch.empty(shape, device="meta") for shape in ((classes, seen), ()))
        told = super().upload_like(parameters, classes, width)
        return {**told, "means": means, "variance": variance}

    def check_upload(self, update: ClientUpdate, training: LocalTraining) -> None:
        super().check_upload(update, training)
        if update.upload["variance"] < 0:
            raise ProtocolError("a variance below 0")

    def upload_sensitivity(self) -> None:
        """The variance has no bound."""

    def merge(self, shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
        return {**shared, **super().merge(shared, uploads, population)}  # classifiers too

    def server_step(self, step: ServerStep) -> ServerStep:
        means = torch.stack([reply.upload["means"].double().flatten() for reply in step.replies])
        variances = torch.stack([reply.upload["variance"].double() for reply in step.replies])
        heads = [
            {name: tensor for name, tensor in reply.weights.items() if within(name, (PART,))}
            for reply in step.replies
        ]
        shared = dict(step.shared)
        for reply, mix in zip(step.replies, mixes(means, variances).tolist(), strict=True):
            own = RunningMean()
            for head, share in zip(heads, mix, strict=True):
                own.add(head, share)
            for name, tensor in cast_like(own.mean(), heads[0]).items():
                shared[f"{reply.client}/{name}"] = tensor
        return replace(step, shared=shared)

    def shared_for(self, shared: Tensors, client: int) -> Tensors:
        prefix = f"{client}/"
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in shared.items()
            if "/" not in name or name.startswith(prefix)
        }


def mixes(means: Tensor, variances: Tensor) -> Tensor:
    """The shares a_ij of all classifiers in each client's next one, a row per client; from the
    means h_i as rows, and the v_i."""
    products = means @ means.T
    rows = []
    for own in range(len(means)):
        across = products[own]
        far = products[own, own] - across[:, None] - across[None, :] + products
        shares = smallest(variances.diag() + far)
        shares = shares.where(shares > NEGLIGIBLE, 0.0)
        rows.append(shares / shares.sum())
    return torch.stack(rows)


def smallest(matrix: Tensor) -> Tensor:
    """The shares a, none below 0 and with the sum 1, for which a^T M a is smallest; M has no
    negative eigenvalues.

    |a|_M^2 + (sum a - 1)^2 without the sum is smallest at a multiple of it, by least squares.
    """
    import scipy.optimize  # type: ignore[import-untyped]  # slow

    scale = matrix.diagonal().mean().clamp(min=torch.finfo(matrix.dtype).tiny)
    values, vectors = torch.linalg.eigh(matrix / scale)
    root = values.clamp(min=0).sqrt()[:, None] * vectors.T
    rows = torch.cat([root, torch.ones(1, len(matrix), dtype=matrix.dtype)])
    goal = torch.zeros(len(rows), dtype=matrix.dtype)
    goal[-1] = 1
    found = scipy.optimize.nnls(rows.numpy(), goal.numpy(), maxiter=100 * len(matrix))[0]
    return torch.from_numpy(found / found.sum())
