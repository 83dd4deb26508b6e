"""How big a reproduction is: the paper's own size, a miniature, or a minute."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isinf

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
    mu_grid: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0, 5.0, 10.0)  # the paper's
    datasets: Mapping[str, Tables] = field(default_factory=dict)  # on top of `tables`
    stand_in: str = ""  # for the paper's data sets

    def experiment(
        self, where: Where, method: str, seed: int, fields: Table, changes: Tables
    ) -> Experiment:
        """Split, client schedule and initial weights depend on the seed alone, so all methods have
        the same."""
        chosen = merge(
            where.tables,
            {
                "data": {"dataset": self.stand_in or where.dataset, "seed": seed},
                "federation": {"seed": seed},
                "model": {"head": self.heads[method]} if method in self.heads else {},
                "method": {"name": method, **self.methods.get(method, {}), **fields},
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
    "bfloat16; scored after every fifth round on 5,000 test images, and EMA is over those. "
    "CIFAR-100 is its first 20 classes.",
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
    datasets={"cifar100": {"data": {"classes": 20}}},
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
    mu_grid=(0.1, 1.0),
    stand_in="digits",
)

SCALES = {scale.name: scale for scale in (PAPER, MINI, SMOKE)}
