"""Virtual time on pages: a table, who trained when, an axis of curves, what an accuracy costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dcfl.comparisons.groups import group_runs
from dcfl.comparisons.standing import CostToReach, Reached, Standing, cost_to_reach
from dcfl.report.charts import accuracy_chart
from dcfl.report.client_sections import clock_section, clock_words
from dcfl.report.comparison_section import costs_table
from dcfl.runs.folder import RecordedRun
from tests.report.folders import write_run

CLOCK = {"clock.devices": "phones", "clock.mode": "fedbuff", "clock.buffer": 2}


def visit(round: int, client: int, outcome: str, *times: float, age: int = 0) -> dict[str, Any]:
    reason = "" if outcome == "ok" else "it dropped out"
    return {
        "round": round, "client": client, "outcome": outcome, "reason": reason,
        "used": outcome == "ok", "began": times[0], "ended": times[1], "staleness": age,
    }  # fmt: skip


VISITS = [
    visit(1, 3, "ok", 0.0, 5.0),
    visit(1, 0, "ok", 0.0, 7.5),
    visit(2, 3, "failed", 5.0, 8.0),
    visit(2, 1, "ok", 0.0, 9.0, age=1),
    visit(2, 3, "late", 8.0, 9.0),
]


def timed(folder: Path, method: str = "fedavg", pace: float = 1.0) -> RecordedRun:
    times = {1: {"virtual_time": 7.5 * pace}, 2: {"virtual_time": 9.0 * pace}}
    return write_run(
        folder, [20.0, 60.0], method=method, settings=CLOCK, row_changes=times, clients=VISITS
    )


def test_visits_are_counted_and_drawn(tmp_path: Path) -> None:
    run = timed(tmp_path / "run")
    section = clock_section([run], {run: "fedavg"})
    assert section is not None
    assert list(section.tables[0].rows[0]) == ["fedavg", "9.0", "5", "3", "1", "1", "0.33 (1)"]
    chart = section.pictures[0].chart
    assert chart is not None
    assert chart["x"]["names"] == ["0", "1", "3"]
    drawn = {
        one["label"]: (one["x"], one["low"], one["high"]) for one in chart["panels"][0]["series"]
    }
    assert drawn == {
        "used, on the newest model": ([2, 0], [0, 0], [5, 7.5]),
        "used, from an older model": ([1], [0], [9]),
        "late": ([2], [8], [9]),
        "lost or not used": ([2], [5], [8]),
    }


def test_the_settings_are_in_the_pages_facts(tmp_path: Path) -> None:
    assert clock_words(timed(tmp_path / "run")) == "phones, always, FedBuff of 2"
    assert clock_words(write_run(tmp_path / "plain")) is None
    chosen = write_run(tmp_path / "oort", settings={"federation.selection": "oort"})
    assert clock_words(chosen) == "clients by oort"


def test_a_run_without_a_clock_has_no_such_section_and_no_such_axis(tmp_path: Path) -> None:
    run, other = write_run(tmp_path / "run"), timed(tmp_path / "timed")
    assert clock_section([run], {run: "fedavg"}) is None
    for runs, has in (([run], False), ([other], True), ([run, other], False)):
        chart = accuracy_chart(group_runs(runs))
        assert chart is not None
        assert ("virtual" in [axis["name"] for axis in chart["x"]]) == has
    assert chart["methods"]


def test_what_an_accuracy_costs_in_virtual_seconds(tmp_path: Path) -> None:
    first, slow = timed(tmp_path / "a"), timed(tmp_path / "b", "moon", pace=3.0)
    assert cost_to_reach(first, 24.0) == CostToReach(2, 6e6, 0.0, 9.0)
    assert Reached([CostToReach(1, 1.0, 1.0, 4.0), CostToReach(1, 1.0, 1.0, 6.0)]).mean == (
        CostToReach(1, 1.0, 1.0, 5.0)
    )
    table = costs_table(Standing(group_runs([first, slow])), "")
    at = list(table.columns).index("virtual seconds")
    assert [list(row)[at] for row in table.rows] == ["9.0", "27.0"]
