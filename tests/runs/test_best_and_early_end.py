"""output.keep_best, federation.patience and federation.target_accuracy."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import dcfl
from dcfl import tensors as named
from dcfl.data import load_dataset
from dcfl.errors import ConfigError, RunFolderError, RunMissing
from dcfl.evaluation import score_model
from dcfl.experiment import FederationSettings
from dcfl.report import write_report
from dcfl.runs.recorder import Recorder
from dcfl.runs.rows import RoundRow
from dcfl.runs.run import Result, Run
from dcfl.runs.summaries import RoundsSoFar, reason_to_end
from tests.reliability.victims import interrupted

SETTINGS: dict[str, Any] = {
    "method.name": "fedavg",
    "data.holdout": 0.2,
    "data.alpha": 0.3,
    "federation.rounds": 8,
    "training.epochs": 1,
    "training.lr": 0.1,
    "engine.workers": 1,
    "engine.device": "cpu",
    "output.report": False,
    "output.checkpoint": 1,
}
BEST = {**SETTINGS, "output.keep_best": True}


def run_to(folder: Path, settings: dict[str, Any]) -> Result:
    return dcfl.run(out=folder, **settings)


def stopped_after(folder: Path, round: int, settings: dict[str, Any]) -> Path:
    run = Run(dcfl.load_experiment(**{**settings, "output.dir": str(folder)}))
    return interrupted(run, round)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Result:
    result = run_to(tmp_path_factory.mktemp("kept") / "run", BEST)
    # Otherwise the tests below would prove nothing.
    assert 1 < (result.summary.best_round or 0) < 8
    return result


def test_the_best_model_is_that_of_the_best_round(kept: Result, tmp_path: Path) -> None:
    run = Run(dcfl.load_experiment(**{**SETTINGS, "output.dir": str(tmp_path / "watched")}))
    seen = {
        row.round: (row.accuracy, named.sha256(run._position.state.weights)) for row in run.rounds()
    }
    best = max(seen, key=lambda round: seen[round][0] or 0.0)  # the first of them
    summary, weights = kept.summary, load_file(kept.folder / "best.safetensors")
    assert (summary.best_round, summary.best_accuracy) == (best, seen[best][0])
    assert named.sha256(weights) == summary.best_sha256 == seen[best][1]
    assert summary.weights_sha256 == run.result().summary.weights_sha256  # training did not change
    assert [path.stem for path in kept.folder.glob("checkpoint*")] == ["checkpoint-000008"]


def test_it_is_chosen_by_kept_back_images(kept: Result) -> None:
    experiment = dcfl.load_experiment(kept.folder / "config.toml")
    held_out = load_dataset(experiment.data)
    test = load_dataset(replace(experiment.data, holdout=0.0))
    best = dcfl.load_model(kept.folder, which="best")
    assert score_model(best, held_out).accuracy == pytest.approx(kept.summary.best_accuracy)
    assert len(held_out.test) != len(test.test)
    last = dcfl.load_model(kept.folder)
    assert score_model(last, held_out).accuracy == pytest.approx(kept.summary.final_accuracy)


@pytest.mark.parametrize("round", [1, 3, 6])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_resumed_run_keeps_the_same_bits(
    round: int, workers: int, kept: Result, tmp_path: Path
) -> None:
    settings = {**BEST, "engine.workers": workers}
    folder = stopped_after(tmp_path / "run", round, settings)
    assert dcfl.resume(folder).summary.best_round == kept.summary.best_round
    for name in ("best.safetensors", "model.safetensors"):
        assert (folder / name).read_bytes() == (kept.folder / name).read_bytes()


def test_a_repeated_round_cannot_displace_the_best_of_a_checkpoint(tmp_path: Path) -> None:
    """Killed after a better round than the checkpoint knows: the file of the best is not there yet,
    and the checkpoint has the weights it names."""
    folder = stopped_after(tmp_path / "run", 3, BEST)
    assert not (folder / "best.safetensors").exists()
    with pytest.raises(RunMissing, match="has the run finished"):
        dcfl.load_model(folder, which="best")


def test_keeping_the_best_may_end_but_not_begin_with_a_resume(tmp_path: Path) -> None:
    def edited(folder: Path, old: str, new: str) -> Path:
        text = (folder / "config.toml").read_text()
        assert f"keep_best = {old}" in text
        (folder / "config.toml").write_text(
            text.replace(f"keep_best = {old}", f"keep_best = {new}")
        )
        return folder

    with pytest.raises(ConfigError, match=r"output\.keep_best: the best model so far"):
        dcfl.resume(edited(stopped_after(tmp_path / "off", 2, SETTINGS), "false", "true"))
    result = dcfl.resume(edited(stopped_after(tmp_path / "on", 2, BEST), "true", "false"))
    assert result.summary.best_round is None
    assert not (result.folder / "best.safetensors").exists()
    with pytest.raises(RunMissing, match=r"output\.keep_best"):
        dcfl.load_model(result.folder, which="best")


def test_a_best_model_of_another_run_is_noticed(kept: Result, tmp_path: Path) -> None:
    result = run_to(tmp_path / "run", {**BEST, "federation.rounds": 2})
    (result.folder / "best.safetensors").write_bytes(
        (kept.folder / "best.safetensors").read_bytes()
    )
    with pytest.raises(RunFolderError, match="hash of other weights"):
        dcfl.load_model(result.folder, which="best")


def test_a_data_set_from_python_is_divided_too(tmp_path: Path, kept: Result) -> None:
    """Otherwise the best would be chosen by its test images."""
    digits = load_dataset(dcfl.Experiment().data)
    result = dcfl.run(out=tmp_path / "run", dataset=digits, **BEST)
    assert result.summary.best_sha256 == kept.summary.best_sha256


# When a run ends --------------------------------------------------------------------------------


def rows_of(accuracies: list[float | None]) -> RoundsSoFar:
    so_far = RoundsSoFar()
    for round, accuracy in enumerate(accuracies, start=1):
        known = None if accuracy is None else 0.0
        row: dict[str, Any] = dict.fromkeys(
            ("bytes_up", "bytes_down", "sampled", "ok", "failed", "rejected", "used", "seconds"), 0
        )
        row |= {"round": round, "accuracy": accuracy, "loss": None}
        so_far = so_far.and_then(RoundRow(max_accuracy=known, ema_accuracy=known, **row))
    return so_far


@given(
    st.lists(st.none() | st.integers(0, 5).map(float), max_size=12),
    st.integers(0, 4),
    st.integers(0, 5),
)
def test_the_rule(accuracies: list[float | None], patience: int, target: int) -> None:
    federation = FederationSettings(20, patience=patience, target_accuracy=float(target))
    known = [accuracy for accuracy in accuracies if accuracy is not None]
    reached = bool(target and known and known[-1] >= target)
    # No score of the last `patience` ones is above all that came before them.
    cut = max(0, len(known) - patience)
    earlier, late = known[:cut], known[cut:]
    tired = bool(patience and earlier and max(late) <= max(earlier))
    scored = bool(accuracies) and accuracies[-1] is not None
    assert bool(reason_to_end(federation, rows_of(accuracies))) == (scored and (reached or tired))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_ends_where_its_rows_say(workers: int, kept: Result, tmp_path: Path) -> None:
    whole = kept.rounds
    second = sorted(row.accuracy or 0.0 for row in whole)[-2]
    first = next(row.round for row in whole if (row.accuracy or 0.0) >= second)
    settings = {**BEST, "engine.workers": workers, "federation.target_accuracy": second}
    result = run_to(tmp_path / "run", settings)
    assert [row.accuracy for row in result.rounds] == [row.accuracy for row in whole[:first]]
    assert result.summary.rounds == first < 8
    assert result.summary.max_accuracy == max(row.accuracy or 0.0 for row in whole[:first])
    assert result.summary.stopped.startswith(f"stopped after round {first}: ")
    assert "kept-back images" in result.summary.stopped
    assert result.summary.stopped in write_report(result.folder).read_text()


def test_patience_stops_and_is_resumed(tmp_path: Path) -> None:
    settings = {**SETTINGS, "federation.patience": 2, "federation.rounds": 40}
    whole = run_to(tmp_path / "whole", settings)
    assert 3 < whole.summary.rounds < 40
    last = whole.summary.rounds
    folder = stopped_after(tmp_path / "run", last - 1, settings)
    again = dcfl.resume(folder)
    assert again.summary.weights_sha256 == whole.summary.weights_sha256
    assert again.summary.stopped == whole.summary.stopped
    with pytest.raises(RunFolderError, match=rf"stopped after round {last}.*nothing to resume"):
        dcfl.resume(folder)


def test_a_run_killed_at_its_early_end_trains_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**BEST, "federation.target_accuracy": 10.0, "federation.evaluate_every": 2}
    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_to(tmp_path / "run", settings)
    rows = (tmp_path / "run" / "rounds.jsonl").read_text()
    resumed = Run.resume(tmp_path / "run")
    assert list(resumed.rounds()) == []
    assert resumed.result().summary.stopped
    assert (tmp_path / "run" / "rounds.jsonl").read_text() == rows
    assert len(rows.splitlines()) % 2 == 0  # after a round that was scored
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["best_round"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"output.keep_best": True}, r"output\.keep_best .*data\.holdout = 0\.1.*choose_by"),
        ({"federation.patience": 3}, r"federation\.patience .*data\.holdout"),
        ({"federation.target_accuracy": 90.0}, r"federation\.target_accuracy .*data\.holdout"),
        (
            {"output.keep_best": True, "data.holdout": 0.1, "federation.choose_by": "test"},
            "nobody looks at the test images",
        ),
        ({"federation.patience": -1}, "patience must be 0"),
        ({"federation.target_accuracy": 101.0}, "0 .none. to 100"),
        ({"federation.choose_by": "train"}, '"holdout" or "test"'),
        ({"output.keep_best": "holdout"}, "true or false"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as refusal:
        dcfl.load_experiment(**changes)
    assert "\n" not in str(refusal.value)


def test_the_test_images_may_be_asked_for(tmp_path: Path) -> None:
    changes = {"data.holdout": 0.0, "federation.choose_by": "test", "federation.patience": 1}
    result = run_to(tmp_path / "run", {**BEST, **changes})
    digits = load_dataset(dcfl.Experiment().data)
    best = dcfl.load_model(result.folder, which="best")
    assert score_model(best, digits).accuracy == pytest.approx(result.summary.best_accuracy)
    assert not result.summary.stopped or "test images" in result.summary.stopped
