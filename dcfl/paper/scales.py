"""How big a reproduction is: the paper's own size, a miniature, on pretrained features, or a
minute."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from math import inf, isinf

from dcfl.comparisons.space import tables_of
from dcfl.config import Table, Tables, experiment_from, merge
from dcfl.errors import SettingsWarning
from dcfl.experiment import Experiment


@dataclass(frozen=True)
class Where:
    """What all methods of a comparison have in common."""

    dataset: str
    alpha: float
    participation: float

    @property
    def split(self) -> str:
        return "iid" if isinf(self.alpha) else f"{self.alpha:g}"

    @property
    def tables(self) -> Tables:
        """The tables of a config that say this."""
        return {
            "data": {"dataset": self.dataset, "alpha": self.alpha},
            "federation": {"participation": self.participation},
        }

    def __str__(self) -> str:
        return f"{self.dataset}-{self.split}-p{100 * self.participation:g}"


def searched_key(method: str) -> str:
    """The setting that is searched for a method; FedAvg's learning rate is that of all methods."""
    return {"fedavg": "training.lr", "fedsol": "method.rho"}.get(method, "method.mu")


@dataclass(frozen=True)
class Searched:
    """What a stored search found for a method on a data set; where it was searched for levels of
    the network, for "METHOD, LEVEL"."""

    settings: dict[str, float]  # by key of the config
    trials: int
    seeds: int  # of each trial
    at_edge: bool  # nothing was tried on one side of it


@dataclass(frozen=True)
class Scale:
    name: str
    caption: str  # below every table
    seeds: tuple[int, ...]
    tables: Tables  # of the config, for all methods
    methods: Mapping[str, Table] = field(default_factory=dict)  # fields, whatever was found
    heads: Mapping[str, str] = field(default_factory=dict)  # of methods, if not that of `tables`
    search_seeds: tuple[int, ...] = (100, 101)  # others, so that no result is of a seed that chose
    trials: int = 6  # of each row in a search
    datasets: Mapping[str, Tables] = field(default_factory=dict)  # on top of `tables`
    borrows: str = ""  # the data set whose findings those take that were not searched
    stand_in: str = ""  # for the paper's data sets; * is the name of the one
    more_alphas: tuple[float, ...] = ()  # splits beside those of the paper's tables

    def experiment(
        self, where: Where, method: str, seed: int, fields: Table, changes: Tables
    ) -> Experiment:
        """Split, client schedule and initial weights depend on the seed alone, so all methods have
        the same."""
        dataset = self.stand_in.replace("*", where.dataset) or where.dataset
        found = tables_of(
            self.searched(where.dataset, "fedavg").settings
            | self.searched(where.dataset, method).settings
        )
        own = {**found.pop("method", {}), **self.methods.get(method, {}), **fields}
        chosen = merge(
            {**where.tables, **found},
            {
                "data": {"dataset": dataset, "seed": seed},
                "federation": {"seed": seed},
                "model": {"head": self.heads[method]} if method in self.heads else {},
                "method": {"name": method, **own},
            },
        )
        # Recipes also try settings that do not train, to show that they do not.
        with warnings.catch_warnings(action="ignore", category=SettingsWarning):
            tables = merge(self.tables, self.datasets.get(where.dataset, {}))
            return experiment_from(None, merge(merge(tables, chosen), changes))

    def searched(self, dataset: str, name: str) -> Searched:
        found = CHOSEN.get(self.name, {})
        return found.get(dataset, found.get(self.borrows, {})).get(name, NOT_SEARCHED)

    def origin(self, dataset: str, name: str, settings: Mapping[str, float]) -> str:
        """Where these come from on a data set, with the budget of the search; empty for a scale
        that was not searched."""
        found = self.searched(dataset, name)
        if not found.trials:
            return "not searched" if self.name in CHOSEN else ""
        edge = ", at their edge" if found.at_edge else ""
        budget = f"best of {found.trials}{edge}, seeds: {found.seeds}"
        here = "searched" if dataset in CHOSEN[self.name] else f"from {self.borrows}"
        if found.settings != settings:
            values = ", ".join(f"{value:g}" for value in found.settings.values())
            return f"{here}, but {values} was the {budget}"
        return f"{here}, {budget}"


NOT_SEARCHED = Searched({}, 0, 0, False)
# What benchmarks/chosen_settings.py found in the stored searches, by scale, data set and name.
CHOSEN: dict[str, dict[str, dict[str, Searched]]] = {
    scale: {
        dataset: {method: Searched(**found) for method, found in methods.items()}
        for dataset, methods in datasets.items()
    }
    for scale, datasets in json.loads(
        (resources.files("dcfl.paper") / "chosen.json").read_text(encoding="utf-8")
    ).items()
}
IID = inf

