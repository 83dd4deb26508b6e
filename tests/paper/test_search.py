"""Searches of recipes: equal budgets, and what stored cells lead to."""

from __future__ import annotations

import runpy
from collections import Counter
from dataclasses import asdict
from math import log10
from pathlib import Path
from typing import Any

import pytest

from dcfl.methods import METHODS
from dcfl.paper.plans import plan_recipe
from dcfl.paper.recipe import ROWS, RecipeCell, values_of
from dcfl.paper.recipe_book import LEVELLED, RECIPES
from dcfl.paper.reproduction_page import sections_of, settings_table
from dcfl.paper.scales import CHOSEN, MINI, SCALES, SMOKE, Searched, Where, searched_key
from tests.paper.hand_made import pretend

SEARCHES = [recipe for recipe in RECIPES.values() if recipe.searched]
BY_SEARCH = pytest.mark.parametrize("recipe", SEARCHES, ids=lambda one: one.name)


@BY_SEARCH
@pytest.mark.parametrize("scale", SCALES.values(), ids=list(SCALES))
def test_all_rows_begin_alike_on_kept_back_images_of_two_seeds(recipe: Any, scale: Any) -> None:
    cells = list(recipe.cells(scale, scale.search_seeds))
    assert not set(scale.search_seeds) & set(scale.seeds)
    assert len(scale.search_seeds) == (1 if scale is SMOKE else 2)
    assert {cell.experiment.data.holdout for cell in cells} == {0.1}
    counts = Counter((cell.block, cell.row, cell.seed) for cell in cells if cell.column)
    assert set(counts.values()) == {3}
    assert scale.trials > 3


def bowl(cell: RecipeCell) -> float:
    """A score whose best mu differs from method to method, and lies beyond the first grid."""
    wanted = -3 if cell.row.startswith("FedProx") else 2
    return -abs(log10(values_of(cell.column)[0]) - wanted)


@BY_SEARCH
def test_every_row_ends_with_the_same_number_of_trials(recipe: Any) -> None:
    cells = list(recipe.cells(MINI, MINI.search_seeds, bowl))
    counts = Counter((cell.block, cell.row, cell.seed) for cell in cells if cell.column)
    assert set(counts.values()) == {MINI.trials}
    places = {(cell.row, cell.column, cell.seed, cell.block) for cell in cells}
    assert len(places) == len(cells)


def test_fedsols_rho_counts_as_its_mu() -> None:
    cells = [cell for cell in RECIPES["mu-search"].cells(MINI, (100,)) if cell.row == "FedSOL"]
    rhos: list[Any] = [cell.experiment.method for cell in cells if cell.block == "cifar10"]
    assert [method.rho for method in rhos] == [0.5, 1.0, 2.0]


def test_the_levels_are_searched_over_mu_and_temperature_without_a_head() -> None:
    rows = {f"{row}, {where}" for row in LEVELLED for where in ("last level", "every level")}
    cells = list(RECIPES["levels-search"].cells(MINI, (100, 101), bowl))
    assert {cell.row for cell in cells} == {"FedAvg"} | rows
    for cell in cells:
        if cell.column:
            method: Any = cell.experiment.method
            assert (method.mu, method.temperature) == values_of(cell.column)
            assert method.levels == ("all" if cell.row.endswith("every level") else "last")
            assert cell.experiment.model.head == "none"


def test_a_plan_follows_from_what_is_finished(tmp_path: Path) -> None:
    """However it was interrupted, the next trial is the same."""

    def plan() -> Any:
        return plan_recipe(RECIPES["levels-search"], SMOKE, (100, 101), [], tmp_path)

    first = plan()
    asked = len(first.cells)
    row = [cell for cell in first.cells if cell.cell.row == "FedSCL, every level"]
    assert [cell.cell.column for cell in row[::2]] == ["0.1, 0.5", "1, 0.5", "10, 0.5"]
    for cell, accuracy in zip(row, (50.0, 52.0, 60.0, 60.0, 61.0), strict=False):
        pretend(cell, [accuracy])
    assert len(plan().cells) == asked  # one seed of the last is missing
    pretend(row[-1], [64.0])
    more = [cell for cell in plan().cells if cell.cell.row == "FedSCL, every level"][6:]
    assert [(cell.cell.column, cell.cell.seed) for cell in more] == [
        ("100, 0.5", 100),
        ("100, 0.5", 101),
    ]
    (section,) = sections_of(plan())
    (chosen,) = section.tables[0].rows
    assert list(chosen) == ["FedSCL, every level", "3", "2", "10, 0.5", "mu, tau", "–"]


# --- what was found is what is used --------------------------------------------------------------

