"""Cells in processes of their own, which are killed, and the command, which is stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dcfl.comparisons.cells import Cell, CellFolder
from dcfl.comparisons.crew import News, Runner, Trainer
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run
from tests.paper.hand_made import cell_folders_in, cells_of
from tests.reliability.victims import alive, rows_in, until

# Long enough to be caught in the middle, on one core of two.
ROUNDS = 60
WORDS = (f"federation.rounds={ROUNDS}", "output.checkpoint=4", "engine.workers=1")
COMMAND = (sys.executable, "-m", "dcfl", "reproduce")
CHOSEN = ("--only", "cifar10-0.3-p5", *WORDS, "--scale", "smoke", "--parallel", "2")
RECIPE = "similarity"


def cell_folders(out: Path) -> list[CellFolder[Cell]]:
    return cell_folders_in(out, cells_of(RECIPE, (0,), WORDS))


def train(folders: Sequence[CellFolder[Cell]]) -> dict[str, str]:
    """Here, one after the other, as `dcfl.run` does it but for the report; the weights."""
    for one in folders:
        for _ in Run(one.experiment).rounds():
            pass
    return trained(folders)


@cache
def undisturbed() -> dict[str, str]:
    with TemporaryDirectory() as folder:
        return train(cell_folders(Path(folder)))


def trained(folders: Sequence[CellFolder[Cell]]) -> dict[str, str]:
    runs = {one.cell.name: RecordedRun.open(one.path) for one in folders}
    return {name: run.summary.weights_sha256 if run.summary else "" for name, run in runs.items()}


def holder(folder: Path) -> int:
    """The process that has a run folder."""
    found = re.search(r"process (\d+) ", (folder / ".lock").read_text())
    assert found
    return int(found[1])


def ended(news: Sequence[News]) -> dict[str, str]:
    return {one.cell_folder.name: one.state for one in news if one.state != "round"}


@pytest.mark.slow
def test_cells_in_parallel_are_the_same_runs(tmp_path: Path) -> None:
    words = ("federation.rounds=3",)
    cells = cell_folders_in(tmp_path, cells_of("ablation", (0,), words))[:5]
    assert len({cell_folder.cell.experiment.method.name for cell_folder in cells}) == 3
    news = list(Runner(cells, 2).news())
    assert set(ended(news).values()) == {"finished"}
    rounds = {(one.cell_folder.name, one.round) for one in news if one.state == "round"}
    assert rounds == {(cell.name, number) for cell in cells for number in (1, 2, 3)}
    alone = cell_folders_in(tmp_path / "alone", [cell_folder.cell for cell_folder in cells])
    assert trained(cells) == train(alone)
    assert len(set(trained(cells).values())) == 5
    # The same split and the same clients in every round, for all methods.
    runs = [RecordedRun.open(cell_folder.path) for cell_folder in cells]
    assert len({run.partition_sha256 for run in runs}) == 1
    schedules = {tuple((row["round"], row["client"]) for row in run.clients) for run in runs}
    assert len(schedules) == 1


@pytest.mark.slow
def test_a_worker_that_is_killed_or_stopped_costs_one_cell_some_time(tmp_path: Path) -> None:
    """By somebody else: a cell fails, or is stopped, and the next has a process that is not about
    to end."""
    cells = cell_folders_in(tmp_path, cells_of("ablation", (0,), WORDS))[:3]
    killed, stopped, other = cells
    signals = {killed.cell.name: signal.SIGKILL, stopped.cell.name: signal.SIGTERM}
    news = []
    for one in Runner(cells, 1).news():
        news.append(one)
        if one.state == "round" and one.round == 6 and one.cell_folder is not other:
            os.kill(holder(one.cell_folder.path), signals[one.cell_folder.name])
    assert ended(news) == {
        killed.cell.name: "failed",
        stopped.cell.name: "stopped",
        other.cell.name: "finished",
    }
    (why,) = [one.why for one in news if one.state == "failed"]
    assert "-9" in why
    assert all(6 <= rows_in(cell_folder.path) < ROUNDS for cell_folder in (killed, stopped))
    again = cell_folders_in(tmp_path, [killed.cell, stopped.cell])
    assert set(ended(list(Runner(again, 1).news())).values()) == {"finished"}
    alone = cell_folders_in(tmp_path / "alone", [killed.cell, stopped.cell])
    assert trained(again) == train(alone)


def test_what_somebody_else_has_finished_meanwhile_is_not_a_failure(tmp_path: Path) -> None:
    (cell_folder,) = cell_folders_in(tmp_path, cells_of(RECIPE, (0,), ("federation.rounds=1",)))[:1]
    weights = train([cell_folder])
    assert [news.state for news in Trainer().train(cell_folder)] == ["finished"]
    assert trained([cell_folder]) == weights


# The command ----------------------------------------------------------------------------------


class Command:
    def __init__(self, out: Path, *words: str) -> None:
        self.said = out.with_suffix(".said")
        with self.said.open("wb") as stream:
            self.process = subprocess.Popen(
                [*COMMAND, RECIPE, *CHOSEN, "--out", str(out), *words],
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def in_the_middle_of(self, folders: Sequence[Path], more: int = 2) -> list[int]:
        """Wait until all of these have done some rounds; the processes that do them."""
        begun = [rows_in(folder) for folder in folders]
        assert until(
            lambda: (
                all(
                    rows_in(folder) >= before + more
                    for folder, before in zip(folders, begun, strict=True)
                )
                or self.process.poll() is not None
            )
        ), self.text()
        assert self.process.poll() is None, self.text()
        return [holder(folder) for folder in folders]

    def code(self) -> int:
        return self.process.wait(60)

    def text(self) -> str:
        return self.said.read_text()


@pytest.fixture
def commands() -> Iterator[list[Command]]:
    started: list[Command] = []
    yield started
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()


@pytest.mark.slow
def test_stopped_in_three_ways_it_goes_on(tmp_path: Path, commands: list[Command]) -> None:
    out = tmp_path / "out"
    cells = cell_folders(out)
    folders = [cell_folder.path for cell_folder in cells]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        command = Command(out)
        commands.append(command)
        workers = command.in_the_middle_of(folders)
        assert len(set(workers)) == 2
        command.process.send_signal(number)
        assert command.code() == code
        text = command.text()
        assert "Traceback" not in text
        # After the first two there is nobody left; after the third they find out by themselves.
        seconds = 20.0 if number == signal.SIGKILL else 1.0
        assert until(lambda: not any(map(alive, workers)), seconds), text  # noqa: B023
        assert "Traceback" not in command.text()
        assert "rror" not in command.text()
        if number != signal.SIGKILL:
            assert text.splitlines()[-1] == "dcfl: stopped; the same command continues from here"
        assert not any((folder / "summary.json").is_file() for folder in folders)
        # What was done is not lost: there is a checkpoint of the last round.
        assert all(list(folder.glob("checkpoint-*")) for folder in folders)
    assert all(6 <= rows_in(folder) < ROUNDS for folder in folders)
    for folder in folders:
        for _ in Run.resume(folder).rounds():
            pass
    assert trained(cells) == undisturbed()


@pytest.mark.slow
def test_the_second_command_in_a_folder_is_told_so_and_the_first_goes_on(
    tmp_path: Path, commands: list[Command]
) -> None:
    out = tmp_path / "out"
    first = Command(out)
    commands.append(first)
    cells = cell_folders(out)
    first.in_the_middle_of([cell_folder.path for cell_folder in cells], more=1)
    first.process.send_signal(signal.SIGSTOP)  # it must not end before the second looks
    second = subprocess.run(
        [*COMMAND, RECIPE, *CHOSEN, "--out", str(out)], capture_output=True, text=True, timeout=120
    )
    first.process.send_signal(signal.SIGCONT)
    assert second.returncode == 5, second.stderr
    assert second.stderr == (
        f"dcfl: {out} is in use by process {first.process.pid} on {os.uname().nodename}\n"
    )
    assert second.stdout == ""
    assert first.process.wait(300) == 0, first.text()
    assert trained(cells) == undisturbed()
