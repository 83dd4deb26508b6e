"""The files that a recipe leaves behind, read back."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from dcfl.paper.plans import with_settings
from dcfl.paper.recipe_book import RECIPES
from dcfl.paper.reproduction_files import plain_results, write_results
from dcfl.paper.reproduction_page import settings_table
from dcfl.paper.results import Results
from dcfl.paper.scales import MINI, PRETRAINED, SMOKE, Scale
from tests.paper.hand_made import cell_folders_in, cells_of, pretend

GRIDS = ["mu-search", "readings", "levels"]  # one of each layout


def some_results(
    out: Path, recipe: str, seeds: Sequence[int] = (0,), missing: Sequence[int] = ()
) -> Results:
    """All cells but those by these numbers."""
    folders = cell_folders_in(out, cells_of(recipe, seeds))
    for number, one in enumerate(folders):
        if number not in missing and not one.path.exists():
            first = 10.0 + (7 * number) % 31 + 0.125 * one.cell.seed
            pretend(one, [first, first + 2.5])
    return Results(RECIPES[recipe], SMOKE, folders)


def written(results: Results, out: Path) -> dict[str, str]:
    """By what comes after the recipe's name."""
    paths = write_results(results, out)
    name = results.recipe.name
    return {path.name.removeprefix(name): path.read_text(encoding="utf-8") for path in paths}


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, dict[str, str]]:
    """Two seeds; DCFL-PW's last cell is missing."""
    out = tmp_path_factory.mktemp("ablation")
    results = some_results(out, "ablation", (0, 1), missing=(59,))
    return results, written(results, out)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_programs_get_the_same_numbers(ablation: tuple[Results, dict[str, str]]) -> None:
    results, _ = ablation
    plain = json.loads(json.dumps(plain_results(results), allow_nan=False))
    assert (plain["finished"], plain["cells"]) == (59, 60)
    assert len(plain["runs"]) == 59
    assert len(plain["compared"]) == 2 * 2 * 3 * 4  # metrics, data sets, splits, rows but FedAvg
    for one in plain["compared"]:
        pairs = results.against_reference((one["block"], one["column"]), one["metric"])
        assert one["mean"] == pairs[one["method"]].paired.spread.mean
        assert one["other"] == "FedAvg"
    assert plain["compared"][-1]["count"] == 1  # where a seed is missing


def test_the_paper_is_quoted(ablation: tuple[Results, dict[str, str]]) -> None:
    results, texts = ablation
    row = results.entries["cifar10", "0.3"]["DCFL-SW align=0.3 uniform=0.7"]
    assert row.paper["ema"] == 10.26
    assert "| 10.26 |" in texts[".md"]
    assert "& 10.26 &" in texts[".tex"]
    assert ">10.26<" in texts[".html"]


def test_every_run_is_in_the_other_csv(ablation: tuple[Results, dict[str, str]]) -> None:
    rows = rows_of(ablation[1]["-runs.csv"])
    assert len({row["cell"] for row in rows}) == len(rows) == 59
    for row in rows:
        assert float(row["max"]) == pytest.approx(float(row["final"]))
        assert float(row["ema"]) == pytest.approx(float(row["max"]) - 2.25, abs=2e-3)
        assert row["weights_sha256"] == "5" * 64
        assert row["cell"].endswith(f"seed{row['seed']}")
        # On the clients' own mixes of classes each is one point less.
        assert float(row["client_max"]) == pytest.approx(float(row["max"]) - 1, abs=2e-3)
        assert float(row["client_ema"]) == pytest.approx(float(row["ema"]) - 1, abs=2e-3)


def test_no_heading_is_said_twice(ablation: tuple[Results, dict[str, str]]) -> None:
    lines = [line.strip("#* ") for line in ablation[1][".md"].splitlines() if line.strip()]
    assert all(a != b for a, b in pairwise(lines))


