"""Means, pairs, ranks and the order check, beside a transcription that shares no code with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp  # type: ignore[import-untyped]

from dcfl.comparisons.cells import FAILED, CellFolder
from dcfl.comparisons.crew import Trainer
from dcfl.config import apply, as_tables
from dcfl.errors import RunFolderError
from dcfl.paper.recipe import ROWS, RecipeCell
from dcfl.paper.recipe_book import HARD, RECIPES
from dcfl.paper.reproduction_files import write_results
from dcfl.paper.results import (
    CLAIMS,
    ClaimCheck,
    MethodScore,
    Results,
    claim_checks,
    head_of,
    published,
)
from dcfl.paper.scales import MINI, SMOKE
from tests.paper.hand_made import cell_folders_in, cells_of, pretend

SEEDS = (0, 1, 2)
Values = dict[tuple[str, str, str, int], dict[str, float]]  # block, column, row and seed


def scored(first: float, second: float) -> dict[str, float]:
    """MAX is the best round, EMA the last value of the moving average."""
    return {"max": max(first, second), "ema": 0.9 * first + 0.1 * second}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Values]:
    """The 5 % table with random results: some cells were never begun, some have not ended, and a
    few are equal."""
    rng = np.random.default_rng(0)
    folders = cell_folders_in(tmp_path_factory.mktemp("out"), cells_of("participation-5", SEEDS))
    values: Values = {}
    for one in folders:
        first, second = (float(value) for value in rng.integers(50, 60, 2))  # coarse, for ties
        fate = rng.choice(["finished", "unfinished", "absent"], p=[0.8, 0.1, 0.1])
        if fate != "absent":
            pretend(one, [first, second], finished=fate == "finished")
        if fate == "finished":
            cell = one.cell
            values[cell.block, cell.column, cell.row, cell.seed] = scored(first, second)
    return Results(RECIPES["participation-5"], SMOKE, folders), values


def array(values: Values, block: str, column: str, row: str, metric: str) -> np.ndarray:
    """By seed, with NaN where there is no result."""
    return np.array(
        [values.get((block, column, row, seed), {}).get(metric, np.nan) for seed in SEEDS]
    )


def test_the_fixture_has_what_is_hard(table: tuple[Results, Values]) -> None:
    results, values = table
    assert 0 < len(values) < len(results.cells) == 180
    assert len(results.finished) == len(values)
    means = [
        (place, entry.spread("max").mean)
        for place, rows in results.entries.items()
        for entry in rows.values()
    ]
    assert len(set(means)) < len(means)  # ties


def test_means_and_deviations_are_over_the_finished_seeds(table: tuple[Results, Values]) -> None:
    results, values = table
    seen = 0
    for (block, column), rows in results.entries.items():
        for row, entry in rows.items():
            for metric in ("max", "ema"):
                own = array(values, block, column, row, metric)
                there = own[~np.isnan(own)]
                spread = entry.spread(metric)
                assert spread.count == len(there)
                assert spread.mean == pytest.approx(there.mean())
                if len(there) > 1:
                    assert spread.deviation == pytest.approx(there.std(ddof=1))
                else:
                    assert spread.deviation is None
                seen += spread.count
    assert seen == 2 * len(values)


def test_pairs_are_of_the_same_seed(table: tuple[Results, Values]) -> None:
    results, values = table
    lonely = 0
    for place, rows in results.entries.items():
        for row, entry in rows.items():
            gaps = array(values, *place, row, "ema") - array(values, *place, "FedAvg", "ema")
            gaps = gaps[~np.isnan(gaps)]
            paired = results.against_reference(place, "ema").get(row)
            if row == "FedAvg" or not len(gaps):
                assert paired is None
                continue
            assert paired is not None
            assert paired.paired.differences == pytest.approx(tuple(gaps))
            assert paired.paired.wins == (gaps > 1e-9).sum()
            lonely += len(gaps) < entry.spread("ema").count
    assert lonely  # FedAvg's seed was missing somewhere


def test_the_order_check_counts_what_the_paper_claims(table: tuple[Results, Values]) -> None:
    """By a paired t-test of SciPy's."""
    results, values = table
    paper = published()["tables"]["participation-5"]
    seen = 0
    for check, (low, high) in zip(claim_checks(results.contests), CLAIMS, strict=True):
        counts = {1: 0, -1: 0, 0: 0}
        theirs = 0
        for block in ("cifar10", "cifar100"):
            for split in ("iid", "0.5", "0.3"):
                for metric in ("max", "ema"):
                    a, b = (array(values, block, split, row, metric) for row in (low, high))
                    if np.isnan(a).all() or np.isnan(b).all():
                        continue
                    gaps = (b - a)[~np.isnan(a) & ~np.isnan(b)]
                    alike = len(gaps) < 2 or np.ptp(gaps) == 0
                    sure = not alike and ttest_1samp(gaps, 0).pvalue < 0.05
                    counts[int(np.sign(gaps.mean())) if sure else 0] += 1
                    theirs += paper[low][block][split][metric] < paper[high][block][split][metric]
        assert (check.low, check.high) == (low, high)
        assert (check.holds, check.fails, check.ties) == (counts[1], counts[-1], counts[0])
        assert check.papers == theirs
        seen += check.holds
    assert seen


