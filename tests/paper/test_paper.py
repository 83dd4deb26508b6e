"""The recipes ask for what the paper's tables hold, and for fair comparisons."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import pytest

from dcfl.config import experiment_from
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.models import ModelSettings
from dcfl.paper.plans import with_settings
from dcfl.paper.recipe import RecipeCell
from dcfl.paper.recipe_book import RECIPES
from dcfl.paper.results import figures, published
from dcfl.paper.scales import PAPER, SCALES, Scale

NAMES = [
    "participation-5", "participation-10", "participation-2", "tiny-imagenet", "ablation",
    "similarity", "mu-search", "levels-search", "levels",
]  # fmt: skip
ACCURACY_TABLES = ("participation-5", "participation-10", "participation-2", "tiny-imagenet")
BOTH = pytest.mark.parametrize("scale", SCALES.values(), ids=list(SCALES))


def cells(name: str, scale: Scale = PAPER, seeds: tuple[int, ...] = (0,)) -> list[RecipeCell]:
    return _cells(name, scale.name, seeds)


@cache
def _cells(name: str, scale: str, seeds: tuple[int, ...]) -> list[RecipeCell]:
    return list(RECIPES[name].cells(SCALES[scale], seeds))


def found(name: str, **wanted: Any) -> RecipeCell:
    """The one cell in that place, with seed 0."""
    (cell,) = (
        cell
        for cell in cells(name)
        if all(getattr(cell, key) == value for key, value in wanted.items())
    )
    return cell


def test_everything_that_was_asked_for_is_there() -> None:
    assert set(NAMES) <= set(RECIPES)
    assert set(SCALES) == {"paper", "mini", "pretrained", "smoke"}


@BOTH
def test_recipes_that_share_a_folder_mean_the_same_run(scale: Scale) -> None:
    seen: dict[str, tuple[str, Experiment]] = {}
    for name in RECIPES:
        for cell in cells(name, scale):
            other, experiment = seen.setdefault(cell.name, (name, cell.experiment))
            assert experiment == cell.experiment, f"{cell.name} of {other} and {name}"


@pytest.mark.parametrize("scale", list(SCALES.values())[:3], ids=lambda one: one.name)
def test_no_run_is_done_twice_under_two_names(scale: Scale) -> None:
    names: dict[str, set[str]] = defaultdict(set)
    for recipe in RECIPES:
        for cell in cells(recipe, scale):
            names[repr(cell.experiment)].add(cell.name)
    assert [twins for twins in names.values() if len(twins) > 1] == []


@BOTH
def test_every_cell_has_a_place_of_its_own(scale: Scale) -> None:
    for name in RECIPES:
        own = cells(name, scale)
        assert len({(cell.block, cell.row, cell.column, cell.seed) for cell in own}) == len(own)


@BOTH
def test_in_one_place_only_the_method_differs(scale: Scale) -> None:
    for name in RECIPES:
        places: dict[Any, list[Experiment]] = defaultdict(list)
        for cell in cells(name, scale):
            places[cell.block, cell.column, cell.seed].append(cell.experiment)
        for place, group in places.items():
            for part in ("data", "training", "federation", "server", "privacy", "attack"):
                assert len({repr(getattr(one, part)) for one in group}) == 1, (name, place, part)
            assert len({repr(network(one.model)) for one in group}) == 1, (name, place)
            assert len({repr((one.method, one.model)) for one in group}) == len(group)


def test_features_stand_for_the_papers_images_and_a_split_is_added_to_its_tables() -> None:
    pretrained = SCALES["pretrained"]
    own = cells("participation-5", pretrained)
    assert {(cell.block, cell.experiment.data.dataset) for cell in own} == {
        ("cifar10", "npz:features/cifar10.npz"),
        ("cifar100", "npz:features/cifar100.npz"),
    }
    columns = Counter(cell.column for cell in own)
    assert columns == dict.fromkeys(["iid", "0.5", "0.3", "0.1"], 20)
    assert len(pretrained.seeds) == 10
    assert {cell.where.alpha for cell in cells("mu-search", pretrained)} == {0.3}


def network(model: ModelSettings) -> ModelSettings:
    """Without a side head, which leaves the rest of the network as it is."""
    return replace(model, head="none") if model.head.startswith("side") else model


def test_a_scale_may_give_a_method_a_head_of_its_own_and_the_user_another() -> None:
    mini = SCALES["mini"]
    own = {cell.experiment.method.name: cell for cell in cells("participation-5", mini)}
    heads = {name: cell.experiment.model.head for name, cell in own.items()}
    assert heads == {name: "none" if name.startswith("dcfl") else "side256" for name in heads}
    assert "head" not in own["dcfl-pw"].name
    changed = with_settings(RECIPES["participation-5"], list(own.values()), ["model.head=side256"])
    assert {cell.experiment.model.head for cell in changed} == {"side256"}
    assert {cell.experiment.method.name for cell in changed if "head-side256" in cell.name} == {
        "dcfl-sw",
        "dcfl-pw",
    }
    with pytest.raises(ConfigError, match=r"model\.head is for the recipe readings to choose"):
        with_settings(RECIPES["readings"], cells("readings", mini), ["model.head=side256"])


@BOTH
def test_seeds_change_the_split_and_the_schedule_and_nothing_else(scale: Scale) -> None:
    for name in ("tiny-imagenet", "similarity", "readings"):
        for a, b in zip(cells(name, scale), cells(name, scale, (4,)), strict=True):
            assert b.experiment.data.seed == b.experiment.federation.seed == b.seed == 4
            assert repr(a.experiment).replace("seed=0", "seed=4") == repr(b.experiment)


@BOTH
@pytest.mark.parametrize("table", [*ACCURACY_TABLES, "ablation"])
def test_every_figure_of_a_table_has_its_cell(table: str, scale: Scale) -> None:
    asked = {(cell.row, cell.block, cell.column) for cell in cells(table, scale)}
    paper = {
        (row, dataset, split)
        for row, datasets in published()["tables"][table].items()
        for dataset, splits in datasets.items()
        for split in splits
    }
    assert paper <= asked
    more = {f"{alpha:g}" for alpha in scale.more_alphas}
    asked = {cell for cell in asked if cell[2] not in more}
    # FedAvg is what the ablation is paired with, and is not in the paper's table.
    assert {row for row, _, _ in asked - paper} <= ({"FedAvg"} if table == "ablation" else set())


def test_the_paper_scale_is_the_papers() -> None:
    for name, participation in (
        ("participation-5", 0.05),
        ("participation-10", 0.1),
        ("participation-2", 0.02),
        ("tiny-imagenet", 0.05),
        ("ablation", 0.02),
        ("similarity", 0.05),
    ):
        for cell in cells(name):
            experiment = cell.experiment
            alphas = {"iid": inf, "0.5": 0.5, "0.3": 0.3}
            assert experiment.federation.participation == participation
            assert experiment.data.clients == 100
            assert experiment.data.dataset == cell.block
            assert experiment.data.alpha == alphas[cell.column]
            assert experiment.data.holdout == 0
            assert experiment.model.name == "resnet18"
            training = experiment.training
            assert (training.epochs, training.batch_size) == (5, 64)
            assert (training.lr, training.lr_decay) == (0.01, 0.998)
            assert training.weight_decay == 5e-4


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
@pytest.mark.parametrize("method", ["dcfl-sw", "dcfl-pw"])
def test_dcfl_is_the_same_for_run_and_reproduce(method: str, dataset: str) -> None:
    config = Path(__file__).parents[2] / "configs" / f"{dataset}.toml"
    typed = experiment_from(config, {"method": {"name": method}})
    row, column = method.upper(), "0.3"
    assert found("participation-5", row=row, block=dataset, column=column).experiment.method == (
        typed.method
    )


def test_the_methods_have_the_papers_weights_for_the_data_set() -> None:
    wanted = {
        "DCFL-SW": (10, 10, 1),
        "DCFL-PW": (10, 10, 1),
        "MOON": (5, 1, 1),
        "FedProx": (0.01, 0.001, 0.001),
        "FedProc": (10, 10, 10),
        "FedDecorr": (0.01, 0.01, 0.01),
    }
    for row, values in wanted.items():
        for block, mu in zip(("cifar10", "cifar100", "tiny-imagenet"), values, strict=True):
            table = "tiny-imagenet" if block == "tiny-imagenet" else "participation-5"
            method: Any = found(table, row=row, block=block, column="0.3").experiment.method
            assert method.mu == mu, (row, block)
            if row.startswith("DCFL"):
                assert (method.temperature, method.align, method.uniform) == (0.5, 0.9, 0.1)


def test_the_ablation_turns_the_weights_round() -> None:
    for row in ("DCFL-SW", "DCFL-PW"):
        for align, uniform in ((0.3, 0.7), (0.9, 0.1)):
            name = f"{row} align={align} uniform={uniform}"
            method: Any = found(
                "ablation", row=name, block="cifar100", column="iid"
            ).experiment.method
            assert (method.name, method.align, method.uniform) == (row.lower(), align, uniform)


def test_headlines_are_scored_on_test_images_by_which_nothing_was_chosen() -> None:
    """The first 5,000 of CIFAR-10 have been looked at."""
    mini = SCALES["mini"]
    for name in RECIPES:
        for cell in cells(name, mini):
            data = cell.experiment.data
            assert data.test_skip == (5_000 if data.dataset == "cifar10" else 0)
            assert data.seed == cell.seed


def test_the_papers_figures() -> None:
    some = {
        ("participation-5", "FedAvg", "cifar10", "0.3"): (89.47, 87.43),
        ("participation-5", "FedProc", "cifar10", "0.3"): (90.15, 88.84),
        ("participation-5", "DCFL-PW", "cifar100", "iid"): (66.38, 65.85),
        ("participation-10", "FedAvg", "cifar10", "iid"): (89.81, 89.3),
        ("ablation", "DCFL-SW align=0.3 uniform=0.7", "cifar10", "0.3"): (20.18, 10.26),
    }
    for place, pair in some.items():
        assert figures(*place) == {"max": pair[0], "ema": pair[1]}
    assert not figures("participation-5", "FedAvg", "cifar10", "0.1")
    assert not figures("", "FedAvg", "cifar10", "0.3")


def test_the_ablation_repeats_the_two_percent_table() -> None:
    """Which is how we know its participation."""
    for row in ("DCFL-SW", "DCFL-PW"):
        for dataset in ("cifar10", "cifar100"):
            for split in ("iid", "0.5", "0.3"):
                usual = figures("ablation", f"{row} align=0.9 uniform=0.1", dataset, split)
                assert usual == figures("participation-2", row, dataset, split)


@pytest.mark.parametrize(
    ("table", "best", "of"),
    [
        ("participation-5", 10, 12),
        ("participation-10", 10, 12),
        ("participation-2", 9, 12),
        ("tiny-imagenet", 6, 6),
    ],
)
def test_where_dcfl_is_the_papers_best(table: str, best: int, of: int) -> None:
    rows = published()["tables"][table]
    winners = [
        max(rows, key=lambda row: rows[row][dataset][split][metric])
        for dataset, splits in rows["FedAvg"].items()
        for split in splits
        for metric in ("max", "ema")
    ]
    assert len(winners) == of
    assert sum(winner.startswith("DCFL") for winner in winners) == best
