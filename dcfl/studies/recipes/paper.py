"""The paper's tables and figures, and the questions that it leaves open, as experiments.

A recipe is a function of a scale and seeds that returns cells: experiments with their place in a
grid of blocks, rows and columns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dcfl.config import Table, Tables, as_tables
from dcfl.experiment import Experiment
from dcfl.methods.dcfl import Decoupled
from dcfl.runs.identity import defaults, differences, flat
from dcfl.studies.recipes.scales import IID, Scale, Where

# As the paper's tables name them, in their order.
ROWS = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "MOON": "moon",
    "FedDecorr": "feddecorr",
    "FedRCL": "fedrcl",
    "FedSOL": "fedsol",
    "FedSCL": "fedscl",
    "FedProc": "fedproc",
    "DCFL-SW": "dcfl-sw",
    "DCFL-PW": "dcfl-pw",
}
REFERENCE = "FedAvg"
IN_QUESTION = ("FedAvg", "FedProc", "DCFL-SW", "DCFL-PW")
SPLITS = (IID, 0.5, 0.3)
HARD = Where("cifar10", 0.3, 0.05)  # where the paper's differences are looked at closely


@dataclass(frozen=True)
class Cell:
    """One run, and where its result belongs. Recipes that ask for the same run share its folder."""

    block: str
    row: str
    column: str
    seed: int
    where: Where
    plain: Experiment  # what the scale would do there with this method
    experiment: Experiment

    @cached_property
    def name(self) -> str:
        """Of the folder: with what tells the experiment from the plain one, so that no two share
        it. Where the work is done plays no part."""
        method = self.experiment.method.name
        return "-".join([str(self.where), method, *self._marks(), f"seed{self.seed}"])

    def _marks(self) -> Iterator[str]:
        own = flat(as_tables(self.experiment))
        # Another server optimiser has fields that the plain experiment lacks.
        plain = {**defaults(own), **flat(as_tables(self.plain))}
        often = Counter(key.partition(".")[2] for key in own)
        for key, value, _ in differences(own, plain, "result"):
            if key in own:
                short = key.partition(".")[2]
                yield _mark(short if often[short] == 1 else key, value)


Cells = Iterator[Cell]
Plan = Callable[[Scale, Sequence[int]], Cells]


@dataclass(frozen=True)
class Recipe:
    name: str
    title: str
    question: str
    cells: Plan
    columns: str  # what they are
    published: str = ""  # the table of the paper that has the same rows, blocks and columns
    picture: str = ""  # "lines" over numeric columns, "map", or "similarity"
    chooses: bool = False  # the best column of each row is the answer


RECIPES: dict[str, Recipe] = {}


def recipe(
    name: str, title: str, question: str, columns: str = "split", **rest: Any
) -> Callable[[Plan], Plan]:
    def register(plan: Plan) -> Plan:
        RECIPES[name] = Recipe(name, title, question, plan, columns, **rest)
        return plan

    return register


def _cell(
    scale: Scale,
    where: Where,
    seed: int,
    row: str,
    column: str,
    method: str,
    fields: Table | None = None,
    changes: Tables | None = None,
) -> Cell:
    """`fields` of the method and `changes` of other tables on top of the scale's own."""
    plain = scale.experiment(where, method, seed, {}, {})
    experiment = scale.experiment(where, method, seed, fields or {}, changes or {})
    return Cell(where.dataset, row, column, seed, where, plain, experiment)


def _mark(key: str, value: Any) -> str:
    if isinstance(value, float | int):
        short = f"{value:g}"
        return f"{key}{short if float(short) == value else value}"
    return f"{key}-{re.sub(r'[^A-Za-z0-9.]+', '-', str(value)).strip('-')}"


def _search(**changes: Table) -> Tables:
    """Settings are chosen on images that are neither trained on nor the test images."""
    return {"data": {"holdout": 0.1}, **changes}


def _accuracies(
    scale: Scale, seeds: Sequence[int], datasets: Sequence[str], participation: float
) -> Cells:
    for dataset in datasets:
        for alpha in SPLITS:
            where = Where(dataset, alpha, participation)
            for seed in seeds:
                for row, method in ROWS.items():
                    yield _cell(scale, where, seed, row, where.split, method)


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
                yield _cell(scale, where, seed, REFERENCE, where.split, "fedavg")
                for row in ("DCFL-SW", "DCFL-PW"):
                    for align, uniform in ((0.3, 0.7), (0.9, 0.1)):
                        label = f"{row} align={align:g} uniform={uniform:g}"
                        fields = {"align": align, "uniform": uniform}
                        yield _cell(scale, where, seed, label, where.split, ROWS[row], fields)


@recipe(
    "similarity",
    "Cosines within and between classes",
    "The paper's figure: how alike the features of test images are, for FedProc and DCFL-PW.",
    picture="similarity",
)
def similarity(scale: Scale, seeds: Sequence[int]) -> Cells:
    for seed in seeds:
        for row in ("FedProc", "DCFL-PW"):
            yield _cell(scale, HARD, seed, row, HARD.split, ROWS[row])


@recipe(
    "mu-search",
    "The weight of each method's own term",
    "Chosen on a tenth of the training images that is kept back, never on the test images.",
    columns="mu (FedSOL: rho)",
    chooses=True,
)
def mu_search(scale: Scale, seeds: Sequence[int]) -> Cells:
    for dataset in ("cifar10", "cifar100", "tiny-imagenet"):
        where = Where(dataset, 0.3, 0.05)
        for seed in seeds[:1]:
            for row, method in ROWS.items():
                values: Sequence[float | None] = scale.mu_grid
                if row in (REFERENCE, "FedSOL"):
                    values = (None,) if row == REFERENCE else (0.5, 1.0, 2.0)
                key = "rho" if row == "FedSOL" else "mu"
                for value in values:
                    column = "" if value is None else f"{value:g}"
                    fields = {} if value is None else {key: value}
                    yield _cell(scale, where, seed, row, column, method, fields, _search())


