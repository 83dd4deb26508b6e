"""A9: one run per folder, held by the kernel; readers are never in the way."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from dcfl.errors import RunLocked
from dcfl.report import write_report
from dcfl.runs.folder import RecordedRun
from dcfl.system.locks import LOCK, lock
from tests.reliability.victims import (
    SMALL,
    children_of,
    command,
    exit_code,
    experiment,
    forked,
    in_a_fork,
    outcome,
    resume,
    rows_in,
    same,
    slow_from,
    stopped,
    train,
    until,
)


def is_free(folder: Path) -> bool:
    try:
        lock(folder).close()
    except RunLocked:
        return False
    return True


def said_by(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_of_ten_simultaneous_starts_one_wins(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with slow_from(1, 5):  # the winner is still at it when the last one comes
        said = [tmp_path / f"said-{number}" for number in range(10)]
        starts = [command("run", *SMALL, "--out", str(folder), said=path) for path in said]
        began = time.monotonic()
        assert until(lambda: sum(start.is_alive() for start in starts) == 1, 30)
        winner = next(start for start in starts if start.is_alive())
        took = time.monotonic() - began
        lost = [(start, path) for start, path in zip(starts, said, strict=True) if start != winner]
        winner.kill()
        winner.join()
    assert took < 5
    assert [start.exitcode for start, _ in lost] == [5] * 9, [said_by(path) for _, path in lost]
    for _, path in lost:
        (line,) = said_by(path)
        assert line.startswith(f"dcfl: {folder} is in use by ")
        assert f"process {winner.pid} on {os.uname().nodename}" in line


def test_a_later_start_or_resume_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    with slow_from(2, 60):
        holder = command("run", *SMALL, "--out", str(folder), said=tmp_path / "holder")
        assert until(lambda: rows_in(folder) == 1)
        before = (folder / "rounds.jsonl").read_bytes()
        for words in (("resume", str(folder)), ("run", *SMALL, "--out", str(folder))):
            began = time.monotonic()
            assert exit_code(command(*words, said=said)) == 5, (words[0], said.read_text())
            assert time.monotonic() - began < 10
            assert f"is in use by process {holder.pid} on " in said.read_text()
            assert (folder / "rounds.jsonl").read_bytes() == before
        holder.kill()
        holder.join()


@pytest.mark.parametrize("workers", [1, 2])
def test_after_a_kill_the_next_resume_works_at_once(workers: int, tmp_path: Path) -> None:
    """Also while the workers of the one that was killed are still ending."""
    folder = tmp_path / "run"
    with slow_from(3, 2):
        process = forked(lambda: train(experiment(folder, "moon", workers, rounds=4)))
        assert until(lambda: rows_in(folder) >= (2 if workers == 1 else 1))
        assert len(children_of(process.pid or 0)) == (workers if workers > 1 else 0)
        process.kill()
        process.join()
        lock(folder).close()
    resume(folder)
    train(experiment(tmp_path / "whole", "moon", rounds=4))
    same(folder, outcome(tmp_path / "whole"))


def test_after_a_kill_with_nothing_written_the_next_start_works(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()

    def victim() -> None:
        lock(folder)
        os.kill(os.getpid(), 9)

    assert in_a_fork(victim) == -9
    assert (folder / LOCK).exists()
    train(experiment(folder))


def test_workers_that_outlive_the_run_do_not_hold_its_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also not after other runs of the same process, as in `dcfl compare`."""
    for name in "abc":
        (tmp_path / name).mkdir()
    over = [lock(tmp_path / name) for name in "ab"]
    for each in over:
        each.close()
    held = lock(tmp_path / "c")
    process = forked(lambda: time.sleep(60))
    try:
        held.close()
        assert until(lambda: is_free(tmp_path / "c"), 2)
    finally:
        process.kill()
        process.join()
    assert capfd.readouterr().err == ""


def test_the_lock_is_free_after_every_kind_of_end(tmp_path: Path) -> None:
    train(experiment(tmp_path / "ended", rounds=1))
    stopped(experiment(tmp_path / "stopped"))
    for name in ("ended", "stopped"):
        lock(tmp_path / name).close()
    held = lock(tmp_path / "stopped")
    with pytest.raises(RunLocked, match=f"process {os.getpid()} on "):
        resume(tmp_path / "stopped")
    held.close()
    resume(tmp_path / "stopped")


def test_readers_are_not_blocked_and_see_whole_files(tmp_path: Path) -> None:
    """While a run with many rounds goes on, and until after its end."""
    folder = tmp_path / "run"
    process = forked(lambda: train(experiment(folder, "moon", rounds=60)))
    assert until(lambda: rows_in(folder) > 0)
    reads, last = 0, 0
    while process.is_alive() or not reads:
        recorded = RecordedRun.open(folder)
        numbers = [row["round"] for row in recorded.rounds]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= last
        assert "torch" in recorded.environment["packages"]
        assert recorded.partition_counts.sum() == 19
        summary = recorded.summary
        assert not summary or json.dumps(summary.to_json())
        last, reads = len(numbers), reads + 1
        if reads == 4:
            page = write_report(folder, out=tmp_path / "page.html").read_text()
            assert page.rstrip().endswith("</html>")
    assert exit_code(process) == 0
    assert reads > 3
    assert len(RecordedRun.open(folder).rounds) == 60