@pytest.mark.parametrize(
    ("gaps", "found"),
    [
        ((0.51, -0.505), "ties"),  # as at `mini` on an even split: 0.0025 points on average
        ((0.003, 0.002, 0.0025), "holds"),
        ((-1.0, -1.1, -0.9), "fails"),
        ((3.0,), "ties"),  # one seed
        ((0.0, 0.0, 0.0), "ties"),
        ((1.0, -3.0, 4.0), "ties"),
    ],
)
def test_what_seeds_do_not_tell_apart_is_a_tie(gaps: tuple[float, ...], found: str) -> None:
    low = MethodScore(dict.fromkeys(range(len(gaps)), 50.0), 60.0)
    high = MethodScore({seed: 50.0 + gap for seed, gap in enumerate(gaps)}, 61.0)
    check = ClaimCheck.over("FedAvg", "FedProc", [{"FedAvg": low, "FedProc": high}, {"MOON": low}])
    assert (check.papers, check.of) == (1, 1)
    assert getattr(check, found) == 1


def test_terms_on_different_heads_are_not_compared() -> None:
    """As at `mini`, where FedProc has a head and DCFL none."""

    def check(low: str, high: str) -> ClaimCheck:
        ours = {0: 1.0, 1: 1.1}
        scores = {
            "FedAvg": MethodScore(ours, 1.0, ""),
            "FedProc": MethodScore(ours, 1.0, "side256"),
            "DCFL-PW": MethodScore(ours, 2.0, "none"),
        }
        return ClaimCheck.over(low, high, [scores])

    assert check("FedProc", "DCFL-PW").of == 0
    assert check("FedAvg", "DCFL-PW").of == check("FedAvg", "FedProc").of == 1
    heads = {
        row: head_of(as_tables(MINI.experiment(HARD, method, 0, {}, {})))
        for row, method in ROWS.items()
    }
    assert (heads["FedAvg"], heads["FedDecorr"], heads["FedProx"]) == ("", "", "")
    assert heads["DCFL-PW"] == heads["DCFL-SW"] == "none"
    assert heads["FedProc"] == heads["FedSCL"] == heads["MOON"] == "side256"


def test_the_papers_own_figures_hold_as_often_as_section_6_says(tmp_path: Path) -> None:
    """Cells that got exactly what the paper got, in all four tables."""
    contests = []
    for name in ("participation-5", "participation-10", "participation-2", "tiny-imagenet"):
        folders = cell_folders_in(tmp_path, cells_of(name))
        for one in folders:
            figures = published()["tables"][name][one.cell.row][one.cell.block][one.cell.column]
            # The two rounds whose MAX and EMA these are: the better one is the last.
            first = (figures["ema"] - 0.1 * figures["max"]) / 0.9
            pretend(one, [first, figures["max"]])
        contests += Results(RECIPES[name], SMOKE, folders).contests
    found = claim_checks(contests)
    assert [check.papers for check in found] == [42, 42, 37, 36, 38, 36]
    assert {check.of for check in found} == {42}