@recipe(
    "server-side",
    "DCFL with optimisers at the server",
    "The paper says that DCFL goes with any server-side rule, and does not try it.",
    columns="server",
)
def server_side(scale: Scale, seeds: Sequence[int]) -> Cells:
    rules: dict[str, Table] = {
        "average": {},
        "FedAvgM": {"optimizer": "fedavgm"},
        "FedAdam": {"optimizer": "fedadam"},
        "FedYogi": {"optimizer": "fedyogi"},
        "FedACG": {"optimizer": "fedacg"},
        "FedNova": {"aggregation": "fednova"},
    }
    for seed in seeds:
        for column, rule in rules.items():
            for row in ("FedAvg", "DCFL-SW", "DCFL-PW"):
                changes = {"server": rule}
                yield _cell(scale, HARD, seed, row, column, ROWS[row], changes=changes)


READINGS: dict[str, Table] = {
    "sum over the class": {"positives": "same-class", "reduction": "sum"},
    "mean over the class": {"positives": "same-class", "reduction": "mean"},
    "second view": {"positives": "view", "reduction": "sum"},
}


@recipe(
    "sample-wise",
    "What DCFL-SW means by positives",
    "Eq. 10 sums over all positives of the class; the text also speaks of one positive. Each "
    "reading with the gradient clipped at 10 and not, and the momentum that the paper does not "
    "name; on a tenth of the training images that is kept back.",
    columns="mu, clipping",
)
def sample_wise(scale: Scale, seeds: Sequence[int]) -> Cells:
    for seed in seeds[:1]:
        for label, training in {
            "": {},
            "lr 0.01, momentum 0.9": {"lr": 0.01, "momentum": 0.9},
            "lr 0.01, momentum 0": {"lr": 0.01, "momentum": 0.0},
        }.items():
            row, changes = " ".join(filter(None, [REFERENCE, label])), _search(training=training)
            yield _cell(scale, HARD, seed, row, "", "fedavg", changes=changes)
        for label, reading in READINGS.items():
            for clip in (10.0, 0.0):
                for mu in scale.mu_grid:
                    column = f"{mu:g}, {'clipped at 10' if clip else 'not clipped'}"
                    fields = {**reading, "mu": mu}
                    changes = _search(training={"max_grad_norm": clip})
                    row = f"DCFL-SW, {label}"
                    yield _cell(scale, HARD, seed, row, column, "dcfl-sw", fields, changes)


@recipe(
    "coupling",
    "What decoupling alone is worth",
    "FedSCL and FedProc have the positives in the denominator and weigh both terms by 1. DCFL "
    "takes them out, and weighs 0.9 and 0.1: here also with 1 and 1, where the denominator is the "
    "only difference.",
)
def coupling(scale: Scale, seeds: Sequence[int]) -> Cells:
    for alpha in (IID, 0.3):
        where = Where("cifar10", alpha, 0.05)
        for seed in seeds:
            for row in ("FedAvg", "FedSCL", "FedProc", "DCFL-SW", "DCFL-PW"):
                plain = _cell(scale, where, seed, row, where.split, ROWS[row])
                yield plain
                if isinstance(plain.experiment.method, Decoupled):
                    # 2 mu times 1/2 and 1/2 is mu times 1 and 1, and the weights add up to 1.
                    doubled = 2 * plain.experiment.method.mu
                    alike = {"mu": doubled, "align": 0.5, "uniform": 0.5}
                    label = f"{row}, both terms weighed alike"
                    yield _cell(scale, where, seed, label, where.split, ROWS[row], alike)


@recipe(
    "heterogeneity",
    "The gap to FedAvg and the skew of the labels",
    "From clients with one or two classes (alpha 0.05) to an even split.",
    columns="alpha",
    picture="lines",
)
def heterogeneity(scale: Scale, seeds: Sequence[int]) -> Cells:
    for alpha in (0.05, 0.1, 0.3, 1.0, IID):
        where = Where("cifar10", alpha, 0.05)
        for seed in seeds:
            for row in IN_QUESTION:
                yield _cell(scale, where, seed, row, where.split, ROWS[row])


@recipe(
    "positives",
    "The gap to FedAvg and the number of positives",
    "Larger batches bring more positives for every image, and more negatives.",
    columns="batch size",
    picture="lines",
)
def positives(scale: Scale, seeds: Sequence[int]) -> Cells:
    for size in (16, 64, 128):
        changes: Tables = {"training": {"batch_size": size}}
        for seed in seeds:
            for row in IN_QUESTION:
                yield _cell(scale, HARD, seed, row, str(size), ROWS[row], changes=changes)


@recipe(
    "weights",
    "Alignment, uniformity and their common weight",
    "DCFL-PW over lambda_a (lambda_u = 1 - lambda_a) and mu.",
    columns="lambda_a",
    picture="map",
)
def weights(scale: Scale, seeds: Sequence[int]) -> Cells:
    for seed in seeds:
        yield _cell(scale, HARD, seed, REFERENCE, "", "fedavg")
        for mu in scale.mu_grid[-3:]:
            for align in (0.1, 0.5, 0.9):
                fields = {"mu": mu, "align": align, "uniform": round(1 - align, 10)}
                yield _cell(scale, HARD, seed, f"mu = {mu:g}", f"{align:g}", "dcfl-pw", fields)
