"""`dcfl reproduce` as a person types it."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from dcfl.cli import paper_verbs
from dcfl.comparisons.cells import CellFolder
from dcfl.methods import METHODS
from dcfl.paper.recipe import ROWS, RecipeCell, values_of
from dcfl.paper.recipe_book import RECIPES
from dcfl.paper.scales import SMOKE as SMOKE_SCALE
from dcfl.runs.folder import RecordedRun
from dcfl.system.locks import lock
from tests.command_line import Call
from tests.paper.hand_made import cell_folders_in, cells_of, pretend

SMOKE = ("--scale", "smoke", "--out", "out", "--parallel", "1")
AVERAGING = [
    name for name in ROWS.values() if getattr(METHODS[name](), "reduction", "") == "mean"
]  # over positives, unless they are told otherwise


@pytest.fixture
def reproduce(unmeasured: Call) -> Call:
    return partial(unmeasured, "reproduce")


def one_line(answer: tuple[int, str, str], code: int) -> str:
    assert answer[0] == code, answer
    assert answer[1] == ""
    lines = answer[2].strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("dcfl: ")
    return lines[0]


def test_without_a_name_it_lists_the_recipes(reproduce: Call) -> None:
    code, out, _ = reproduce()
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [*RECIPES, "all"]
    code, out, _ = reproduce("--json")
    assert code == 0
    assert set(json.loads(out)) == set(RECIPES)


@pytest.mark.slow
def test_readings_that_do_not_train_are_tried_without_a_warning(tmp_path: Path) -> None:
    """Neither by the command nor by the processes that train: nobody asked for that setting."""
    chosen = ("--only", "p5-dcfl-sw-mu10-reduction-sum-seed0")
    command = [sys.executable, "-m", "dcfl", "reproduce", "readings", *SMOKE, *chosen]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 cells" in done.stderr
    assert "warning" not in done.stderr


def test_the_cost_comes_first_and_a_plan_trains_nothing(reproduce: Call, tmp_path: Path) -> None:
    code, out, err = reproduce("tiny-imagenet", *SMOKE, "--plan")
    assert code == 0
    assert "30 cells, 0 finished; 30 to do take about" in err
    title, columns, *rows = out.splitlines()
    assert title == "Accuracy on Tiny-ImageNet, tiny-imagenet: time left"
    assert columns.split() == ["split", "iid", "0.5", "0.3"]
    assert [row.split()[0] for row in rows if row] == [*ROWS]
    assert all(len(re.findall(r"\d (?:s|min)\b", row)) == 3 for row in rows if row)
    assert [line for line in err.splitlines() if line.startswith("measuring 10/10: dcfl-pw")]
    assert not (tmp_path / "out").exists()
    code, out, _ = reproduce("tiny-imagenet", *SMOKE, "--plan", "--json", "--seeds", "5,6,5")
    names = json.loads(out)
    assert len(names) == 60  # a seed that is named twice counts once
    assert all(name.endswith(("-seed5", "-seed6")) for name in names)


def test_a_plan_needs_no_data(reproduce: Call, tmp_path: Path) -> None:
    words = ("participation-5", "--scale", "mini", "data.path=nowhere", "--plan", "--out", "out")
    code, out, err = reproduce(*words)
    assert code == 0
    assert "how long they take is not known: cifar10: no" in err
    title, _columns, fedavg, *_ = out.splitlines()
    assert title.endswith("cifar10: rounds left, 5 seeds together")
    assert fedavg.split() == ["FedAvg", "2,500", "2,500", "2,500"]
    code, out, _ = reproduce(*words, "--json")
    assert code == 0
    assert all(cell == {"rounds_left": 500, "seconds": None} for cell in json.loads(out).values())


def test_a_plan_says_what_is_done_and_what_has_failed(reproduce: Call, tmp_path: Path) -> None:
    cells = cell_folders_in(tmp_path / "out", cells_of("tiny-imagenet", (0, 1)))
    fedavg, moon, fedsol = (
        [cell for cell in cells if cell.cell.row == row and cell.cell.column == "iid"]
        for row in ("FedAvg", "MOON", "FedSOL")
    )
    for cell in (*fedavg, moon[0]):
        pretend(cell, [10.0, 20.0])
    for cell in fedsol:
        cell.path.mkdir(parents=True)
        (cell.path / "failed.txt").write_text("diverged")
    code, out, _ = reproduce("tiny-imagenet", *SMOKE, "--seeds", "0,1", "--plan")
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    assert rows["FedAvg"].split()[1] == "done"
    assert "(1 of 2 done)" in rows["MOON"]
    assert rows["FedSOL"].split()[1:3] == ["2", "failed"]
    assert f"{fedsol[0].name}  failed: diverged" in out


@pytest.mark.slow
def test_all_has_every_cell_once(reproduce: Call) -> None:
    code, out, _ = reproduce("all", *SMOKE, "--plan", "--json")
    assert code == 0
    wanted = {
        cell.name
        for name, recipe in RECIPES.items()
        for cell in cells_of(name, SMOKE_SCALE.search_seeds if recipe.searched else (0,))
    }
    assert set(json.loads(out)) == wanted


@pytest.mark.slow
def test_a_search_goes_on_from_what_it_found(
    reproduce: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []

    def train(cells: Sequence[CellFolder[RecipeCell]], processes: int) -> int:
        for cell in cells:
            if not CellFolder(cell.cell, cell.path).ended:
                pretend(cell, [50 + values_of(cell.cell.column)[0] / 10])  # the more, the better
                trained.append(cell.cell.column)
        return 0

    monkeypatch.setattr(paper_verbs, "_train", train)
    only = ("--only", "cifar10-0.3-p5-fedscl", "federation.rounds=1")
    for _ in range(2):  # the second time nothing is left
        answer = reproduce("mu-search", *SMOKE, *only)
        assert answer[0] == 0, answer
        assert trained == ["0.1", "1", "10", "100"]
    assert len(trained) == SMOKE_SCALE.trials
    page = (tmp_path / "out" / "mu-search.md").read_text()
    assert "| FedSCL | 4 | 1 | 100 | mu (FedSOL: rho) | – |" in page


def test_one_cell_then_nothing_is_done_again(reproduce: Call, tmp_path: Path) -> None:
    only = ("--only", "cifar100-iid-p2-fedavg", "federation.rounds=1")
    code, out, err = reproduce("ablation", *SMOKE, *only, "--json")
    assert code == 0
    answer = json.loads(out)  # and nothing else
    ablation = answer["recipes"]["ablation"]
    assert (ablation["finished"], ablation["cells"]) == (1, 30)
    assert [(run["block"], run["column"], run["row"]) for run in ablation["runs"]] == [
        ("cifar100", "iid", "FedAvg")
    ]
    assert ablation["compared"] == []
    assert err.splitlines()[1].startswith("1 cells, 0 finished; 1 to do take about")
    assert "[1/1] cifar100-iid-p2-fedavg-rounds1-seed0  finished  MAX" in err
    for path in answer["files"]:
        assert (tmp_path / path).is_file()
    with (tmp_path / "out" / "ablation-runs.csv").open() as stream:
        (run,) = csv.DictReader(stream)
    folder = tmp_path / "out" / "cells" / "cifar100-iid-p2-fedavg-rounds1-seed0"
    summary = json.loads((folder / "summary.json").read_text())
    assert run["weights_sha256"] == summary["weights_sha256"]
    assert run["rounds"] == "1"
    assert "federation.rounds=1" in (tmp_path / "out" / "ablation.md").read_text()
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    code, out, err = reproduce("ablation", *SMOKE, *only)
    assert code == 0
    assert err == "1 cells, nothing left to do\n"
    assert "ablation: 1 of 30 cells" in out
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    # The same folder with other settings.
    folder.rename(folder.with_name("cifar100-iid-p2-fedavg-seed0"))
    said = one_line(reproduce("ablation", *SMOKE, "--only", "p2-dcfl-pw"), 2)
    assert "cifar100-iid-p2-fedavg-seed0 holds another run" in said
    assert "federation.rounds was 1 and would be 2" in said


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.toml", "[data]\ndataset = "),
        ("config.toml", ""),
        ("rounds.jsonl", "\x00\x01 garbage\n"),
        ("rounds.jsonl", "[]\n"),
        ("summary.json", "{half"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_a_damaged_cell_is_named_before_anything_is_trained(
    name: str, text: str, finished: bool, reproduce: Call, tmp_path: Path
) -> None:
    cell_folder = cell_folders_in(tmp_path / "out", cells_of("similarity"))[1]
    pretend(cell_folder, [1.0, 2.0], finished)
    (cell_folder.path / name).write_text(text)
    said = one_line(reproduce("similarity", *SMOKE), 2)
    assert f"{cell_folder.cell.name}/{name}" in said


@pytest.mark.slow
def test_a_cell_in_use_is_reported_and_the_rest_is_written(reproduce: Call, tmp_path: Path) -> None:
    cell_folder = cell_folders_in(tmp_path / "out", cells_of("similarity"))[0]
    cell_folder.path.mkdir(parents=True)
    held = lock(cell_folder.path)
    code, out, err = reproduce("similarity", *SMOKE, "--only", cell_folder.cell.name, "--json")
    held.close()
    assert code == 4
    assert f"[1/1] {cell_folder.cell.name}  failed  " in err
    assert "is in use by" in err
    assert json.loads(out)["recipes"]["similarity"]["finished"] == 0
    assert "2 cells of 2 are not finished." in (tmp_path / "out" / "similarity.md").read_text()


def test_a_folder_that_cannot_be_written_is_said_at_once(reproduce: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = one_line(reproduce("ablation", "--scale", "smoke", "--out", "file/out"), 3)
    assert "file/out" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ablations",), "no recipe 'ablations'"),
        (("ablation", "--scale", "big"), "must be one of paper, mini, pretrained, smoke"),
        (("ablation", "--seeds", "a"), "--seeds takes whole numbers"),
        (("ablation", "--only", "cifar10-iid", "--only", "nosuch"), "--only nosuch: no such cell"),
        (("ablation", "federation.round=2"), "did you mean rounds"),
        (("ablation", "rounds"), "not of the form section.key=value"),
        (("ablation", "federation.seed=3"), "federation.seed is for the recipe ablation to choose"),
        (("ablation", "data.seed=3"), "data.seed is for the recipe ablation to choose"),
        (("ablation", "method.name=moon"), "method.name is for the recipe ablation to choose"),
        (("ablation", "data.alpha=0.1"), "data.alpha is for the recipe ablation to choose"),
        (("readings", "model.head=side256"), "is for the recipe readings to choose"),
        (("levels", "method.levels=all"), "is for the recipe levels to choose"),
        (("mu-search", "method.mu=3"), "is for the recipe mu-search to choose"),
        (("similarity", "method.rho=2"), "no method of the recipe similarity has such a field"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], said: str, reproduce: Call) -> None:
    scale = () if "--scale" in words else ("--scale", "smoke")
    assert said in one_line(reproduce(*words, *scale, "--out", "out"), 2)
    assert not Path("out").exists()


@pytest.mark.slow
def test_the_figure(reproduce: Call, tmp_path: Path) -> None:
    code, out, _ = reproduce("similarity", *SMOKE, "federation.rounds=1")
    assert code == 0
    assert "similarity: 2 of 2 cells" in out
    written = [Path(line) for line in out.splitlines()[1:]]
    assert written
    assert all((tmp_path / path).exists() for path in written)
    pages = list((tmp_path / "out").rglob("similarity*/*.html"))
    assert pages
    assert all(str(tmp_path) not in page.read_text() for page in pages)


@pytest.mark.parametrize(
    ("word", "mark", "changed"),
    [
        pytest.param("method.reduction=sum", "reduction-sum", AVERAGING, marks=pytest.mark.slow),
        pytest.param(
            "method.positives=view", "positives-view", ["dcfl-sw"], marks=pytest.mark.slow
        ),
        (
            "method.temperature=0.25",
            "temperature0.25",
            ["moon", "fedrcl", "fedsol", "fedscl", "fedproc", "dcfl-sw", "dcfl-pw"],
        ),
        pytest.param(
            "model.head=mlp256", "head-mlp256", list(ROWS.values()), marks=pytest.mark.slow
        ),
    ],
)
def test_a_word_changes_the_methods_that_know_it_and_their_names(
    word: str, mark: str, changed: list[str], reproduce: Call, tmp_path: Path
) -> None:
    where = "cifar10-0.3-p5"
    words = ("participation-5", *SMOKE, "--only", f"{where}-", "federation.rounds=1")
    first = [f"{where}-{method}" for method in (changed[0], "fedprox")]
    chosen = [word for name in first for word in ("--only", name)]
    names = {name.replace("-rounds1", "") for name in planned(reproduce, *words, word)}
    assert names == {
        f"{where}-{method}-{mark}-seed0" if method in changed else f"{where}-{method}-seed0"
        for method in ROWS.values()
    }
    # And they train: into folders of their own, said in the tables.
    code, _, err = reproduce("participation-5", *SMOKE, *chosen, "federation.rounds=1", word)
    assert code == 0, err
    text = (tmp_path / "out" / "participation-5.md").read_text()
    rows = [row for row, method in ROWS.items() if method in changed]
    which = "" if len(rows) == len(ROWS) else f" ({', '.join(rows)})"
    assert f"Not the settings of this scale: federation.rounds=1, {word}{which}." in text
    folder = next((tmp_path / "out" / "cells").glob(f"{first[0]}-*{mark}*"))
    key, _, value = word.partition("=")
    section, _, name = key.partition(".")
    assert str(RecordedRun.open(folder).config[section][name]) == value
    plain = planned(reproduce, "participation-5", *SMOKE, "--only", f"{where}-")
    assert not {folder.name for folder in (tmp_path / "out" / "cells").iterdir()} & plain


def planned(reproduce: Call, *words: str) -> set[str]:
    code, out, err = reproduce(*words, "--plan", "--json")
    assert code == 0, err
    return set(json.loads(out))


def test_places_and_what_is_so_anyway_change_no_name_and_no_caption(
    reproduce: Call, tmp_path: Path
) -> None:
    places = ("data.path=elsewhere", "engine.device=cpu", "engine.workers=1", "output.checkpoint=3")
    words = ("similarity", *SMOKE, *places, "method.temperature=0.5", "federation.rounds=2")
    assert planned(reproduce, *words) == {cell.name for cell in cells_of("similarity")}
    assert reproduce(*words, "--no-train")[0] == 0
    assert "Not the settings" not in (tmp_path / "out" / "similarity.md").read_text()


def test_settings_of_one_name_in_two_tables_are_told_apart() -> None:
    def name(*words: str) -> str:
        return cells_of("similarity", words=words)[0].name

    server = ("server.optimizer=fedavgm", "server.momentum=0.5")
    words: list[tuple[str, ...]] = [
        (),
        server,
        server[:1],
        ("training.momentum=0.5",),
        (*server[:1], "training.momentum=0.5"),
        ("model.name=lenet",),
        ("training.lr=0.1234567",),
        ("training.lr=0.1234568",),
        ("data.crop=0",),
        ("engine.precision=bfloat16",),
    ]
    assert len({name(*some) for some in words}) == len(words)
