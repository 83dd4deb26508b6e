"""The benchmarks run, measure what they say and refuse what they do not know."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from benchmarks.bench import __main__ as harness
from benchmarks.bench.__main__ import bench, time_jobs, time_methods
from benchmarks.bench.jobs import JOBS, tiny
from benchmarks.bench.measure import (
    BenchmarkFailed,
    Contender,
    from_json,
    jobs_table,
    measure_all,
    methods_table,
)
from dcfl.errors import ConfigError


@pytest.mark.slow
def test_a_job_is_measured_for_everybody(tmp_path: Path) -> None:
    out = tmp_path / "jobs.json"
    table = jobs_table(time_jobs("J3", repeats=2, peers=None, out=out, small=True))
    measured = from_json(json.loads(out.read_text()))
    assert jobs_table(measured) == table
    job = tiny(JOBS["J3"])
    steps = job.rounds * job.cohort * job.epochs * -(-job.images // job.batch_size)
    assert {*measured["J3"]} == {"floor", "dcfl", "dcfl, bfloat16"}
    for each in measured["J3"].values():
        assert [one.steps for one in each] == [steps, steps]
        assert all(one.round > 0 and one.start_up > 0 and one.cpu > 0 for one in each)


def test_a_trial_is_mostly_start_up() -> None:
    """It is to take a minute: nine programs of three seconds each, and few images."""
    for job in map(tiny, JOBS.values()):
        images = job.rounds * job.cohort * job.epochs * job.images
        assert images <= (80 if job.model == "lenet" else 8)
        assert job.rounds > 1  # the first is not timed


@pytest.mark.slow
def test_methods_are_compared_with_fedavg(tmp_path: Path) -> None:
    out = tmp_path / "methods.json"
    table = methods_table(time_methods("lenet", "dcfl-pw", repeats=1, out=out))
    assert "| fedavg  | 1.00" in table
    measured = json.loads(out.read_text())["models"]["lenet"]
    assert {name: len(seconds) for name, seconds in measured.items()} == {
        "fedavg": 1,
        "dcfl-pw": 1,
    }


def test_a_contender_that_fails_or_takes_other_steps_is_said(tmp_path: Path) -> None:
    event = '{"event": "%s", "at": 1, "round": %d, "seconds": 1, "steps": %d}'

    def contender(name: str, steps: int, code: int = 0) -> Contender:
        lines = [
            event % (what, n, steps)
            for what, n in (("first-step", 0), ("round", 1), ("round", 2), ("end", 0))
        ]
        script = "\n".join(f"echo '{line}'" for line in lines)
        return Contender(
            name,
            [
                "sh",
                "-c",
                f"{script.replace('{', '{{').replace('}', '}}')}; echo oh no >&2; exit {code}",
            ],
            {},
        )

    with pytest.raises(BenchmarkFailed, match="ill ended with 3: oh no"):
        measure_all([contender("ill", 5, code=3)], tmp_path, 1, print)
    with pytest.raises(BenchmarkFailed, match="not everybody took the same number of steps"):
        measure_all([contender("a", 5), contender("b", 6)], tmp_path, 1, print)


@pytest.mark.parametrize(("percent", "warns"), [(5, False), (95, True)])
def test_a_busy_machine_is_said_before_anything_is_measured(
    percent: float,
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds: percent)
    monkeypatch.setattr(harness, "measure_all", lambda *_: {"floor": []})
    time_jobs("J3", 1, None, None, True)
    assert ("1.9 of 2 cores are at work on something else" in capsys.readouterr().err) == warns


@pytest.mark.parametrize(("words", "repeats"), [(["--tiny"], 1), ([], 5), (["--repeats", "2"], 2)])
def test_a_trial_is_short(words: list[str], repeats: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, bool]] = []

    def noted(
        jobs: str, repeats: int, peers: object, out: object, small: bool
    ) -> dict[str, object]:
        asked.append((repeats, small))
        return {}

    monkeypatch.setattr(harness, "time_jobs", noted)
    done = CliRunner().invoke(bench, words)
    assert (done.exit_code, asked) == (0, [(repeats, "--tiny" in words)])
    assert json.loads(CliRunner().invoke(bench, [*words, "--json"]).output)["jobs"] == {}


def test_unknown_jobs_and_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="no job 'J9'; known: J1, J2, J3"):
        time_jobs("J1,J9", 1, None, None, True)
    with pytest.raises(ConfigError, match="no model 'vgg'"):
        time_methods("vgg", "", 1, None)