PAPER = Scale(
    "paper",
    "As published: 100 clients, ResNet-18, five local epochs, the paper's mu. The paper does not "
    "give the number of rounds, the momentum, clipping or what DCFL-SW averages over: 1,000, 0.9, "
    "10 and the mean over positives.",
    seeds=(0, 1, 2),
    tables={
        "data": {"clients": 100},
        "model": {"name": "resnet18"},
        "training": {"epochs": 5, "lr": 0.01, "lr_decay": 0.998, "momentum": 0.9},
        "federation": {"rounds": 1000},
    },
)

MINI_ROUNDS = 500
MINI = Scale(
    "mini",
    "The paper in miniature. Its own are the 100 clients, the participation, five local epochs, "
    "batches of up to 64 and the splits; small are the data (4,000 training images, 40 a client), "
    "the network (a ResNet-8 of 16-32-64 channels) and the number of rounds (500, which is 125 "
    "passes over each image at 5 %), into which the decay of the learning rate is squeezed. MOON, "
    "FedSCL and FedProc have a projection head beside the classifier, DCFL has none. Learning "
    "rate and mu were chosen on images of CIFAR-10 that were kept back, with Dirichlet 0.3 at 5 %, "
    "and are the same everywhere. "
    "bfloat16; scored after every fifth round, of CIFAR-10 on the 5,000 test images by which "
    "nothing was chosen. Each seed has its own training images. CIFAR-100 is its first 20 classes.",
    seeds=(0, 1, 2, 3, 4),
    tables={
        "data": {"clients": 100, "train_images": 4_000, "test_images": 5_000},
        "model": {"name": "resnet8", "head": "side256"},
        "training": {
            "epochs": 5,
            "lr_decay": round(0.998 ** (1000 / MINI_ROUNDS), 6),  # by the end, as in the paper
            "momentum": 0.0,
        },
        "federation": {"rounds": MINI_ROUNDS, "evaluate_every": 5},
        "engine": {"precision": "bfloat16"},
    },
    # As with a side head; without one 0.1 was 0.3 points better, on one seed of a search.
    methods={"dcfl-pw": {"mu": 1.0}},
    heads={"dcfl-sw": "none", "dcfl-pw": "none"},  # the paper, read literally
    datasets={
        # The first 5,000 were seen when DCFL was given no head, and when levels were first tried.
        "cifar10": {"data": {"test_skip": 5_000}},
        "cifar100": {"data": {"classes": 20}},
    },
    borrows="cifar10",
)

PRETRAINED_ROUNDS = 50
PRETRAINED = Scale(
    "pretrained",
    "An MLP with one hidden layer of 256 units on frozen features: EfficientNet-Lite0, trained on "
    "ImageNet, at 96 pixels. Contrastive terms act on the hidden layer. The paper's own are the "
    "100 clients, the participation, five local epochs, batches of up to 64 and the splits; "
    "Dirichlet 0.1 is ours. Each seed has its own 20,000 training and 5,000 test images, where "
    "there are more. 50 rounds, into which the decay of the learning rate is squeezed, scored "
    "after every fifth. Learning rate and mu were chosen on images kept back with Dirichlet 0.3 at "
    "5 %, on each data set by itself; on one that was not searched they are the defaults.",
    seeds=tuple(range(10)),
    tables={
        "data": {"clients": 100, "train_images": 20_000, "test_images": 5_000},
        "model": {"name": "mlp"},
        "training": {
            "epochs": 5,
            "lr": 0.1,
            "lr_decay": round(0.998 ** (1000 / PRETRAINED_ROUNDS), 6),
            "momentum": 0.0,
        },
        "federation": {"rounds": PRETRAINED_ROUNDS, "evaluate_every": 5},
    },
    stand_in="npz:features/*.npz",
    more_alphas=(0.1,),
)

SMOKE = Scale(
    "smoke",
    "A test of the machinery on the built-in digits, two rounds each: it says nothing about the "
    "paper.",
    seeds=(0,),
    tables={
        "data": {"clients": 50},
        "model": {"name": "cnn"},
        "training": {"epochs": 1, "batch_size": 8, "lr": 0.05},
        "federation": {"rounds": 2},
    },
    search_seeds=(100,),
    trials=4,
    stand_in="digits",
)

SCALES = {scale.name: scale for scale in (PAPER, MINI, PRETRAINED, SMOKE)}
