"""The paper's tables and figures, as recipes."""

from __future__ import annotations

from collections.abc import Sequence

from dcfl.studies.recipes.recipe import REFERENCE, ROWS, CellFactory, Cells, recipe
from dcfl.studies.recipes.scales import IID, Scale, Where

SPLITS = (IID, 0.5, 0.3)
HARD = Where("cifar10", 0.3, 0.05)  # the split at which questions are asked in detail


def _accuracies(
    scale: Scale, seeds: Sequence[int], datasets: Sequence[str], participation: float
) -> Cells:
    for dataset in datasets:
        for alpha in SPLITS:
            where = Where(dataset, alpha, participation)
            for seed in seeds:
                at = CellFactory(scale, where, seed)
                for row, method in ROWS.items():
                    yield at.cell(row, where.split, method)


@recipe(
    "participation-5",
    "Accuracy at 5 % participation",
    "Ten methods on CIFAR-10 and CIFAR-100, five of a hundred clients in each round.",
    published="participation-5",
)
def participation_5(scale: Scale, seeds: Sequence[int]) -> Cells:
    return _accuracies(scale, seeds, ("cifar10", "cifar100"), 0.05)


@recipe(
    "participation-10",
    "Accuracy at 10 % participation",
    "Ten methods on CIFAR-10 and CIFAR-100, ten of a hundred clients in each round.",
    published="participation-10",
)
def participation_10(scale: Scale, seeds: Sequence[int]) -> Cells:
    return _accuracies(scale, seeds, ("cifar10", "cifar100"), 0.1)


@recipe(
    "participation-2",
    "Accuracy at 2 % participation",
    "Ten methods on CIFAR-10 and CIFAR-100, two of a hundred clients in each round.",
    published="participation-2",
)
def participation_2(scale: Scale, seeds: Sequence[int]) -> Cells:
    return _accuracies(scale, seeds, ("cifar10", "cifar100"), 0.02)


@recipe(
    "tiny-imagenet",
    "Accuracy on Tiny-ImageNet",
    "Ten methods on 200 classes, five of a hundred clients in each round.",
    published="tiny-imagenet",
)
def tiny_imagenet(scale: Scale, seeds: Sequence[int]) -> Cells:
    return _accuracies(scale, seeds, ("tiny-imagenet",), 0.05)


@recipe(
    "ablation",
    "Alignment against uniformity",
    "DCFL with the weights turned round. The paper does not name the participation; its rows with "
    "0.9 and 0.1 are those of its 2 % table.",
    published="ablation",
)
def ablation(scale: Scale, seeds: Sequence[int]) -> Cells:
    for dataset in ("cifar10", "cifar100"):
        for alpha in SPLITS:
            where = Where(dataset, alpha, 0.02)
            for seed in seeds:
                at = CellFactory(scale, where, seed)
                yield at.cell(REFERENCE, where.split, "fedavg")
                for row in ("DCFL-SW", "DCFL-PW"):
                    for align, uniform in ((0.3, 0.7), (0.9, 0.1)):
                        label = f"{row} align={align:g} uniform={uniform:g}"
                        fields = {"align": align, "uniform": uniform}
                        yield at.cell(label, where.split, ROWS[row], fields)


@recipe(
    "similarity",
    "Cosines within and between classes",
    "The paper's figure: how alike the features of test images are, for FedProc and DCFL-PW.",
    picture="similarity",
)
def similarity(scale: Scale, seeds: Sequence[int]) -> Cells:
    for seed in seeds:
        at = CellFactory(scale, HARD, seed)
        for row in ("FedProc", "DCFL-PW"):
            yield at.cell(row, HARD.split, ROWS[row])
