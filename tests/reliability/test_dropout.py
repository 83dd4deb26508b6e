"""A4: clients crash, exit, hang and run out of memory; the run goes on without them."""

from __future__ import annotations

import os
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from dcfl.client import Client
from dcfl.engines.attacks import strike
from dcfl.engines.engine import Connect
from dcfl.errors import TooFewClients
from dcfl.experiment import FaultSettings
from dcfl.methods import METHODS, Method, Objective
from dcfl.runs.checkpoints import Checkpoint, Checkpoints, read_checkpoint
from dcfl.runs.connect import connect
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import RoundRow
from dcfl.runs.run import Run
from dcfl.system.processes import Terminated
from dcfl.tensors import sha256
from tests.reliability.victims import (
    DATA,
    MODEL,
    SMALL,
    at_nodes,
    children_of,
    command,
    edited,
    exit_code,
    experiment,
    outcome,
    resume,
    rows_in,
    same,
    stopped,
    train,
)

ALL_KINDS = FaultSettings(crash=0.1, memory=0.08, exit=0.08, hang=0.04)  # 30 %
WITHOUT_A_CLOCK = FaultSettings(crash=0.12, memory=0.09, exit=0.09)
DEADLINE = 0.75  # seconds; a client that trains takes milliseconds


@pytest.fixture(scope="module", autouse=True)
def _past_the_first_step(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What torch imports at its first step takes longer than the deadline; workers that are forked
    afterwards have it."""
    train(experiment(tmp_path_factory.mktemp("first") / "run", rounds=1))


def adds_up(row: RoundRow) -> bool:
    return bool(row["sampled"] == row["ok"] + row["failed"] + row["late"] + row["rejected"])


@pytest.mark.slow
def test_fifty_rounds_with_a_third_of_the_clients_lost(tmp_path: Path) -> None:
    what = experiment(
        tmp_path / "run", "moon", 2, rounds=50, faults=ALL_KINDS, deadline=DEADLINE, checkpoint=10
    )
    before = set(children_of(os.getpid()))
    run = train(what)
    assert set(children_of(os.getpid())) <= before
    recorded = RecordedRun.open(run.folder)
    assert [row["round"] for row in recorded.rounds] == list(range(1, 51))
    assert all(adds_up(row) for row in recorded.rounds)
    assert sum(row["sampled"] for row in recorded.rounds) == 150 == len(recorded.clients)
    lost = [row for row in recorded.clients if row["outcome"] != "ok"]
    assert 20 < len(lost) < 80
    assert all(row["reason"] for row in lost)
    reasons = " ".join(row["reason"] for row in lost)
    for part in ("an injected fault", "lack of memory", "exit code 17", "no reply within 0.75 s"):
        assert part in reasons
    assert Counter(row["outcome"] for row in lost).keys() == {"failed", "late"}
    assert recorded.summary["ok"] + len(lost) == 150


@pytest.mark.parametrize("method", ["scaffold", "dcfl-pw"])
def test_same_seeds_same_faults(method: str, tmp_path: Path) -> None:
    """On any number of workers; and in a run that was stopped in between."""
    settings: dict[str, Any] = {"method": method, "rounds": 6, "faults": WITHOUT_A_CLOCK}
    train(experiment(tmp_path / "one", workers=1, **settings))
    train(experiment(tmp_path / "two", workers=2, **settings))
    stopped(experiment(tmp_path / "again", workers=2, **settings), 3)
    resume(tmp_path / "again")
    wanted = outcome(tmp_path / "one")
    assert wanted["summary"]["failed"] > 0
    for name in ("two", "again"):
        same(tmp_path / name, wanted)


def test_another_seed_other_faults(tmp_path: Path) -> None:
    def struck(seed: int) -> list[int]:
        found = []
        for client in range(200):
            try:
                strike(FaultSettings(crash=0.3), seed, 1, client)
            except RuntimeError:
                found.append(client)
        return found

    assert struck(0) == struck(0)
    assert struck(0) != struck(1)
    assert 30 < len(struck(0)) < 90


def test_a_round_without_a_reply_leaves_the_model_alone_and_says_so(tmp_path: Path) -> None:
    """Also what the server shares, its slots, and what clients keep."""
    what = experiment(tmp_path / "run", "moon", rounds=40, faults=FaultSettings(crash=0.7))
    run, states = Run(what, DATA, MODEL), {}
    try:
        for _ in run.rounds():
            newest = Checkpoints(run.folder).paths()[-1:]
            states.update({path.name[11:17]: read_checkpoint(path) for path in newest})
    except TooFewClients:
        pass
    rows = RecordedRun.open(run.folder).rounds
    empty = [row for row in rows if row["ok"] == 0 and row["round"] > 1]
    assert empty
    for row in empty:
        before, after = (states.get(f"{row['round'] + step:06d}") for step in (-1, 0))
        if before and after:
            assert sha256(after.state.weights) == sha256(before.state.weights)
            assert after.progress.memories == before.progress.memories
        assert row["accuracy"] == rows[row["round"] - 2]["accuracy"]
        assert row["loss"] == rows[row["round"] - 2]["loss"]
        assert (row["failed"], row["train_loss"]) == (row["sampled"], None)
        assert row["used"] == 0


def test_too_few_replies_leave_the_model_alone_too(tmp_path: Path) -> None:
    what = experiment(
        tmp_path / "run", rounds=30, faults=FaultSettings(crash=0.4), minimum_replies=3
    )
    run = Run(what, DATA, MODEL)
    with pytest.raises(TooFewClients, match=r"fewer than 3 clients .* for 3 rounds"):
        for _ in run.rounds():
            pass
    rows = RecordedRun.open(run.folder).rounds
    for before, row in pairwise(rows):
        assert (row["loss"] == before["loss"]) == (row["ok"] < 3)


ENGINES: dict[str, tuple[int, Connect]] = {
    "alone": (1, connect),
    "pool": (2, connect),
    "flower": (1, at_nodes()),
}


@pytest.mark.parametrize(
    ("method", "engine"),
    [("scaffold", "alone"), ("moon", "pool"), ("moon", "flower"), ("scaffold", "flower")],
)
def test_a_round_that_was_not_used_is_nothing_to_remember(
    engine: str, method: str, tmp_path: Path
) -> None:
    """What clients keep, and what the server shares, are those of before; also in a run that was
    stopped right after such a round."""
    workers, how = ENGINES[engine]
    settings: dict[str, Any] = {
        "method": method,
        "workers": workers,
        "rounds": 8,
        "faults": FaultSettings(crash=0.07),
        "minimum_replies": 3,
    }
    run = Run(experiment(tmp_path / "run", **settings), DATA, MODEL, how)
    states: dict[int, Checkpoint | None] = {0: None}
    for row in run.rounds():
        states[row["round"]] = read_checkpoint(Checkpoints(run.folder).paths()[-1])
    unused = [row["round"] for row in run.result().rounds if row["used"] == 0]
    partly = [row["round"] for row in run.result().rounds if row["used"] == 0 < row["ok"]]
    assert [row["round"] for row in run.result().rounds if row["used"] == 3 == row["ok"]]
    assert len(partly) > 1
    for round in unused:
        before, after = states[round - 1], states[round]
        assert after is not None
        assert after.progress.memories == (before.progress.memories if before else {})
        assert sha256(after.state.shared) == sha256(before.state.shared if before else {})
    stopped(experiment(tmp_path / "again", **settings), partly[1], how)
    resume(tmp_path / "again", how)
    same(tmp_path / "again", outcome(tmp_path / "run"))


def test_too_few_clients_through_the_command_line(tmp_path: Path) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    words = (*SMALL, "faults.crash=1.0")
    assert exit_code(command("run", *words, "--out", str(folder), said=said)) == 4
    lines = said.read_text().splitlines()
    assert lines[-1].startswith("dcfl: no client has given a usable reply for 3 rounds")
    assert "an injected fault" in lines[-1]
    assert "Traceback" not in said.read_text()
    assert rows_in(folder) == 3
    edited(folder, "crash = 1.0", "crash = 0.0")
    again = command("resume", str(folder), "--allow", "faults.crash", said=said)
    assert exit_code(again) == 0, said.read_text()
    assert [row["ok"] for row in RecordedRun.open(folder).rounds] == [0, 0, 0, 2, 2]


# The victims' network has one layer, no part of which could be personal or, as for FedPAC, have
# epochs of its own.
@pytest.mark.parametrize(
    "method", [name for name, m in METHODS.items() if not m().personal and name != "fedpac"]
)
def test_every_method_survives_the_loss_of_clients(method: str, tmp_path: Path) -> None:
    run = train(experiment(tmp_path / "run", method, rounds=5, faults=FaultSettings(crash=0.3)))
    rows = RecordedRun.open(run.folder).rounds
    assert all(adds_up(row) for row in rows)
    assert 0 < sum(row["failed"] for row in rows) < 15
    weights = load_file(run.folder / "model.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())


class Leaving(Method):
    """Its first client ends the program, or would like to."""

    how: type[SystemExit] = SystemExit

    def objective(self, client: Client) -> Objective:
        if client.id == 0:
            raise self.how(0)
        return super().objective(client)


class Ended(Leaving):
    how = Terminated


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_exits_costs_its_own_update(workers: int, tmp_path: Path) -> None:
    run = train(experiment(tmp_path / "run", Leaving(), workers))
    assert [(row["ok"], row["failed"]) for row in run.result().rounds] == [(2, 1)] * 3
    assert "SystemExit: 0" in run_reasons(run)


def test_a_signal_in_the_middle_of_a_client_is_not_that_client_s(tmp_path: Path) -> None:
    with pytest.raises(Terminated):
        train(experiment(tmp_path / "run", Ended()))


def run_reasons(run: Run) -> str:
    return " ".join(row["reason"] for row in RecordedRun.open(run.folder).clients)
