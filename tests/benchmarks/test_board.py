"""The board is what its single runs make of it, and its budgets are equal."""

import json
import subprocess
from pathlib import Path
from statistics import fmean

import pytest

import dcfl
from benchmarks import board
from benchmarks.reproduction_page import made_anew
from dcfl.comparisons.tuning import SEEDS
from dcfl.system.processes import python

ROOT = Path(__file__).parents[2]
TRAINED = [name for name in board.BOARDS if not name.startswith("mini") and board.stored(name)]


def test_the_page_is_made_of_the_single_runs() -> None:
    written = board.PAGE.read_text(encoding="utf-8")
    made = made_anew(board.PAGE, (board.board, board.findings))
    assert written == made, "run benchmarks/board.py page"


@pytest.mark.parametrize("name", TRAINED)
def test_every_method_had_the_same_search_and_what_it_found(name: str) -> None:
    rows = [row for row in board.rows_of(board.stored(name)).values() if not row.baseline]
    reported = {run.seed for row in rows for run in row.runs}
    assert len(reported) == board.BOARDS[name].seeds
    for row in rows:
        assert set(row.scores) == reported, row.method
        assert row.budget == (board.TRIAL_COUNT, SEEDS), row.method
        assert not {run.seed for run in row.trials} & reported
        assert "winner" not in row.tuned
        assert len({run.settings for run in row.runs}) == 1


def test_a_comparison_becomes_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"federation.rounds": 1, "training.epochs": 1, "model.name": "mlp", "data.clients": 4}
    found = dcfl.compare(
        methods=("fedavg", "fedprox"),
        seeds=(0, 1),
        tune=3,
        by="clients",
        baselines=True,
        out=tmp_path / "runs",
        parallel=1,
        **quick,
    )
    runs = list(board.single_runs(tmp_path / "runs", "clients"))
    rows = board.rows_of(runs)
    assert {"each client alone", "all data in one place", "fedavg, fine-tuned"} < set(rows)
    for group, tuned in zip(found.groups, found.tuned, strict=True):
        row = rows[tuned.label]
        assert row.budget == (3, 2)
        assert fmean(row.scores.values()) == pytest.approx(group.spread("own_accuracy").mean)
        chosen = dict(pair.split("=") for pair in row.settings.split())
        assert chosen.items() <= {key: str(value) for key, value in tuned.chosen.items()}.items()
        assert ("*" in row.tuned) == bool(set(tuned.at_edge) & set(chosen))

    monkeypatch.setattr(board, "RESULTS", tmp_path)
    board.write("skew", runs)
    board.write("skew", [run for run in runs if run.method == "fedprox"])  # the others stay
    read = board.stored("skew")
    assert sorted(
        (r.method, r.stage, r.settings, r.seed, r.weights_sha256) for r in read
    ) == sorted((r.method, r.stage, r.settings, r.seed, r.weights_sha256) for r in runs)
    again = board.rows_of(read)
    assert {name: row.tuned for name, row in again.items()} == {
        name: row.tuned for name, row in rows.items()
    }


def test_a_method_of_ones_own_stands_beside_the_others(tmp_path: Path) -> None:
    stored = ROOT / "benchmarks" / "results" / "board" / "digits.csv"
    before = stored.read_bytes()
    example = ROOT / "examples" / "your_method.py"
    words = ["row", "digits", str(example), "--out", str(tmp_path / "mine"), "--parallel", "1"]
    done = subprocess.run(
        python("benchmarks/board.py", *words, "federation.rounds=1"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("|")]
    (own,) = (line for line in lines if "(yours)" in line[0])
    assert len(own) == len(lines[0])
    assert "fedavg" in done.stdout
    assert "Trials: 6 of each method with seeds 100 and 101." in done.stdout
    assert stored.read_bytes() == before


def test_a_stored_run_is_named_by_a_command_with_its_settings() -> None:
    run = next(one for one in board.stored("pretrained") if one.method == "fedrcl")
    command = board.run_command(board.BOARDS["pretrained"], run)
    assert command[:2] == ["run", "configs/board/pretrained.toml"]
    verb = [*command[1:], "--dry-run", "--json"]
    assert json.dumps(verb)
    experiment = dcfl.load_experiment(
        ROOT / command[1], **dict(word.split("=") for word in command[2:])
    )
    assert (experiment.method.name, experiment.method.mu) == ("fedrcl", 0.01)  # type: ignore[attr-defined]
    assert experiment.federation.seed == run.seed
