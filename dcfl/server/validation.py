"""Checks every reply, to reject bad ones before they enter an average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dcfl.errors import ProtocolError
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods.method import Method

LARGEST_COUNT = 2**40  # of examples, which enter averages
LARGEST_WEIGHT = 1e15  # beyond any real training; float32 would overflow in the next layer
LARGEST_METRIC = 1e38
MOST_METRICS, LONGEST_NAME = 20, 100
PLAIN = {  # dtypes that can be summed and compared
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
}


@dataclass(frozen=True)
class Schema:
    """The expected form of replies."""

    method: Method
    training: LocalTraining
    upload: Tensors | None = None  # an example; None accepts any names and shapes


def check_update(update: ClientUpdate, broadcast: Broadcast, schema: Schema) -> None:
    """Raise ProtocolError unless names, shapes and dtypes are as expected, every number is finite
    and plausible, and the method accepts its upload."""
    check_like(update.weights, broadcast.weights, "weights")
    if schema.upload is not None:
        check_like(update.upload, schema.upload, "upload")
    for tensors in (update.weights, update.upload):
        for name, tensor in tensors.items():
            check_values(name, tensor)
    if not 1 <= update.num_examples < LARGEST_COUNT:
        raise ProtocolError(f"num_examples is {update.num_examples}")
    steps = schema.training.steps_on(update.num_examples)
    if update.num_steps != steps:  # FedNova divides by them: fewer would pull as much as more
        raise ProtocolError(f"num_steps is {update.num_steps}, where its examples make {steps}")
    _check_metrics(update.metrics)
    schema.method.check_upload(update, schema.training)


def check_like(tensors: Tensors, example: Tensors, what: str) -> None:
    """Raise ProtocolError unless names, shapes and dtypes are those of the example."""
    if tensors.keys() != example.keys():
        odd = sorted(tensors.keys() ^ example.keys())
        raise ProtocolError(f"{what} with missing or unknown names: {', '.join(odd[:3])}")
    for name, wanted in example.items():
        got = tensors[name]
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            raise ProtocolError(
                f"{name} is {got.dtype} {list(got.shape)}, not {wanted.dtype} {list(wanted.shape)}"
            )


def check_values(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in PLAIN:
        raise ProtocolError(f"{name} is {tensor.dtype}")
    if tensor.is_floating_point() and tensor.numel():
        # Kernels in the order of their memory: five times as quick. Written so that NaN fails too.
        ordered = tensor.permute(0, 2, 3, 1).reshape(-1) if tensor.dim() == 4 else tensor
        low, high = (float(end) for end in torch.aminmax(ordered))
        if not (low >= -LARGEST_WEIGHT and high <= LARGEST_WEIGHT):
            large = "too large" if abs(low) < torch.inf and abs(high) < torch.inf else "not finite"
            raise ProtocolError(f"{name} is {large}")
        if low < 0 and name.endswith("running_var"):  # the model takes its square root
            raise ProtocolError(f"{name} is negative")


def _check_metrics(metrics: Mapping[str, float]) -> None:
    if len(metrics) > MOST_METRICS:
        raise ProtocolError(f"{len(metrics)} metrics are too many")
    for name, value in metrics.items():
        if len(name) > LONGEST_NAME or not abs(value) <= LARGEST_METRIC:
            raise ProtocolError(f"the metric {name} is not a number within reason")
