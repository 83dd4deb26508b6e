"""Combines the replies of a round into a direction for the parameters and new buffers.

A fold takes the replies one by one, in client order. The folds in this file need the memory of one
float64 model, whatever the size of the cohort; the robust ones keep all replies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from torch import Tensor

from dcfl import tensors as named
from dcfl.local_training import LocalTraining
from dcfl.messages import ClientUpdate, Tensors
from dcfl.server import robust
from dcfl.server.robust import Defence, Folded, Names

Aggregation = Literal[
    "uniform",
    "samples",
    "fednova",
    "norm-clipping",
    "median",
    "trimmed-mean",
    "krum",
    "multi-krum",
]


class Fold(Protocol):
    def add(self, update: ClientUpdate) -> None: ...

    def finish(self, sent: Tensors) -> Folded:
        """`sent`: the weights the clients started from. Do not call `add` afterwards."""


class Mean:
    """The weighted mean of the clients' weights; the direction is its difference from `sent`."""

    def __init__(self, trainable: Names, share: Callable[[ClientUpdate], float]) -> None:
        self._trainable, self._share = trainable, share
        self._mean = named.RunningMean()

    def add(self, update: ClientUpdate) -> None:
        self._mean.add(update.weights, self._share(update))

    def finish(self, sent: Tensors) -> Folded:
        parameters, buffers = named.split(self._mean.mean(), self._trainable)
        return Folded(_changes(parameters, sent), buffers)


class FedNova:
    """Averages the clients' changes per effective step, then takes the average number of steps.

        direction = (sum_i p_i a_i) * sum_i p_i (w_i - sent) / a_i,   p_i = n_i / sum_j n_j

    A client that takes more steps thus does not pull harder. Wang et al., "Tackling the Objective
    Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020. Buffers are
    averaged with weights p_i.
    """

    def __init__(self, trainable: Names, training: LocalTraining) -> None:
        self._trainable, self._training = trainable, training
        self._parameters = named.RunningMean()  # with weights n_i / a_i
        self._buffers = named.RunningMean()  # with weights n_i
        self._examples = self._rates = self._steps = 0.0  # sums of n_i, n_i / a_i and n_i a_i

    def add(self, update: ClientUpdate) -> None:
        steps = self._training.effective_steps(update.num_steps)
        examples = float(update.num_examples)
        rate = examples / (steps or 1.0)  # without a step there is no change to divide
        parameters, buffers = named.split(update.weights, self._trainable)
        self._parameters.add(parameters, rate)
        self._buffers.add(buffers, examples)
        self._examples += examples
        self._rates += rate
        self._steps += examples * steps

    def finish(self, sent: Tensors) -> Folded:
        average_steps = self._steps / self._examples
        # RunningMean normalises the weights n_i / a_i to sum to one: undo that.
        scale = average_steps * self._rates / self._examples
        change = _changes(self._parameters.mean(), sent)
        return Folded(
            {name: tensor.mul_(scale) for name, tensor in change.items()}, self._buffers.mean()
        )


def _changes(means: dict[str, Tensor], sent: Tensors) -> dict[str, Tensor]:
    """The changes, in the memory of the means: a second float64 model would be the largest object
    on the server."""
    return {name: mean.sub_(sent[name]) for name, mean in means.items()}


ROBUST: dict[Aggregation, type[robust.KeepAll]] = {
    "norm-clipping": robust.NormClipping,
    "median": robust.Median,
    "trimmed-mean": robust.TrimmedMean,
    "krum": robust.Krum,
    "multi-krum": robust.MultiKrum,
}


def fold_for(
    aggregation: Aggregation, trainable: Names, training: LocalTraining, defence: Defence
) -> Fold:
    if aggregation in ROBUST:
        return ROBUST[aggregation](trainable, defence)
    if aggregation == "fednova":
        return FedNova(trainable, training)
    by_size = aggregation == "samples"  # Eq. 1; otherwise Algorithm 1, the plain mean
    return Mean(trainable, lambda update: update.num_examples if by_size else 1.0)
