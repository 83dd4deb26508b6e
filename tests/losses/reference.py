"""The losses as slow loops over single numbers, to be read next to their equations.

Every number is a zero-dimensional float64 tensor: autograd then differentiates the loop itself, and
no mask, matrix product or reduction is shared with the code under test. exp and log are taken
naively, which float64 allows for similarities in [-1, 1] and temperatures down to 0.01.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, exp, log, sqrt

Vector = Sequence[Tensor]


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def total(numbers: Iterable[Tensor]) -> Tensor:
    result = number(0.0)
    for x in numbers:
        result = result + x
    return result


def mean(numbers: Iterable[Tensor]) -> Tensor:
    numbers = list(numbers)
    return total(numbers) / len(numbers)


def table(matrix: Tensor) -> list[Vector]:
    return [row.unbind() for row in matrix.double()]


def cosine(u: Vector, v: Vector) -> Tensor:
    """<u, v> / (||u|| ||v||), and 0 when one of them is the zero vector."""
    uu = total(a * a for a in u)
    vv = total(b * b for b in v)
    if uu == 0 or vv == 0:
        return number(0.0)
    return total(a * b for a, b in zip(u, v, strict=True)) / (sqrt(uu) * sqrt(vv))


def cosine_similarity(a: Tensor, b: Tensor) -> Tensor:
    """s_ij = cos(a_i, b_j)."""
    result = torch.zeros(len(a), len(b), dtype=torch.float64)
    for i, u in enumerate(table(a)):
        for j, v in enumerate(table(b)):
            result[i, j] = cosine(u, v)
    return result


def decoupled_contrastive(
    similarity: Tensor,
    positives: Tensor,
    negatives: Tensor,
    temperature: float = 0.5,
    align: float = 0.9,
    uniform: float = 0.1,
    reduction: str = "sum",
) -> Tensor:
    """l_i = -la sum_{p in P_i} s_ip / tau + lu |P_i| log sum_{n in N_i} exp(s_in / tau)."""
    losses = []
    for i, s in enumerate(table(similarity)):
        own = [s[j] for j in range(len(s)) if positives[i, j]]
        rest = [s[j] for j in range(len(s)) if negatives[i, j]]
        loss = -align * total(p / temperature for p in own)
        if rest:
            loss = loss + uniform * len(own) * log(total(exp(n / temperature) for n in rest))
        if reduction == "mean" and own:
            loss = loss / len(own)
        losses.append(loss)
    return mean(losses)


def supervised_contrastive(
    similarity: Tensor,
    positives: Tensor,
    candidates: Tensor,
    temperature: float = 0.5,
    reduction: str = "mean",
) -> Tensor:
    """l_i = -sum_{p in P_i} [s_ip / tau - log sum_{k in candidates} exp(s_ik / tau)]."""
    losses = []
    for i, s in enumerate(table(similarity)):
        own = [s[j] for j in range(len(s)) if positives[i, j]]
        rest = [s[j] for j in range(len(s)) if candidates[i, j]]
        log_sum = log(total(exp(k / temperature) for k in rest)) if rest else number(0.0)
        loss = -total(p / temperature - log_sum for p in own)
        if reduction == "mean" and own:
            loss = loss / len(own)
        losses.append(loss)
    return mean(losses)


def relaxed_contrastive(
    features: Tensor,
    labels: Tensor,
    temperature: float = 0.05,
    hardest_positives: int = 1,
    hardest_negatives: int = 2,
    threshold: float = 0.7,
    penalty: float = 1.0,
) -> Tensor:
    """mean_i (1/k) sum_{p in P_i} log(1 + sum_{n in N_i} exp((n - p) / tau))
    + penalty * mean_i (1/k) log(1 + sum_q exp((q - 1) / tau)).

    The released code gives every anchor k places for positives, one softmax each, and averages over
    the places, taken or not. The penalty's only positive is the anchor itself: one place of k.
    """
    rows, y = table(features), labels.tolist()
    contrasts, penalties = [], []
    for i in range(len(rows)):
        s = [cosine(rows[i], other) for other in rows]
        everyone = range(len(rows))

        same = sorted((s[j] for j in everyone if y[j] == y[i]), key=Tensor.item)
        different = sorted((s[j] for j in everyone if y[j] != y[i]), key=Tensor.item, reverse=True)
        hard_negatives = different[:hardest_negatives]
        contrasts.append(
            total(
                log(1 + total(exp((n - p) / temperature) for n in hard_negatives))
                for p in same[:hardest_positives]
            )
            / hardest_positives
        )

        partners = sorted((s[j] for j in everyone if y[j] == y[i] and j != i), key=Tensor.item)
        slots = []
        for k in range(hardest_positives):
            too_far = k >= len(partners) or partners[k] < threshold
            slots.append(number(-1.0) if too_far else partners[k])
        own_pair = log(1 + total(exp((q - 1) / temperature) for q in slots))
        penalties.append(own_pair / hardest_positives)
    return mean(contrasts) + penalty * mean(penalties)


def decorrelation(features: Tensor) -> Tensor:
    """(1/N) mean_{a != b} C_ab^2, C = X~^T X~, X~ = (X - mean) / sqrt(unbiased var + 1e-8)."""
    n, d = features.shape
    if n == 1:
        return number(0.0)
    standardised = []
    for column in table(features.T):
        centre = mean(column)
        variance = total((x - centre) ** 2 for x in column) / (n - 1)
        standardised.append([(x - centre) / sqrt(variance + 1e-8) for x in column])
    squares = []
    for a in range(d):
        for b in set(range(d)) - {a}:
            entry = total(x * y for x, y in zip(standardised[a], standardised[b], strict=True))
            squares.append(entry**2)
    return mean(squares) / n


def model_contrastive(
    local: Tensor, global_: Tensor, previous: Tensor, temperature: float = 0.5
) -> Tensor:
    """l_i = -log(exp(g_i / tau) / (exp(g_i / tau) + exp(p_i / tau))), g and p paired cosines."""
    losses = []
    for z, z_global, z_previous in zip(table(local), table(global_), table(previous), strict=True):
        attract = exp(cosine(z, z_global) / temperature)
        repel = exp(cosine(z, z_previous) / temperature)
        losses.append(-log(attract / (attract + repel)))
    return mean(losses)
