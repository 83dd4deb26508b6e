import numpy as np
import pytest

from dcfl.terminal import partition_table, sparkline, stdout


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