STORED = Path(__file__).parents[2] / "benchmarks" / "results" / "reproduction"


def script() -> dict[str, Any]:
    return runpy.run_path(str(STORED.parents[1] / "chosen_settings.py"))


def test_the_scales_have_what_the_stored_searches_found() -> None:
    made = script()
    for scale, folder in made["STORED"].items():
        searched = {
            dataset: {method: asdict(found) for method, found in methods.items()}
            for dataset, methods in CHOSEN[scale].items()
        }
        assert searched == made["chosen"](folder)
        for dataset, methods in CHOSEN[scale].items():
            for method, found in methods.items():
                if method not in SCALES[scale].methods and ", " not in method:
                    wanted = found.settings[searched_key(method)]
                    assert value_of(scale, dataset, method) == wanted
    assert MINI.methods == {"dcfl-pw": {"mu": 1.0}}
    assert value_of("mini", "cifar10", "dcfl-pw") == 1


def value_of(scale: str, dataset: str, method: str) -> Any:
    experiment = SCALES[scale].experiment(Where(dataset, 0.3, 0.05), method, 0, {}, {})
    section, _, name = searched_key(method).partition(".")
    return getattr(getattr(experiment, section), name)


def test_a_data_set_that_was_not_searched_borrows_or_has_the_defaults() -> None:
    assert value_of("mini", "tiny-imagenet", "fedrcl") == value_of("mini", "cifar10", "fedrcl")
    assert value_of("pretrained", "cifar100", "fedrcl") == METHODS["fedrcl"]().mu  # type: ignore[attr-defined]


def test_levels_have_what_their_search_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [
        '"FedSCL, every level","1, 0.5",60',
        '"FedSCL, every level","10, 0.5",62',
        '"FedSCL, last level","1, 0.2",61',
    ]
    text = "\n".join(["block,row,column,ema", *(f"cifar10,{run}" for run in runs)])
    (tmp_path / "levels-search-runs.csv").write_text(text)
    found = script()["chosen"](tmp_path)["cifar10"]
    assert found.keys() == {"fedscl, every level", "fedscl, last level"}
    monkeypatch.setitem(
        CHOSEN, "mini", {"cifar10": {name: Searched(**one) for name, one in found.items()}}
    )
    cells = [cell for cell in RECIPES["levels"].cells(MINI, (0,)) if cell.row == "FedSCL"]
    methods: list[Any] = [cell.experiment.method for cell in cells]
    assert {(m.levels, m.mu, m.temperature) for m in methods} == {
        ("all", 10.0, 0.5),
        ("last", 1.0, 0.2),
    }
    rows = settings_table(MINI, cells[:2]).rows
    assert rows == [
        ("FedSCL", "mu 1, temperature 0.2", "searched, best of 1, at their edge, seeds: 1"),
        ("FedSCL", "mu 10, temperature 0.5", "searched, best of 2, at their edge, seeds: 1"),
    ]


@pytest.mark.parametrize("name", LEVELLED)
def test_methods_differ_in_the_level_alone(name: str) -> None:
    cells = [cell for cell in RECIPES["levels"].cells(MINI, (0,)) if cell.row == name]
    blocks = Counter(cell.block for cell in cells)
    assert blocks == dict.fromkeys(
        ["cifar10, 0.3", "cifar10, iid", "cifar100, 0.3", "cifar100, iid"], 2
    )
    for cell in cells:
        method: Any = cell.experiment.method
        assert method.levels == {"last level": "last", "every level": "all"}[cell.column]
        assert cell.experiment.model.head == "none"
        assert type(method) is METHODS[ROWS[name]]


def test_what_has_diverged_with_one_seed_is_not_chosen(tmp_path: Path) -> None:
    lines = ["block,row,column,ema", "cifar10,FedAvg,,70"]
    lines += ["cifar10,FedAvg,0.1,61", "cifar10,FedAvg,0.1,63", "cifar10,FedAvg,0.2,90"]
    (tmp_path / "lr-search-runs.csv").write_text("\n".join(lines))
    lines = ["block,row,column,ema", "cifar10,FedSOL,2,61", "cifar10,FedSOL,1,62"]
    lines += ["cifar10,FedSOL,0.5,60"]
    (tmp_path / "mu-search-runs.csv").write_text("\n".join(lines))
    assert script()["chosen"](tmp_path) == {
        "cifar10": {
            "fedavg": {"settings": {"training.lr": 0.1}, "trials": 1, "seeds": 2, "at_edge": True},
            "fedsol": {"settings": {"method.rho": 1.0}, "trials": 3, "seeds": 1, "at_edge": False},
        }
    }
