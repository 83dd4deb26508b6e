"""Searches of recipes: equal budgets, and what stored cells lead to."""

from __future__ import annotations

import csv
import runpy
from collections import Counter, defaultdict
from math import log10
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from dcfl.methods import METHODS
from dcfl.paper.plans import plan_recipe
from dcfl.paper.recipe import ROWS, RecipeCell, values_of
from dcfl.paper.recipe_book import HARD, LEVELLED, RECIPES
from dcfl.paper.reproduction_page import sections_of
from dcfl.paper.scales import CHOSEN, MINI, PRETRAINED, SCALES, SMOKE, Where
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
    (section,) = sections_of(plan().results())
    (chosen,) = section.tables[0].rows
    assert list(chosen) == ["FedSCL, every level", "3", "2", "10, 0.5", "mu, tau", "–"]


# --- what was found is what is used --------------------------------------------------------------

STORED = Path(__file__).parents[2] / "benchmarks" / "results" / "reproduction"


def winners(search: str, folder: Path = STORED) -> dict[str, tuple[float, ...]]:
    """By row of a stored search on CIFAR-10, the values with the highest mean EMA."""
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (folder / f"{search}-runs.csv").open(encoding="utf-8", newline="") as stream:
        for run in csv.DictReader(stream):
            if run["block"] == HARD.dataset and run["column"]:
                scores[run["row"]][run["column"]].append(float(run["ema"]))
    return {
        row: values_of(max(columns, key=lambda column: fmean(columns[column])))
        for row, columns in scores.items()
    }


def test_every_method_has_what_the_stored_search_found() -> None:
    for row, (best,) in winners("mu-search").items():
        if row == "DCFL-PW":  # searched with a side head; a new search decides
            continue
        method: Any = MINI.experiment(HARD, ROWS[row], 0, {}, {}).method
        assert getattr(method, "rho" if row == "FedSOL" else "mu") == best, row
    ((best,),) = winners("lr-search").values()
    assert MINI.experiment(HARD, "fedavg", 0, {}, {}).training.lr == best


def levels_found(folder: Path) -> dict[tuple[str, str], dict[str, float]]:
    """Nothing where no search is stored."""
    if not (folder / "levels-search-runs.csv").exists():
        return {}
    found = {}
    for row, (mu, temperature) in winners("levels-search", folder).items():
        name, where = row.split(", ")
        levels = "all" if where == "every level" else "last"
        found[ROWS[name], levels] = {"mu": mu, "temperature": temperature}
    return found


def test_levels_have_what_their_search_found(tmp_path: Path) -> None:
    runs = [
        '"FedSCL, every level","1, 0.5",60',
        '"FedSCL, every level","10, 0.5",62',
        '"FedSCL, last level","1, 0.2",61',
    ]
    text = "\n".join(["block,row,column,ema", *(f"cifar10,{run}" for run in runs)])
    (tmp_path / "levels-search-runs.csv").write_text(text)
    assert levels_found(tmp_path) == {
        ("fedscl", "all"): {"mu": 10.0, "temperature": 0.5},
        ("fedscl", "last"): {"mu": 1.0, "temperature": 0.2},
    }
    assert MINI.levels == levels_found(STORED)


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


def test_pretrained_has_what_its_stored_searches_found(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "chosen_settings.py"
    chosen = runpy.run_path(str(script))["chosen"]
    lines = ["block,row,column,ema", "cifar10,FedAvg,,70"]
    lines += ["cifar10,FedAvg,0.1,61", "cifar10,FedAvg,0.1,63", "cifar10,FedAvg,0.2,90"]
    (tmp_path / "lr-search-runs.csv").write_text("\n".join(lines))
    lines = ["block,row,column,ema", "cifar10,FedAvg,,70", "cifar10,FedSOL,2,61"]
    lines += [
        "cifar10,MOON,0.1,61",
        "cifar10,MOON,0.1,61",
        "cifar10,MOON,1,62",
        "cifar10,MOON,1,62",
    ]
    (tmp_path / "mu-search-runs.csv").write_text("\n".join(lines))
    methods = {"fedsol": {"rho": 2.0}, "moon": {"mu": 1.0}}
    # 0.2 has diverged with one of the seeds.
    assert chosen(tmp_path) == {"cifar10": {"lr": 0.1, "methods": methods}}
    assert chosen() == CHOSEN
    for dataset, one in CHOSEN.items():
        for method, fields in one["methods"].items():
            where = Where(dataset, 0.3, 0.05)
            experiment = PRETRAINED.experiment(where, method, 0, {}, {})
            assert experiment.training.lr == one["lr"]
            assert {key: getattr(experiment.method, key) for key in fields} == fields