def check_markdown(text: str) -> int:
    """The number of tables; every one is a rectangle."""
    tables = re.findall(r"(?:^\|.*\|\n?)+", text, re.MULTILINE)
    for table in tables:
        widths = {len(re.split(r"(?<!\\)\|", line)) for line in table.strip().splitlines()}
        assert len(widths) == 1, table
        assert re.match(r"\| --- (\| ---: )*\|$", table.splitlines()[1])
    return len(tables)


def check_latex(text: str) -> int:
    """The number of tables: what a compiler would stumble over."""
    tables = re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.DOTALL)
    assert len(tables) == text.count(r"\begin{") == text.count(r"\end{")
    for columns, body in tables:
        for line in body.strip().splitlines():
            if line in (r"\toprule", r"\midrule", r"\bottomrule"):
                continue
            assert line.endswith(r" \\"), line
            assert len(re.split(r"(?<!\\)&", line)) == len(columns), line
        assert set(columns) == {"l", "r"} or columns == "l"
    bare = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert not re.findall(r"(?<!\\)[%#]", bare)
    assert not re.findall(r"(?<!\\)_", bare)
    assert len(re.findall(r"(?<!\\)\$", bare)) % 2 == 0
    assert bare.isascii(), [c for c in bare if not c.isascii()]
    return len(tables)


def check_html(text: str) -> None:
    assert not re.findall(r"(?:src|href)=[\"'](?!data:|#)", text)
    assert not re.findall(r"url\((?!['\"]?(?:data:|#))", text)
    assert not re.search(r"<script[^>]*src", text)
    assert text.count("<table") == text.count("</table>")
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        counts = {len(re.findall(r"<t[hd]\b", row)) for row in table.split("<tr>")[1:]}
        assert len(counts) == 1


def check_all(texts: dict[str, str], out: Path) -> None:
    assert check_markdown(texts[".md"]) == check_latex(texts[".tex"])
    check_html(texts[".html"])
    assert texts[".md"].endswith("\n")
    for text in texts.values():
        assert str(out) not in text
        assert not re.search(r"(?<![\w.])/(?:tmp|home|root|work|Users)/", text)
        assert not re.search(r"\bnan\b", text)


def test_tables_are_whole_in_every_format(ablation: tuple[Results, dict[str, str]]) -> None:
    results, texts = ablation
    check_all(texts, results.cells[0].path.parent.parent)
    assert check_markdown(texts[".md"]) == 6
    for page in (texts[".md"], texts[".html"]):
        assert "1 cell of 60 is not finished." in page


@pytest.mark.parametrize("recipe", GRIDS)
def test_grids_are_whole_with_missing_cells_too(recipe: str, tmp_path: Path) -> None:
    count = len(cells_of(recipe))
    some = some_results(tmp_path, recipe, missing=range(0, count, 3))
    texts = written(some, tmp_path)
    check_all(texts, tmp_path)
    assert f"{len(some.finished)} of {count} finished" in texts[".html"]
    assert "not finished." in texts[".md"]
    # Every mean is in the table that a person reads.
    for rows in some.entries.values():
        for row in rows.values():
            assert f"{row.spread('ema').mean:.1f}" in texts[".md"]


@pytest.mark.parametrize("recipe", ["participation-2", "ablation", "lr-search"])
def test_nothing_is_finished_yet(recipe: str, tmp_path: Path) -> None:
    folders = cell_folders_in(tmp_path, cells_of(recipe))
    texts = written(Results(RECIPES[recipe], SMOKE, folders), tmp_path)
    check_all(texts, tmp_path)
    assert f"{len(folders)} cells of {len(folders)} are not finished." in texts[".md"]
    assert rows_of(texts["-runs.csv"]) == []


def test_only_some_methods_of_one_place(tmp_path: Path) -> None:
    """No FedAvg to compare with, and nothing on either side of most claims."""
    folders = cell_folders_in(tmp_path, cells_of("participation-5"))
    chosen = [
        one
        for one in folders
        if one.cell.row in ("FedProc", "DCFL-PW")
        and (one.cell.block, one.cell.column) == ("cifar100", "0.5")
    ]
    for one, accuracy in zip(chosen, (40.0, 41.0), strict=True):
        pretend(one, [accuracy, accuracy])
    results = Results(RECIPES["participation-5"], SMOKE, folders)
    texts = written(results, tmp_path)
    check_all(texts, tmp_path)
    assert "Of the 2 inequalities" in texts[".html"]
    assert "| FedProc < DCFL-PW | 0 | 0 | 2 | 2 of 2 |" in texts[".md"]  # one seed tells nothing


