from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from dcfl.cli.tables import comparison_table, partition_table
from dcfl.cli.terminal import sparkline, stdout
from dcfl.comparisons.groups import group_runs
from dcfl.comparisons.standing import Standing
from dcfl.experiment import Experiment, FederationSettings
from dcfl.runs.progress import shown
from dcfl.runs.rows import RoundRow
from tests.report import folders
from tests.report.folders import write_run


def test_a_comparison_by_what_clients_have(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / method, [value], method=method)
        for method, value in (("fedavg", 50.0), ("fedprox", 53.0))
    ]
    changed = {1: {"client_accuracy": 51.5}}
    runs.append(write_run(tmp_path / "moon", [54.0], method="moon", row_changes=changed))
    table = comparison_table(Standing(group_runs(runs), by="clients"))
    assert "own mix of classes" in str(table.title)
    columns = [[str(cell) for cell in column.cells] for column in table.columns[:4]]
    assert columns[0] == ["fedavg", "fedprox", "moon"]
    assert columns[1] == ["49.00", "52.00", "51.50"]
    assert columns[2] == ["", "+3.00", "+2.50"]


def test_sparklines_go_from_lowest_to_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([]) == ""
    line = sparkline([float(value) for value in range(1000)], width=10)
    assert (len(line), line[-1]) == (10, "█")


def test_what_a_person_should_know_of_is_said_with_its_round(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    console = Console(stderr=True, highlight=False, markup=False)
    row = RoundRow.from_json(folders.row(3, [50.0, 50.0, 50.0]), Path("rounds.jsonl"))
    experiment = Experiment(federation=FederationSettings(1000))
    with shown("fedavg", experiment, tmp_path, console=console) as show:
        show(replace(row, notices=("node 7 [bold]is a stranger[/bold] " + 100 * "x",)))
        show(row)
    said = capsys.readouterr().err
    assert said == f"dcfl: warning: node 7 [bold]is a stranger[/bold] {100 * 'x'}\n"


@pytest.mark.parametrize("classes", [10, 100])
def test_partition_tables_fit_a_terminal(classes: int) -> None:
    counts = np.arange(3 * classes).reshape(3, classes)
    with stdout.capture() as shown:
        stdout.print(partition_table(counts, [str(c) for c in range(classes)]))
    lines = shown.get().splitlines()
    assert len(lines) == 4
    assert str(counts[2].sum()) in lines[3]
    assert "…" not in shown.get()


@pytest.mark.parametrize("classes", [10, 100])
def test_many_clients_are_summed_up(classes: int) -> None:
    counts = np.random.default_rng(0).integers(0, 5, (5_000, classes))
    counts[17], counts[4_321] = 0, 50
    counts[17, 3] = 1
    with stdout.capture() as captured:
        stdout.print(partition_table(counts, [str(c) for c in range(classes)]))
    lines = captured.get().splitlines()
    assert len(lines) == 11  # a title, the columns, seven percentiles, two clients
    assert "5,000 clients" in lines[0]
    sizes = np.sort(counts.sum(axis=1))
    middle = next(line for line in lines if line.startswith("50 %")).split()
    assert int(middle[2]) == sizes[(len(sizes) - 1) // 2]
    assert lines[-2].split()[:5] == ["client", "17", "1", "1", "100%"]
    assert lines[-1].split()[:3] == ["client", "4321", str(50 * classes)]


def test_few_clients_are_shown_one_by_one() -> None:
    counts = np.ones((300, 10), dtype=np.int64)
    with stdout.capture() as captured:
        stdout.print(partition_table(counts, [str(c) for c in range(10)]))
    assert len(captured.get().splitlines()) == 301
