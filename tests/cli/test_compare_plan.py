"""`dcfl compare --plan`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.command_line import Call

WORDS = ("compare", "--methods", "fedavg,moon", "--seeds", "0,3", "--plan")


def test_a_grid_of_methods_and_seeds(unmeasured: Call, tmp_path: Path) -> None:
    code, out, _ = unmeasured(*WORDS, "--parallel", "1")
    assert code == 0
    title, columns, *rows, total = out.splitlines()
    assert title == "time left of each run"
    assert re.split(r"  +", columns.strip()) == ["method", "seed 0", "seed 3"]
    assert [row.split()[0] for row in rows] == ["fedavg", "moon"]
    assert total.startswith("4 runs: about ")
    assert not list(tmp_path.iterdir())
    answer = json.loads(unmeasured(*WORDS, "--parallel", "1", "--json")[1])
    assert answer["seconds"] == sum(answer["by_run"].values())
    assert {*answer["by_run"]} == {f"{name}-seed{s}" for s in (0, 3) for name in ("fedavg", "moon")}


def test_it_needs_no_data(unmeasured: Call, tmp_path: Path) -> None:
    code, out, err = unmeasured(*WORDS, "data.dataset=cifar10", "data.path=nowhere")
    assert code == 0
    assert "4 runs; how long they take is not known: cifar10: no" in err
    assert out.splitlines()[2].split() == ["fedavg", "80", "80"]
    assert not list(tmp_path.iterdir())
