"""FedRCL's relaxed contrastive loss, as its released code computes it.

Seo et al., "Relaxed Contrastive Learning for Federated Learning", CVPR 2024.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.losses.contrastive import cosine_similarity, in_full_precision


def _smallest(similarity: Tensor, mask: Tensor, k: int) -> Tensor:
    """The k smallest entries of each row's mask [B, B] -> [B, k]; missing ones are +inf."""
    masked = similarity.masked_fill(~mask, float("inf"))
    padded = F.pad(masked, (0, max(k - masked.shape[1], 0)), value=float("inf"))
    return padded.topk(k, dim=1, largest=False).values


@in_full_precision
def relaxed_contrastive(
    features: Tensor,
    labels: Tensor,
    temperature: float = 0.05,
    hardest_positives: int = 1,
    hardest_negatives: int = 2,
    threshold: float = 0.7,
    penalty: float = 1.0,
) -> Tensor:
    """One level of FedRCL.

        contrast_i = sum_{p in P_i} log(1 + sum_{n in N_i} exp((s_in - s_ip) / tau))
        divergence_i = log(1 + sum_{q in Q_i} exp((q - 1) / tau))
        result = mean_i (contrast_i + penalty * divergence_i) / k

    P_i are the k hardest (least similar) of i's class, i itself included; N_i the hardest (most
    similar) of other classes; Q_i the k hardest of i's class without i. A member of Q_i that is
    missing or below the threshold stands at -1, so only pairs that are already close are pushed
    apart. Both terms are divided by k, also where a class has fewer members.

    Args:
        features: [B, d].
        labels: [B].
        temperature: tau.
        hardest_positives: k.
        hardest_negatives: How many of N_i.
        threshold: The cosine from which a pair of one class is close.
        penalty: The weight of the divergence.

    Returns:
        The mean over the batch.

    Example:
        >>> import dcfl, torch
        >>> z, y = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> round(dcfl.losses.relaxed_contrastive(z, y, temperature=1.0).item(), 4)
        1.2255
    """
    similarity = cosine_similarity(features, features)
    same = labels[:, None] == labels[None, :]
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)

    positives = _smallest(similarity, same, hardest_positives)
    negatives = -_smallest(-similarity, ~same, hardest_negatives)
    exists = positives.isfinite()
    gaps = negatives[:, None, :] - positives.masked_fill(~exists, 0.0)[:, :, None]
    # log(1 + sum exp) is a log-sum-exp with a zero in the row; a missing negative is exp(-inf) = 0.
    contrast = F.pad(gaps / temperature, (1, 0)).logsumexp(dim=2)
    contrast = contrast.masked_fill(~exists, 0.0).sum(dim=1)

    close = _smallest(similarity, same & ~itself, hardest_positives)
    close = torch.where(close.isfinite() & (close >= threshold), close, -1.0)
    divergence = F.pad((close - 1.0) / temperature, (1, 0)).logsumexp(dim=1)
    return (contrast + penalty * divergence).sum() / (hardest_positives * max(len(labels), 1))
