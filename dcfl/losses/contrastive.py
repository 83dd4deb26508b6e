"""Contrastive losses on a matrix of cosines and boolean masks.

One primitive serves FedSCL, FedProc, DCFL-SW and DCFL-PW: they differ in their masks and weights.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.losses.precision import in_full_precision

Reduction = Literal["sum", "mean"]


@in_full_precision
def cosine_similarity(a: Tensor, b: Tensor) -> Tensor:
    """Cosines between the rows of `a` [B, d] and of `b` [M, d]: [B, M]. A zero row gives zeros."""
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

    `similarity` [B, M] holds cosines, the masks [B, M] say which candidates are in P_i and N_i.
    `reduction` is over P_i: "sum" as printed, "mean" divides by |P_i|. The result is the mean over
    all anchors; one without positives gives 0 and still counts; without negatives there is no
    repulsion.
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
    """SupCon, Eq. 3: the decoupled loss with both weights 1 and `candidates` as the denominator.

    Over class prototypes instead of samples this is FedProc's loss.
    """
    return decoupled_contrastive(
        similarity, positives, candidates, temperature, align=1.0, uniform=1.0, reduction=reduction
    )


@in_full_precision
def model_contrastive(
    local: Tensor, global_: Tensor, previous: Tensor | None, temperature: float = 0.5
) -> Tensor:
    """MOON: the local features [B, d] near the global model's, away from the previous local ones.

        l_i = -log( exp(s_i / tau) / (exp(s_i / tau) + exp(r_i / tau)) )

    s_i is the cosine with the global model's feature, r_i with the previous model's. Without a
    previous model there is nothing to leave behind: 0.
    """
    if previous is None:
        return local.sum() * 0.0
    anchor = _unit(local)
    gap = (anchor * (_unit(previous) - _unit(global_))).sum(dim=1) / temperature
    # log(1 + exp(gap)); torch's softplus drops the 1 above 20, which float64 can tell
    return torch.logaddexp(gap, torch.zeros_like(gap)).sum() / max(len(local), 1)
