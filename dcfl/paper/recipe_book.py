"""All recipes, by name: the paper's own first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dcfl.comparisons.searches import Axis
from dcfl.comparisons.space import tables_of
from dcfl.comparisons.trials import HOLDOUT
from dcfl.config import Table, Tables
from dcfl.methods import METHODS
from dcfl.paper.recipe import REFERENCE, ROWS, CellFactory, Recipe, RecipeCell, SearchedRow
from dcfl.paper.scales import IID, Where, searched_key

Cells = Iterator[RecipeCell]
SPLITS = (IID, 0.5, 0.3)
CIFAR = ("cifar10", "cifar100")
HARD = Where("cifar10", 0.3, 0.05)  # the split at which questions are asked in detail
HARD_EVERYWHERE = [Where(dataset, 0.3, 0.05) for dataset in (*CIFAR, "tiny-imagenet")]
READINGS: dict[str, Table] = {
    "sum over the class": {"positives": "same-class", "reduction": "sum"},
    "mean over the class": {"positives": "same-class", "reduction": "mean"},
    "second view": {"positives": "view", "reduction": "sum"},
}
HEADS = {"none": "none", "before the classifier": "mlp256", "beside it": "side256"}
PAPERS_MU = 10.0  # of DCFL on CIFAR
HEADLESS: Tables = {"model": {"head": "none"}}  # all methods, also where a scale has heads
LEVELLED = ("DCFL-SW", "DCFL-PW", "FedSCL", "FedProc", "FedRCL")
LEVELS = {"last level": "last", "every level": "all"}


def everywhere(datasets: Sequence[str], participation: float) -> list[Where]:
    return [Where(dataset, alpha, participation) for dataset in datasets for alpha in SPLITS]


def every_method(at: CellFactory) -> Cells:
    return map(at.cell, ROWS)


def ablation(at: CellFactory) -> Cells:
    yield at.cell(REFERENCE)
    for row in ("DCFL-SW", "DCFL-PW"):
        for align, uniform in ((0.3, 0.7), (0.9, 0.1)):
            label = f"{row} align={align:g} uniform={uniform:g}"
            yield at.cell(label, None, ROWS[row], {"align": align, "uniform": uniform})


def similarity(at: CellFactory) -> Cells:
    return map(at.cell, ("FedProc", "DCFL-PW"))


def _on_images_kept_back(**changes: Table) -> Tables:
    """Settings are chosen on images that are neither trained on nor the test images."""
    return {"data": {"holdout": HOLDOUT}, **changes}


def fedavg_on_images_kept_back(at: CellFactory) -> Cells:
    yield at.cell(REFERENCE, "", changes=_on_images_kept_back())


def learning_rates() -> Iterator[SearchedRow]:
    rates = Axis(searched_key(ROWS[REFERENCE]), 0.1, 2.0)
    yield SearchedRow(REFERENCE, ROWS[REFERENCE], [rates], _on_images_kept_back())


def own_terms() -> Iterator[SearchedRow]:
    for row, method in ROWS.items():
        axis = Axis(searched_key(method), factor=2.0 if row == "FedSOL" else 10.0)
        if row != REFERENCE:
            yield SearchedRow(row, method, [axis], _on_images_kept_back())


def terms_on_levels() -> Iterator[SearchedRow]:
    for row in LEVELLED:
        method: Any = METHODS[ROWS[row]]
        tau = Axis("method.temperature", method().temperature, 2.5, first=(0,))
        for label, levels in LEVELS.items():
            changes = _on_images_kept_back(method={"levels": levels}, **HEADLESS)
            yield SearchedRow(f"{row}, {label}", method.name, [Axis("method.mu"), tau], changes)


def levels(at: CellFactory) -> Cells:
    block = f"{at.where.dataset}, {at.where.split}"
    yield replace(at.cell(REFERENCE, ""), block=block)
    for label, chosen in LEVELS.items():
        for row in LEVELLED:
            found = at.scale.searched(at.where.dataset, f"{ROWS[row]}, {label}")
            fields = {"levels": chosen, **tables_of(found.settings).get("method", {})}
            yield replace(at.cell(row, label, "", fields, HEADLESS), block=block)


def readings(at: CellFactory) -> Cells:
    for column, head in HEADS.items():
        changes: Tables = {"model": {"head": head}}
        # One beside the classifier leaves FedAvg as it is, to the last bit: a cell for both.
        yield at.cell(REFERENCE, column, changes=changes if head.startswith("mlp") else {})
        for row in ("FedSCL", "FedProc"):
            yield at.cell(row, column, changes=changes)
        chosen = at.scale.methods.get("dcfl-pw", {}).get("mu")
        for mu in dict.fromkeys(filter(None, (PAPERS_MU, chosen))):
            for row, method, fields in _candidates():
                yield at.cell(f"{row}, mu {mu:g}", column, method, {**fields, "mu": mu}, changes)


def _candidates() -> Iterator[tuple[str, str, Table]]:
    """Row, method and fields of each reading of DCFL."""
    yield "DCFL-PW", "dcfl-pw", {}
    for label, reading in READINGS.items():
        yield f"DCFL-SW, {label}", "dcfl-sw", reading
    everything: Table = {"reduction": "mean", "negatives": "all-others"}
    yield "DCFL-SW, mean over the class, all others negative", "dcfl-sw", everything


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        *(
            Recipe(
                f"participation-{percent}",
                f"Accuracy at {percent} % participation",
                "Ten methods on CIFAR-10 and CIFAR-100, "
                f"{clients} of a hundred clients in each round.",
                everywhere(CIFAR, percent / 100),
                every_method,
                published=f"participation-{percent}",
            )
            for percent, clients in ((5, "five"), (10, "ten"), (2, "two"))
        ),
        Recipe(
            "tiny-imagenet",
            "Accuracy on Tiny-ImageNet",
            "Ten methods on 200 classes, five of a hundred clients in each round.",
            everywhere(["tiny-imagenet"], 0.05),
            every_method,
            published="tiny-imagenet",
        ),
        Recipe(
            "ablation",
            "Alignment against uniformity",
            "DCFL with the weights turned round. The paper does not name the participation; its "
            "rows with 0.9 and 0.1 are those of its 2 % table.",
            everywhere(CIFAR, 0.02),
            ablation,
            published="ablation",
        ),
        Recipe(
            "similarity",
            "Cosines within and between classes",
            "The paper's figure: how alike the features of test images are, for FedProc and "
            "DCFL-PW.",
            [HARD],
            similarity,
            picture="similarity",
        ),
        Recipe(
            "lr-search",
            "The learning rate",
            "Chosen for FedAvg on a tenth of the training images that is kept back, for all "
            "methods.",
            HARD_EVERYWHERE,
            fedavg_on_images_kept_back,
            columns="lr",
            searched=learning_rates,
        ),
        Recipe(
            "mu-search",
            "The weight of each method's own term",
            "Chosen on a tenth of the training images that is kept back, never on the test images.",
            HARD_EVERYWHERE,
            fedavg_on_images_kept_back,
            columns="mu (FedSOL: rho)",
            searched=own_terms,
        ),
        Recipe(
            "levels-search",
            "The weight and the temperature of terms on the last level and on every level",
            "Without a head, on a tenth of the training images that is kept back.",
            [HARD],
            fedavg_on_images_kept_back,
            columns="mu, tau",
            searched=terms_on_levels,
        ),
        Recipe(
            "levels",
            "What the levels of the network are worth",
            "The same terms on the embedding and on the pooled output of every stage, none with a "
            "head, each with its own mu and temperature: what the levels buy, what decoupling "
            "buys, and whether the two add.",
            [Where(dataset, alpha, 0.05) for dataset in CIFAR for alpha in (0.3, IID)],
            levels,
            columns="levels",
            picture="lines",
        ),
        Recipe(
            "readings",
            "Which reading of the paper has its orders",
            "z_i = h(f(x_i)): is h nothing, a projection head before the classifier, or one beside "
            "it? Are positives summed, averaged, or a second view; are negatives the other "
            "classes, or all others? Each at the paper's mu, and at the one that is best at this "
            "scale.",
            [HARD],
            readings,
            columns="head",
        ),
    )
}
