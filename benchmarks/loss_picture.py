"""Draw docs/images/loss.svg: how strongly DCFL and SupCon pull and push, over the negatives.

    python benchmarks/loss_picture.py

The strengths are gradients of the losses of the package by the cosines of one image.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

from dcfl.losses import decoupled_contrastive, supervised_contrastive

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "loss.svg"
POSITIVE, NEGATIVE, TEMPERATURE = 0.8, 0.3, 0.5  # cosines of the pairs, and tau
NEGATIVES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
GREY = "#808080"  # readable on light and on dark


def strengths(decoupled: bool, negatives: int) -> tuple[float, float]:
    """Pull on the positive and push on all negatives together, as multiples of 1 / tau."""
    cosines = torch.tensor([[POSITIVE] + [NEGATIVE] * negatives], dtype=torch.float64)
    cosines.requires_grad_()
    positives = torch.zeros_like(cosines, dtype=torch.bool)
    positives[0, 0] = True
    loss: Tensor = (
        decoupled_contrastive(cosines, positives, ~positives, TEMPERATURE)
        if decoupled
        else supervised_contrastive(cosines, positives, torch.ones_like(positives), TEMPERATURE)
    )
    (slope,) = torch.autograd.grad(loss, cosines)
    return -float(slope[0, 0]) * TEMPERATURE, float(slope[0, 1:].sum()) * TEMPERATURE


def main() -> None:
    plt.rcParams |= {"svg.hashsalt": "dcfl", "text.color": GREY, "axes.labelcolor": GREY}
    plt.rcParams |= {"xtick.color": GREY, "ytick.color": GREY, "axes.edgecolor": GREY}
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    for label, decoupled, colour in (("SupCon", False, "#d9822b"), ("DCFL", True, "#3d8bd4")):
        curves = zip(*(strengths(decoupled, count) for count in NEGATIVES), strict=True)
        for axis, curve in zip(axes, curves, strict=True):
            axis.plot(NEGATIVES, curve, marker="o", markersize=4, color=colour, label=label)
    for axis, title in zip(axes, ("pull to the positive", "push from the negatives"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_xticks([1, 4, 16, 64, 256, 1024], [1, 4, 16, 64, 256, 1024])
        axis.set(title=title, xlabel="negatives at hand", ylim=(0, 1.05))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("strength")
    axes[0].legend(frameon=False, loc="lower right")
    figure.savefig(PICTURE, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
