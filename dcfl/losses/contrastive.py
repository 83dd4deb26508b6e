"""Contrastive losses on a matrix of cosines and boolean masks.

One primitive serves FedSCL, FedProc, DCFL-SW and DCFL-PW: they differ in their masks and weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, ParamSpec

import torch
import torch.nn.functional as F
from torch import Tensor

Parameters = ParamSpec("Parameters")


def _raised(value: Any) -> Any:
    half = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value


def in_full_precision(loss: Callable[Parameters, Tensor]) -> Callable[Parameters, Tensor]:
    """Run a loss outside autocast, with half-precision arguments converted to float32.

    exp(1 / temperature) overflows float16 for temperatures below 0.09, and bfloat16 has steps of
    0.125 near 20. float64 stays float64.
    """

    @wraps(loss)
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Tensor:
        first = args[0] if args else next(iter(kwargs.values()))
        device = first.device.type if isinstance(first, Tensor) else "cpu"
        with torch.autocast(device, enabled=False):
            return loss(
                *(_raised(value) for value in args),
                **{name: _raised(value) for name, value in kwargs.items()},
            )

    return wrapper


Reduction = Literal["sum", "mean"]


@in_full_precision
def cosine_similarity(a: Tensor, b: Tensor) -> Tensor:
    """Cosines between all rows of two matrices.

    Args:
        a: Vectors [B, d]; they are normalised inside.
        b: Vectors [M, d].

    Returns:
        Cosines [B, M]; a zero row gives zeros.

    Example:
        >>> import dcfl, torch
        >>> dcfl.losses.cosine_similarity(torch.eye(2), torch.tensor([[3.0, 0.0]])).tolist()
        [[1.0], [0.0]]
    """
    return _unit(a) @ _unit(b).T


def _unit(rows: Tensor) -> Tensor:
    # The gradient of a nearly dead row grows with 1 / norm; in float32 such a norm is round-off.
    return F.normalize(rows, dim=1, eps=1e-12 if rows.dtype == torch.float64 else 1e-6)


def _log_sum_exp(logits: Tensor, mask: Tensor) -> Tensor:
    """log sum exp(logits) over each row's mask: [B, M] -> [B]; 0 where the mask is empty."""
    occupied = mask.any(dim=1)
    # A row of nothing but -inf has NaN gradients, which a mask cannot undo: give it zeros.
    masked = logits.masked_fill(~mask, -float("inf")).masked_fill(~occupied[:, None], 0.0)
    return masked.logsumexp(dim=1).masked_fill(~occupied, 0.0)


@in_full_precision
def decoupled_contrastive(
    similarity: Tensor,
    positives: Tensor,
    negatives: Tensor,
    temperature: float = 0.5,
    align: float = 0.9,
    uniform: float = 0.1,
    reduction: Reduction = "sum",
) -> Tensor:
    r"""DCFL, Eq. 10: attraction to the positives and repulsion from the negatives, weighted apart.

        l_i = -align * sum_{p in P_i} s_ip / tau
              + uniform * |P_i| * log sum_{n in N_i} exp(s_in / tau)

    Args:
        similarity: Cosines [B, M] between anchors and candidates.
        positives: Boolean mask [B, M] of P_i.
        negatives: Boolean mask [B, M] of N_i. An anchor without negatives has no repulsion.
        temperature: tau.
        align: The weight of the attraction.
        uniform: The weight of the repulsion.
        reduction: Over P_i: "sum" as printed, or "mean", which divides by |P_i|.

    Returns:
        The mean over all anchors. One without positives gives 0 and still counts.

    Example:
        >>> import dcfl, torch
        >>> z, y = torch.eye(3), torch.tensor([0, 0, 1])
        >>> same = y[:, None] == y
        >>> cosines = dcfl.losses.cosine_similarity(z, z)
        >>> positives = same & ~torch.eye(3, dtype=torch.bool)
        >>> round(dcfl.losses.decoupled_contrastive(cosines, positives, ~same).item(), 4)
        0.0
    """
    if reduction not in ("sum", "mean"):
        raise ValueError(f"reduction must be 'sum' or 'mean', not {reduction!r}")
    logits = similarity / temperature
    attraction = logits.masked_fill(~positives, 0.0).sum(dim=1)
    repulsion = _log_sum_exp(logits, negatives)
    # In the dtype of the logits: a float times an int64 tensor would fall back to float32.
    count = positives.sum(dim=1).to(logits.dtype)
    anchors = uniform * count * repulsion - align * attraction
    if reduction == "mean":
        anchors = anchors / count.clamp(min=1)
    return anchors.sum() / max(len(anchors), 1)


def supervised_contrastive(
    similarity: Tensor,
    positives: Tensor,
    candidates: Tensor,
    temperature: float = 0.5,
    reduction: Reduction = "mean",
) -> Tensor:
    """SupCon, Eq. 3: the decoupled loss with both weights 1. Over class prototypes it is FedProc's.

    Args:
        similarity: Cosines [B, M] between anchors and candidates.
        positives: Boolean mask [B, M] of the positives.
        candidates: Boolean mask [B, M] of all that stands in the denominator.
        temperature: tau.
        reduction: Over the positives, "mean" or "sum".

    Returns:
        The mean over all anchors. One without positives gives 0 and still counts.

    Example:
        >>> import dcfl, torch
        >>> cosines = torch.tensor([[1.0, 0.0]])  # one anchor, two class prototypes
        >>> own, both = torch.tensor([[True, False]]), torch.ones(1, 2, dtype=torch.bool)
        >>> round(dcfl.losses.supervised_contrastive(cosines, own, both, temperature=1.0).item(), 4)
        0.3133
    """
    return decoupled_contrastive(
        similarity, positives, candidates, temperature, align=1.0, uniform=1.0, reduction=reduction
    )


@in_full_precision
def model_contrastive(
    local: Tensor, global_: Tensor, previous: Tensor | None, temperature: float = 0.5
) -> Tensor:
    """MOON: local features near the global model's, away from the previous local model's.

        l_i = -log( exp(s_i / tau) / (exp(s_i / tau) + exp(r_i / tau)) )

    s_i is the cosine with the global model's feature, r_i with the previous local model's.

    Args:
        local: Features [B, d] of the model in training.
        global_: Features [B, d] of the global model.
        previous: Features [B, d] of the client's last model; None if there is none.
        temperature: tau.

    Returns:
        The mean over the batch; 0 without a previous model.

    Example:
        >>> import dcfl, torch
        >>> z = torch.eye(2)
        >>> round(dcfl.losses.model_contrastive(z, z, -z, temperature=1.0).item(), 4)
        0.1269
    """
    if previous is None:
        return local.sum() * 0.0
    anchor = _unit(local)
    gap = (anchor * (_unit(previous) - _unit(global_))).sum(dim=1) / temperature
    # log(1 + exp(gap)); torch's softplus drops the 1 above 20, which float64 can tell
    return torch.logaddexp(gap, torch.zeros_like(gap)).sum() / max(len(local), 1)
