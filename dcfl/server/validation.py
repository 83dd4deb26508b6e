"""One door for every reply: what does not fit is turned away before it enters an average."""

from __future__ import annotations

from dcfl.errors import ProtocolError
from dcfl.messages import Broadcast, ClientUpdate, Tensors


def check_update(update: ClientUpdate, broadcast: Broadcast) -> None:
    """Raise ProtocolError unless the weights have the names, shapes and dtypes that were sent, and
    every number is finite."""
    if update.weights.keys() != broadcast.weights.keys():
        odd = sorted(update.weights.keys() ^ broadcast.weights.keys())
        raise ProtocolError(f"weights with missing or unknown names: {', '.join(odd[:3])}")
    for name, sent in broadcast.weights.items():
        got = update.weights[name]
        if got.shape != sent.shape or got.dtype != sent.dtype:
            raise ProtocolError(
                f"{name} is {got.dtype} {list(got.shape)}, not {sent.dtype} {list(sent.shape)}"
            )
    _check_finite(update.weights)
    _check_finite(update.upload)
    if update.num_examples < 1:
        raise ProtocolError(f"num_examples is {update.num_examples}")


def _check_finite(tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ProtocolError(f"{name} is not finite")