@pytest.mark.parametrize("recipe", ["levels-search", "mu-search"])
def test_one_fedavg_may_be_the_reference_of_a_whole_block(recipe: str, tmp_path: Path) -> None:
    folders = cell_folders_in(tmp_path, cells_of(recipe))
    for number, one in enumerate(folders):
        pretend(one, [50.0 + number, 50.0 + number])
    results = Results(RECIPES[recipe], SMOKE, folders)
    (alone,) = (
        number
        for number, one in enumerate(folders)
        if one.cell.row == "FedAvg" and one.cell.block == "cifar10"
    )
    for number, one in enumerate(folders):
        cell = one.cell
        if cell.block != "cifar10" or cell.row == "FedAvg":
            continue
        place = (cell.block, cell.column)
        paired = results.against_reference(place, "ema")[cell.row]
        assert paired.paired.differences == pytest.approx((number - alone,))
    assert "" not in results.columns("cifar10")


def test_rows_come_in_the_recipes_order_whatever_was_finished_first(tmp_path: Path) -> None:
    folders = cell_folders_in(tmp_path, cells_of("participation-5", (0, 1)))
    done = [
        one
        for one in folders
        if (one.cell.block, one.cell.column) == ("cifar10", "iid")
        and (one.cell.row, one.cell.seed) != ("FedAvg", 0)
    ]
    for one in done:
        pretend(one, [1.0, 2.0])
    results = Results(RECIPES["participation-5"], SMOKE, folders)
    assert next(iter(results.entries["cifar10", "iid"])) == "FedAvg"


def test_a_run_with_other_settings_is_not_taken_for_a_result(tmp_path: Path) -> None:
    (cell_folder,) = cell_folders_in(tmp_path, cells_of("similarity"))[:1]
    pretend(cell_folder, [1.0, 2.0])
    for section, key, value in (
        ("training", "lr", 0.123),
        ("federation", "rounds", 3),
        ("data", "alpha", 7.0),
        ("model", "width", 7),
        ("method", "mu", 0.5),
        ("engine", "precision", "bfloat16"),
    ):
        part = getattr(cell_folder.cell.experiment, section)
        if not hasattr(part, key):
            continue
        changed = replace(cell_folder.cell.experiment, **{section: replace(part, **{key: value})})
        other = CellFolder(replace(cell_folder.cell, experiment=changed), cell_folder.path)
        with pytest.raises(RunFolderError, match=rf"{section}\.{key}") as refused:
            _ = other.finished
        assert str(cell_folder.path) in str(refused.value)
    elsewhere = replace(
        cell_folder.cell.experiment,
        engine=replace(cell_folder.cell.experiment.engine, device="cpu", workers=3),
        data=replace(cell_folder.cell.experiment.data, path="/elsewhere"),
    )
    assert CellFolder(replace(cell_folder.cell, experiment=elsewhere), cell_folder.path).finished


def diverging(tmp_path: Path) -> CellFolder[RecipeCell]:
    cell = next(iter(RECIPES["ablation"].cells(SMOKE, [0])))
    wild = {"training": {"lr": 1e30, "max_grad_norm": 0.0}, "federation": {"rounds": 4}}
    return CellFolder(replace(cell, experiment=apply(cell.experiment, wild)), tmp_path / cell.name)


def test_it_is_said_once_and_not_tried_again(tmp_path: Path) -> None:
    cell_folder = diverging(tmp_path)
    *_, news = Trainer().train(cell_folder)
    assert news.state == "failed"
    again = CellFolder(cell_folder.cell, cell_folder.path)
    assert again.ended
    assert not again.finished
    assert again.rounds_left == 0
    assert again.failed == news.why == (cell_folder.path / FAILED).read_text()


def test_the_tables_name_it(tmp_path: Path) -> None:
    cell_folder = diverging(tmp_path)
    list(Trainer().train(cell_folder))
    results = Results(RECIPES["ablation"], SMOKE, [CellFolder(cell_folder.cell, cell_folder.path)])
    write_results(results, tmp_path)
    assert f"{cell_folder.cell.name} failed: no client" in (tmp_path / "ablation.md").read_text()


def test_a_missing_data_set_is_nobodys_result(tmp_path: Path) -> None:
    cell_folder = diverging(tmp_path)
    elsewhere = {"data": {"dataset": "cifar10", "path": str(tmp_path)}}
    cell = replace(cell_folder.cell, experiment=apply(cell_folder.cell.experiment, elsewhere))
    *_, news = Trainer().train(CellFolder(cell, cell_folder.path))
    assert news.state == "failed"
    assert not CellFolder(cell_folder.cell, cell_folder.path).ended
