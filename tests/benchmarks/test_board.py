"""The board is what its single runs make of it, and its budgets are equal."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest

import dcfl
from benchmarks import board
from benchmarks.reproduction_page import made_anew
from dcfl.comparisons.tuning import SEEDS
from dcfl.config import apply, load_experiment, parse_settings
from dcfl.system.processes import python

ROOT = Path(__file__).parents[2]
TRAINED = [name for name in board.BOARDS if not name.startswith("mini") and board.stored(name)]


def test_the_page_is_made_of_the_single_runs() -> None:
    written = board.PAGE.read_text(encoding="utf-8")
    made = made_anew(board.PAGE, board.MAKERS)
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


@pytest.mark.slow
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
    experiment = apply(load_experiment(ROOT / command[1]), parse_settings(command[2:]))
    assert (experiment.method.name, experiment.method.mu) == ("fedrcl", 0.01)  # type: ignore[attr-defined]
    assert experiment.federation.seed == run.seed


def test_rows_of_a_recipe_take_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `dcfl reproduce levels` has stored is on the board of CIFAR-10 in miniature."""
    monkeypatch.setattr(board, "RESULTS", tmp_path)
    assert board.board("mini").startswith("Not run: fedavg, ")
    levels = tmp_path / "reproduction" / "levels"
    levels.mkdir(parents=True)

    def table(rows: Sequence[tuple[str, str, str, int, float]]) -> str:
        head = "block,column,row,seed,ema,max,rounds,mb_up,mb_down,client_seconds,weights_sha256\n"
        lines = (
            f'"{block}","{column}","{row}",{seed},{ema},50,500,1,1,9,{seed}{ema}\n'
            for block, column, row, seed, ema in rows
        )
        return head + "".join(lines)

    where, last = "cifar10, 0.3", "last level"
    runs = [(where, "", "FedAvg", seed, 40 + seed) for seed in range(3)]
    runs += [(where, last, "FedRCL", seed, 42 + 2 * seed) for seed in range(3)]
    runs += [("cifar10, iid", last, "FedRCL", 0, 60.0)]
    (levels / "levels-runs.csv").write_text(table(runs))
    trials = [("cifar10", label, f"FedRCL, {last}", 100, ema) for label, ema in TRIED.items()]
    (levels / "levels-search-runs.csv").write_text(table(trials))
    row = board.rows_of(board.stored("mini"))["fedrcl, last level"]
    assert row.settings == "method.mu=0.1 method.temperature=0.05"
    assert row.tuned == "mu 0.1*, temperature 0.05*"
    shown = board.board("mini")
    assert "| fedrcl, last level | 44.00 ± 2.00 | +3.00 (+0.52 to +5.48) |" in shown
    assert "dcfl-pw, every level" in shown.partition("Not run: ")[2]
    assert "60.00" in board.board("mini-iid")


TRIED = {"0.1, 0.05": 45.0, "1, 0.05": 41.0, "10, 0.05": 30.0}
