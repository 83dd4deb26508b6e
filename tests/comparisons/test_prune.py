"""One cell ends early, in a process of its own, and the next one is trained."""

from __future__ import annotations

from pathlib import Path

from dcfl.comparisons.crew import Runner, ThisProcess, in_turn
from dcfl.comparisons.progress import News
from tests.comparisons.small_sweeps import tiny_sweep
from tests.reliability.victims import rows_in

ROUNDS = 12


def pruned_at_two(crew: Runner | ThisProcess, name: str) -> dict[str, str]:
    news: list[News] = []
    for one in crew.news():
        news.append(one)
        if (one.name, one.round) == (name, 2):
            crew.prune(one.cell_folder.path)
    return {one.name: one.state for one in news if one.state != "round"}


def test_in_this_process_and_in_another(tmp_path: Path) -> None:
    crews = {"here": ThisProcess, "there": lambda take: Runner(take, 1)}
    for where, crew in crews.items():
        plan = tiny_sweep(
            tmp_path / where,
            ["training.lr=0.1,0.2"],
            federation={"rounds": ROUNDS, "participation": 0.5},
        )
        first, second = plan.todo
        found = pruned_at_two(crew(in_turn(plan.todo)), first.name)
        assert found == {first.name: "pruned", second.name: "finished"}
        assert 2 <= rows_in(first.path) < ROUNDS
        assert list(first.path.glob("checkpoint-*"))
