import json
from pathlib import Path

import numpy as np
import pytest

from dcfl.comparison import Spread, plan, summarise
from dcfl.config import to_toml
from dcfl.errors import ConfigError
from dcfl.evaluation import ema
from dcfl.experiment import Experiment
from dcfl.recording import RecordedRun
from dcfl.terminal import partition_table, sparkline, stdout


def recorded(folder: Path, method: str, seed: int, accuracies: list[float]) -> RecordedRun:
    folder.mkdir()
    config = {"method": {"name": method}, "federation": {"seed": seed}}
    (folder / "config.toml").write_text(to_toml(config))
    rows = [
        {
            "round": number + 1,
            "accuracy": accuracy,
            "max_accuracy": max(accuracies[: number + 1]),
            "ema_accuracy": ema(accuracies[: number + 1]),
            "bytes_up": 1_000_000,
            "bytes_down": 2_000_000,
            "seconds": 0.5,
        }
        for number, accuracy in enumerate(accuracies)
    ]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RecordedRun.open(folder)


def test_methods_are_averaged_over_seeds_and_paired_by_seed(tmp_path: Path) -> None:
    runs = [
        recorded(tmp_path / "a0", "fedavg", 0, [10.0, 50.0]),
        recorded(tmp_path / "b0", "dcfl-pw", 0, [20.0, 60.0]),
        recorded(tmp_path / "a1", "fedavg", 1, [30.0, 90.0]),
        recorded(tmp_path / "b1", "dcfl-pw", 1, [30.0, 80.0]),
    ]
    fedavg, dcfl = summarise(runs)
    assert (fedavg.method, dcfl.method) == ("fedavg", "dcfl-pw")
    assert fedavg.seeds == dcfl.seeds == (0, 1)
    assert fedavg.max_accuracy == Spread(70.0, pytest.approx(np.std([50, 90], ddof=1)))
    assert fedavg.ema_accuracy.mean == pytest.approx((14.0 + 36.0) / 2)
    assert fedavg.gain is None
    assert dcfl.gain is not None
    assert dcfl.gain.mean == pytest.approx(((24.0 - 14.0) + (35.0 - 36.0)) / 2)
    assert (dcfl.megabytes_up, dcfl.megabytes_down, dcfl.seconds) == (2.0, 4.0, 1.0)
    assert dcfl.curve == [25.0, 70.0]


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    (row,) = summarise([recorded(tmp_path / "a", "fedavg", 0, [10.0])])
    assert row.max_accuracy == Spread(10.0, None)
    assert (f"{Spread(1.234, None)}", f"{Spread(1, 0.5):+}") == ("1.23", "+1.00 ± 0.50")


def test_a_plan_has_one_run_per_method_and_seed() -> None:
    planned = plan(Experiment(), ["fedavg", "dcfl-pw"], [3, 4], Path("out"))
    assert list(planned) == ["fedavg-seed3", "dcfl-pw-seed3", "fedavg-seed4", "dcfl-pw-seed4"]
    one = planned["fedavg-seed4"]
    assert (one.method.name, one.federation.seed) == ("fedavg", 4)
    assert Path(one.output.dir) == Path("out/fedavg-seed4")
    assert len({experiment.data for experiment in planned.values()}) == 1
    with pytest.raises(ConfigError, match="named once"):
        plan(Experiment(), ["fedavg", "fedavg"], [0], Path("out"))
    with pytest.raises(ConfigError, match="no method"):
        plan(Experiment(), ["fedavg", "nope"], [0], Path("out"))


def test_sparklines_go_from_lowest_to_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([]) == ""
    line = sparkline([float(value) for value in range(1000)], width=10)
    assert (len(line), line[-1]) == (10, "█")


@pytest.mark.parametrize("classes", [10, 100])
def test_partition_tables_fit_a_terminal(classes: int) -> None:
    counts = np.arange(3 * classes).reshape(3, classes)
    with stdout.capture() as shown:
        stdout.print(partition_table(counts, [str(c) for c in range(classes)]))
    lines = shown.get().splitlines()
    assert len(lines) == 4
    assert str(counts[2].sum()) in lines[3]
    assert "…" not in shown.get()
