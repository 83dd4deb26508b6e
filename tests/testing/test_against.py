"""`dcfl check NAME --against FILE`: is it the same method?"""

from pathlib import Path

import pytest

from dcfl.errors import ConfigError
from dcfl.testing.contract import check_against

HEAD = """
from dataclasses import dataclass
import torch, dcfl
"""
BY_ITS_GRADIENT = """
@dataclass(frozen=True)
class ByGradient(dcfl.Method):
    def gradient(self, client, objective, batch):
        loss = super().gradient(client, objective, batch)
        for name, live in client.federated():
            live.grad += 0.01 * (live.detach() - client.received[name])
        return loss
"""
NOT_SQUARED = """
@dataclass(frozen=True)
class NotSquared(dcfl.Method):
    def objective(self, client):
        plain = super().objective(client)

        def loss(batch):
            gaps = [(live - client.received[name]) for name, live in client.federated()]
            squares = torch.stack([gap.square().sum() for gap in gaps]).sum()
            return plain(batch) + 0.01 / 2 * (squares + 1e-12).sqrt()

        return loss
"""
SLOWER = """
from dataclasses import replace
from typing import ClassVar

@dataclass(frozen=True)
class Slower(dcfl.Method):
    neutral: ClassVar = None

    def server_step(self, step):
        return replace(step, direction={name: d / 2 for name, d in step.direction.items()})
"""


def test_the_same_method_written_otherwise_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(HEAD + BY_ITS_GRADIENT)
    (verdicts,) = check_against("fedprox", file).values()
    assert all(verdict.holds for verdict in verdicts)
    assert len(verdicts) == 3


@pytest.mark.parametrize(
    ("name", "text", "holds"),
    [("fedprox", NOT_SQUARED, [True, False, False]), ("fedavg", SLOWER, [True, True, False])],
)
def test_another_penalty_and_another_server_are_told(
    name: str, text: str, holds: list[bool], tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(HEAD + text)
    (verdicts,) = check_against(name, file).values()
    assert [verdict.holds for verdict in verdicts] == holds
    assert "apart" in verdicts[2].detail


def test_a_network_has_nothing_to_be_held_against(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(HEAD + BY_ITS_GRADIENT)
    with pytest.raises(ConfigError, match="no method 'resnet8'"):
        check_against("resnet8", file)
