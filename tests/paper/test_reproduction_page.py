"""The files that a recipe leaves behind, read back."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from dcfl.paper.recipe_book import RECIPES
from dcfl.paper.reproduction_files import plain_results, write_results
from dcfl.paper.results import Results
from dcfl.paper.scales import SMOKE
from tests.paper.hand_made import cell_folders_in, cells_of, pretend

GRIDS = ["mu-search", "server-side", "levels"]  # one of each layout


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


def test_the_csv_holds_the_same_numbers(ablation: tuple[Results, dict[str, str]]) -> None:
    results, texts = ablation
    rows = rows_of(texts[".csv"])
    assert len(rows) == 4 * 2 * 3 * 5  # metrics, data sets, splits, rows
    for row in rows:
        entry = results.entries[row["block"], row["column"]][row["row"]]
        spread = entry.spread(row["metric"])  # type: ignore[arg-type]
        assert int(row["seeds"]) == spread.count
        assert float(row["ours"]) == pytest.approx(spread.mean, abs=6e-4)
        if spread.deviation is None:
            assert row["deviation"] == ""
        else:
            assert float(row["deviation"]) == pytest.approx(spread.deviation, abs=6e-4)
        assert (row["paper"] == "") == (row["row"] == "FedAvg") == (row["difference"] == "")
        if row["paper"]:
            gap = float(row["ours"]) - float(row["paper"])
            assert float(row["difference"]) == pytest.approx(gap, abs=2e-3)
        else:
            assert row["gain"] == row["wins"] == row["pairs"] == ""
    last = rows[-1]
    assert (last["row"], last["seeds"], last["pairs"]) == (
        "DCFL-PW align=0.9 uniform=0.1",
        "1",
        "1",
    )


def test_the_paper_is_quoted(ablation: tuple[Results, dict[str, str]]) -> None:
    row = next(
        row
        for row in rows_of(ablation[1][".csv"])
        if row["row"] == "DCFL-SW align=0.3 uniform=0.7"
        and (row["block"], row["column"], row["metric"]) == ("cifar10", "0.3", "ema")
    )
    assert float(row["paper"]) == 10.26
    assert "| 10.26 |" in ablation[1][".md"]
    assert "& 10.26 &" in ablation[1][".tex"]
    assert ">10.26<" in ablation[1][".html"]


def test_every_run_is_in_the_other_csv(ablation: tuple[Results, dict[str, str]]) -> None:
    rows = rows_of(ablation[1]["-runs.csv"])
    assert len({row["cell"] for row in rows}) == len(rows) == 59
    for row in rows:
        assert float(row["max"]) == pytest.approx(float(row["final"]))
        assert float(row["ema"]) == pytest.approx(float(row["max"]) - 2.25, abs=2e-3)
        assert row["weights_sha256"] == "5" * 64
        assert row["cell"].endswith(f"seed{row['seed']}")


def test_the_clients_own_mixes_are_beside_the_paper_too(
    ablation: tuple[Results, dict[str, str]],
) -> None:
    """Each is one point less than on the whole test set, and is held against the same figures."""
    rows = rows_of(ablation[1][".csv"])
    whole = {(r["block"], r["column"], r["row"], r["metric"]): r for r in rows}
    for (*place, metric), row in whole.items():
        if metric.startswith("client-"):
            other = whole[(*place, metric.removeprefix("client-"))]  # type: ignore[index]
            assert float(row["ours"]) == pytest.approx(float(other["ours"]) - 1, abs=2e-3)
            assert row["paper"] == other["paper"]
            assert row["gain"] == other["gain"]
    for run in rows_of(ablation[1]["-runs.csv"]):
        assert float(run["client_max"]) == pytest.approx(float(run["max"]) - 1, abs=2e-3)
        assert float(run["client_ema"]) == pytest.approx(float(run["ema"]) - 1, abs=2e-3)
    assert "own mixes of classes" in ablation[1][".md"]


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
    assert check_markdown(texts[".md"]) == 3 * 6 + 1  # with all pairs; and the ranks
    for page in (texts[".md"], texts[".html"]):
        assert "1 cell of 60 is not finished." in page


@pytest.mark.parametrize("recipe", GRIDS)
def test_grids_are_whole_with_missing_cells_too(recipe: str, tmp_path: Path) -> None:
    count = len(cells_of(recipe))
    some = some_results(tmp_path, recipe, missing=range(0, count, 3))
    texts = written(some, tmp_path)
    check_all(texts, tmp_path)
    assert f"{some.finished} of {count} finished" in texts[".html"]
    assert "not finished." in texts[".md"]
    rows = rows_of(texts[".csv"])
    assert len(rows) == 4 * some.finished
    # Every mean is in the table that a person reads.
    for row in rows:
        assert f"{float(row['ours']):.1f}" in texts[".md"]


@pytest.mark.parametrize("recipe", ["participation-2", "ablation", "lr-search", "weight-search"])
def test_nothing_is_finished_yet(recipe: str, tmp_path: Path) -> None:
    folders = cell_folders_in(tmp_path, cells_of(recipe))
    texts = written(Results(RECIPES[recipe], SMOKE, folders), tmp_path)
    check_all(texts, tmp_path)
    assert f"{len(folders)} cells of {len(folders)} are not finished." in texts[".md"]
    assert rows_of(texts[".csv"]) == rows_of(texts["-runs.csv"]) == []


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
    assert "2 of the 2 inequalities" in texts[".html"]
    assert re.findall(r"\| (\S+ < \S+) \| 2 of 2 \| 2 of 2 \| (\d+ of \d+) \|", texts[".md"]) == [
        ("FedProc < DCFL-PW", "36 of 42")
    ]
    assert "| 1 (1) |" in texts[".md"]
    assert "| 2 (2) |" in texts[".md"]


def test_dcfl_against_every_other_method_is_in_every_output(tmp_path: Path) -> None:
    """One place: DCFL-SW above all but MOON by both measures, DCFL-PW below FedSCL only by MAX."""
    folders = cell_folders_in(tmp_path, cells_of("participation-5"))
    scores = {"MOON": 50.0, "DCFL-SW": 45.0, "FedSCL": 40.0, "DCFL-PW": 40.0}
    for one in folders:
        cell = one.cell
        if (cell.block, cell.column) == ("cifar10", "iid") and cell.row in scores:
            late = 1.0 if cell.row == "FedSCL" else 0.0  # a better round, which EMA hardly sees
            pretend(one, [scores[cell.row] - late, scores[cell.row] + late])
    results = Results(RECIPES["participation-5"], SMOKE, folders)
    texts = written(results, tmp_path)
    check_all(texts, tmp_path)
    claim = "| MOON < DCFL-PW | 0 of 2 | 2 of 2 | 40 of 42 |"
    assert claim in texts[".md"]
    assert "| FedSCL < DCFL-SW | 2 of 2 | 2 of 2 | 42 of 42 |" in texts[".md"]
    assert "0 of 2 & 2 of 2 & 40 of 42" in texts[".tex"]
    assert "DCFL is above every other method in 0 of 2; in the paper" in texts[".html"]
    order = {row["Claim"]: row for row in rows_of(texts["-order.csv"])}
    assert order["MOON < DCFL-PW"]["ours"] == "0 of 2"
    assert order["FedSCL < DCFL-PW"]["ours"] == "1 of 2"
    assert order["every other < DCFL"]["paper, same cells"] == "2 of 2"
    plain = json.loads(json.dumps(plain_results(results)))
    assert plain["lead"] == {"low": "every other", "high": "DCFL", "ours": 0, "papers": 2, "of": 2}
    assert {"low": "MOON", "high": "DCFL-SW", "ours": 0, "papers": 2, "of": 2} in plain["order"]


def test_for_programs_the_same_numbers(ablation: tuple[Results, dict[str, str]]) -> None:
    results, texts = ablation
    plain = json.loads(json.dumps(plain_results(results), allow_nan=False))
    assert (plain["finished"], plain["cells"]) == (59, 60)
    words = ("recipe", "scale", "block", "column", "row", "metric")
    for row, text in zip(plain["rows"], rows_of(texts[".csv"]), strict=True):
        assert row == {
            key: value if key in words else float(value) if value else None
            for key, value in text.items()
        }


def test_settings_on_top_are_confessed(tmp_path: Path) -> None:
    folders = cell_folders_in(tmp_path, cells_of("ablation"))
    results = Results(RECIPES["ablation"], SMOKE, folders, ["federation.rounds=7"])
    texts = written(results, tmp_path)
    assert "federation.rounds=7" in texts[".md"]
    assert "federation.rounds=7" in texts[".html"]
