"""How big a reproduction is: the paper's own size, a miniature, on pretrained features, or a
minute."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from math import inf, isinf
from typing import Any

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


@dataclass(frozen=True)
class Scale:
    name: str
    caption: str  # below every table
    seeds: tuple[int, ...]
    tables: Tables  # of the config, for all methods
    # Fields of methods, where they are not the method's own for the data set.
    methods: Mapping[str, Table] = field(default_factory=dict)
    heads: Mapping[str, str] = field(default_factory=dict)  # of methods, if not that of `tables`
    # Fields of a method on this level of the network ("last", "all"), without a head.
    levels: Mapping[tuple[str, str], Table] = field(default_factory=dict)
    search_seeds: tuple[int, ...] = (100, 101)  # others, so that no result is of a seed that chose
    trials: int = 6  # of each row in a search
    datasets: Mapping[str, Tables] = field(default_factory=dict)  # on top of `tables`
    # By data set and method, what a search chose there: on top of `methods`.
    chosen: Mapping[str, Mapping[str, Table]] = field(default_factory=dict)
    stand_in: str = ""  # for the paper's data sets; * is the name of the one
    more_alphas: tuple[float, ...] = ()  # splits beside those of the paper's tables

    def experiment(
        self, where: Where, method: str, seed: int, fields: Table, changes: Tables
    ) -> Experiment:
        """Split, client schedule and initial weights depend on the seed alone, so all methods have
        the same."""
        dataset = self.stand_in.replace("*", where.dataset) or where.dataset
        own = {**self.methods.get(method, {}), **self.chosen.get(where.dataset, {}).get(method, {})}
        chosen = merge(
            where.tables,
            {
                "data": {"dataset": dataset, "seed": seed},
                "federation": {"seed": seed},
                "model": {"head": self.heads[method]} if method in self.heads else {},
                "method": {"name": method, **own, **fields},
            },
        )
        # Recipes also try settings that do not train, to show that they do not.
        with warnings.catch_warnings(action="ignore", category=SettingsWarning):
            tables = merge(self.tables, self.datasets.get(where.dataset, {}))
            return experiment_from(None, merge(merge(tables, chosen), changes))


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
    "rate and mu were chosen on images kept back. "
    "bfloat16; scored after every fifth round, of CIFAR-10 on the 5,000 test images by which "
    "nothing was chosen. Each seed has its own training images. CIFAR-100 is its first 20 classes.",
    seeds=(0, 1, 2, 3, 4),
    tables={
        "data": {"clients": 100, "train_images": 4_000, "test_images": 5_000},
        "model": {"name": "resnet8", "head": "side256"},
        "training": {
            "epochs": 5,
            "lr": 0.2,
            "lr_decay": round(0.998 ** (1000 / MINI_ROUNDS), 6),  # by the end, as in the paper
            "momentum": 0.0,
        },
        "federation": {"rounds": MINI_ROUNDS, "evaluate_every": 5},
        "engine": {"precision": "bfloat16"},
    },
    # The best EMA on kept-back images, DCFL-PW's with a side head; FedProc's and FedSCL's are
    # their own (10 and 1).
    methods={
        "fedprox": {"mu": 0.001},
        "moon": {"mu": 1.0},
        "feddecorr": {"mu": 0.1},
        "fedrcl": {"mu": 0.1},
        "fedsol": {"rho": 2.0},
        "dcfl-sw": {"mu": 1.0},
        "dcfl-pw": {"mu": 1.0},
    },
    heads={"dcfl-sw": "none", "dcfl-pw": "none"},  # the paper, read literally
    datasets={
        # The first 5,000 were seen when DCFL was given no head, and when levels were first tried.
        "cifar10": {"data": {"test_skip": 5_000}},
        "cifar100": {"data": {"classes": 20}},
    },
)

# What benchmarks/chosen_settings.py found in the stored searches: {data set: {"lr", "methods"}}.
CHOSEN: dict[str, dict[str, Any]] = json.loads(
    (resources.files("dcfl.paper") / "chosen.json").read_text(encoding="utf-8")
)
PRETRAINED_ROUNDS = 50
PRETRAINED = Scale(
    "pretrained",
    "An MLP with one hidden layer of 256 units on frozen features: EfficientNet-Lite0, trained on "
    "ImageNet, at 96 pixels. Contrastive terms act on the hidden layer. The paper's own are the "
    "100 clients, the participation, five local epochs, batches of up to 64 and the splits; "
    "Dirichlet 0.1 is ours. Each seed has its own 20,000 training and 5,000 test images, where "
    "there are more. 50 rounds, into which the decay of the learning rate is squeezed, scored "
    "after every fifth. Learning rate and mu were chosen on images kept back, on each data set.",
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
    datasets={name: {"training": {"lr": one["lr"]}} for name, one in CHOSEN.items()},
    chosen={name: one["methods"] for name, one in CHOSEN.items()},
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