def test_the_order_of_the_methods_is_in_every_output(tmp_path: Path) -> None:
    """One place, three seeds: FedProc above FedAvg, DCFL-PW below, DCFL-SW not told apart."""
    folders = cell_folders_in(tmp_path, cells_of("participation-5", (0, 1, 2)))
    gains = {"FedAvg": 0.0, "FedProc": 2.0, "DCFL-PW": -3.0, "DCFL-SW": 0.5}
    for one in folders:
        cell = one.cell
        if (cell.block, cell.column) == ("cifar10", "iid") and cell.row in gains:
            noise = (cell.seed - 1) * (4.0 if cell.row == "DCFL-SW" else 0.1 * gains[cell.row])
            pretend(one, [50.0 + gains[cell.row] + noise])
    results = Results(RECIPES["participation-5"], SMOKE, folders)
    texts = written(results, tmp_path)
    check_all(texts, tmp_path)
    assert "| FedAvg < FedProc | 2 | 0 | 0 | 2 of 2 |" in texts[".md"]
    assert "| FedAvg < DCFL-PW | 0 | 2 | 0 | 2 of 2 |" in texts[".md"]
    assert "| FedAvg < DCFL-SW | 0 | 0 | 2 | 2 of 2 |" in texts[".md"]
    assert "2 hold here, and 4 are the other way round" in texts[".html"]
    assert r"FedAvg $<$ FedProc & 2 & 0 & 0 & 2 of 2" in texts[".tex"]
    order = plain_results(results)["order"]
    assert {
        "low": "FedAvg", "high": "FedProc", "holds": 2, "fails": 0, "ties": 0, "papers": 2,
    } in order  # fmt: skip


def a_table(scale: Scale, dataset: str, *words: str) -> str:
    cells = list(RECIPES["participation-5"].cells(scale, (0,)))
    here = [c for c in cells if (c.block, c.column) == (dataset, "0.3")]
    return settings_table(scale, with_settings(RECIPES["participation-5"], here, words)).markdown()


def test_a_table_says_where_its_settings_come_from() -> None:
    own = a_table(MINI, "cifar10")
    assert "| FedProx | mu 0.001 | searched, best of 3, at their edge, seeds: 1 |" in own
    assert "| MOON | mu 1 | searched, best of 3, seeds: 1 |" in own
    assert "| FedAvg | lr 0.2 | searched, best of 5, seeds: 1 |" in own
    # The search without a head was won by 0.1.
    assert "| DCFL-PW | mu 1 | searched, but 0.1 was the best of 2, at their edge" in own
    borrowed = a_table(MINI, "cifar100")
    assert "| FedProx | mu 0.001 | from cifar10, best of 3, at their edge, seeds: 1 |" in borrowed
    changed = a_table(MINI, "cifar10", "method.mu=5")
    assert "| FedProx | mu 5 | searched, but 0.001 was the best of 3" in changed
    assert "| FedSOL | rho 0.841 | searched, best of 6, seeds: 2 |" in a_table(
        PRETRAINED, "cifar10"
    )
    unknown = a_table(PRETRAINED, "cifar100")
    assert "| FedAvg | lr 0.1 | not searched |" in unknown
    assert not settings_table(SMOKE, cells_of("ablation")).rows


def test_settings_on_top_are_confessed(tmp_path: Path) -> None:
    folders = cell_folders_in(tmp_path, cells_of("ablation"))
    results = Results(RECIPES["ablation"], SMOKE, folders, ["federation.rounds=7"])
    texts = written(results, tmp_path)
    assert "federation.rounds=7" in texts[".md"]
    assert "federation.rounds=7" in texts[".html"]
