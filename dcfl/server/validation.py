"""One door for every reply: what does not fit is turned away before it enters an average."""

from __future__ import annotations

from dcfl.errors import ProtocolError
from dcfl.messages import Broadcast, ClientUpdate
from dcfl.weights import not_finite

LIMIT = 2**40  # of counts that enter an average


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
    for tensors in (update.weights, update.upload):
        if spoilt := not_finite(tensors):
            raise ProtocolError(f"{spoilt} is not finite")
    if not 1 <= update.num_examples < LIMIT:
        raise ProtocolError(f"num_examples is {update.num_examples}")
    if not 0 <= update.num_steps < LIMIT:
        raise ProtocolError(f"num_steps is {update.num_steps}")
