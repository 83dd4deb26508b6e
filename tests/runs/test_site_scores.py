"""What sites count of the final model ends up in the run folder, and spoils no run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dcfl.config import load_experiment
from dcfl.engines.embedded import Embedded
from dcfl.engines.engine import OwnScores, Session
from dcfl.engines.memories import Memories
from dcfl.errors import NetworkError
from dcfl.messages import Tensors
from dcfl.runs.evaluations import read_evaluations
from dcfl.runs.run import Result, Run
from dcfl.scores import Scores

Ask = Callable[[Tensors], Sequence[OwnScores]]


def trained(folder: Path, ask: Ask) -> Result:
    """Clients train here, and `ask` says what sites would."""

    @contextmanager
    def connect(session: Session) -> Iterator[Any]:
        engine = Embedded(session.runner, Memories(session.memories, budget=10**9))
        clients = torch.zeros(2, dtype=torch.float64)
        engine.sites = SimpleNamespace(
            own_accuracies=clients, site_scores=lambda: (), own_scores=ask, absent=()
        )  # type: ignore[assignment]
        yield engine

    changes: dict[str, Any] = {"federation.rounds": 1, "data.clients": 2, "training.epochs": 1}
    experiment = load_experiment(method="fedavg", **changes, **{"output.dir": str(folder)})
    run = Run(experiment, connect=connect)
    assert len(list(run.rounds())) == 1
    return run.result()


def test_the_sum_of_what_sites_count_is_kept(tmp_path: Path) -> None:
    labels = torch.arange(20) % 10
    right = Scores.of(torch.nn.functional.one_hot(labels, 10).float(), labels)
    wrong = Scores.of(torch.nn.functional.one_hot((labels + 1) % 10, 10).float(), labels)
    sites = [OwnScores("north", right, 1.0), OwnScores("south", wrong + wrong, 0.5)]
    result = trained(tmp_path / "run", lambda weights: sites)
    (record,) = read_evaluations(result.folder)
    assert record.scores == right + wrong
    assert record.scores.accuracy == 50.0
    assert [(site.name, site.images, site.accuracy) for site in record.clients] == [
        ("north", 20, 100.0),
        ("south", 40, 0.0),
    ]
    assert record.weights_sha256 == result.summary.weights_sha256
    assert "Which class is taken for which" in (result.folder / "report.html").read_text()


def test_sites_that_do_not_answer_spoil_nothing(tmp_path: Path) -> None:
    def fail(weights: Tensors) -> Sequence[OwnScores]:
        raise NetworkError("the SuperLink does not answer")

    with pytest.warns(UserWarning, match="have not scored the final model: the SuperLink"):
        result = trained(tmp_path / "run", fail)
    assert result.summary.rounds == 1
    assert not read_evaluations(result.folder)
