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
    centred = features - features.mean(dim=0)
    # A dimension that is dead on this batch gives a row of zeros instead of NaN.
    variance = centred.square().sum(dim=0) / (n - 1)
    standardised = centred / (variance + 1e-8).sqrt()
    products = standardised.T @ standardised
    off_diagonal = products.square().sum() - products.diagonal().square().sum()
    return off_diagonal / (d * (d - 1)) / n
