"""FedDecorr's loss, as its released code computes it.

Shi et al., "Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated
Learning", ICLR 2023.
"""

from __future__ import annotations

from torch import Tensor

from dcfl.losses.contrastive import in_full_precision


@in_full_precision
def decorrelation(features: Tensor) -> Tensor:
    """The mean squared correlation between different dimensions, as FedDecorr's code has it.

        C = Z^T Z with Z the features standardised over the batch;  (1 / N) * mean_{a != b} C_ab^2

    C is not divided by N, so the value is about N times that of the paper's form; the published
    coefficients (0.01 to 0.1) belong to this form.

    Args:
        features: [N, d].

    Returns:
        A scalar; 0 for a batch of one.

    Example:
        >>> import dcfl, torch
        >>> same = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
        >>> round(dcfl.losses.decorrelation(same).item(), 4)
        1.3333
    """
    n, d = features.shape
    if n < 2 or d < 2:
        return features.sum() * 0.0
    products = _products(features)
    off_diagonal = products.square().sum() - products.diagonal().square().sum()
    return off_diagonal / (d * (d - 1)) / n


@in_full_precision
def squared_correlation(features: Tensor) -> Tensor:
    """FedDecorr's loss as its paper prints it: ||K||_F^2 / d^2 for the correlation matrix K.

    Args:
        features: [N, d].

    Returns:
        A scalar; 0 for a batch of one.

    Example:
        >>> import dcfl, torch
        >>> same = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
        >>> round(dcfl.losses.squared_correlation(same).item(), 4)
        1.0
    """
    n, d = features.shape
    if n < 2:
        return features.sum() * 0.0
    return (_products(features) / (n - 1)).square().sum() / d**2


def _products(features: Tensor) -> Tensor:
    """Z^T Z [d, d] for the features standardised over the batch."""
    centred = features - features.mean(dim=0)
    # A dimension that is dead on this batch gives a row of zeros instead of NaN.
    variance = centred.square().sum(dim=0) / (len(features) - 1)
    standardised = centred / (variance + 1e-8).sqrt()
    return standardised.T @ standardised
