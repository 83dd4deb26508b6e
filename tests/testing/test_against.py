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


DITTO = """
import torch.nn.functional as F
from typing import ClassVar

@dataclass(frozen=True)
class Mine(dcfl.Method):
    neutral: ClassVar = None

    def own_objective(self, client):
        own = client.own_model

        def loss(batch):
            gaps = [own.get_parameter(n) - client.received[n] for n, _ in client.trainable()]
            apart = torch.cat([gap.flatten() for gap in gaps])
            return F.cross_entropy(own(batch.images).logits, batch.labels) + PULL

        return loss
"""


@pytest.mark.parametrize(
    ("pull", "sound"), [("0.9 * apart.norm()", False), ("0.05 * apart @ apart", True)]
)
def test_the_clients_own_models_are_compared(pull: str, sound: bool, tmp_path: Path) -> None:
    """The shared model is FedAvg's in both, whatever pulls the own ones towards it."""
    file = tmp_path / "mine.py"
    file.write_text(HEAD + DITTO.replace("PULL", pull))
    (verdicts,) = check_against("ditto", file).values()
    assert [verdict.holds for verdict in verdicts] == [True, True, True, sound, sound]
    assert all("own model" in verdict.property for verdict in verdicts[3:])


def test_a_method_without_own_models_is_no_ditto(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(HEAD + SLOWER)
    (verdicts,) = check_against("ditto", file).values()
    assert not verdicts[-1].holds
    assert "only one of the two has 0/" in verdicts[-1].detail


def test_own_weights_are_compared(tmp_path: Path) -> None:
    """Of pFedMe they are not a matter of an objective."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\n"
        "from dcfl.methods.personal.pfedme import PFedMe\n"
        "@dataclass(frozen=True)\nclass Mine(PFedMe):\n    name: ClassVar = 'mine'\n"
        "    def own_weights(self, client):\n"
        "        return {n: 1.1 * t for n, t in super().own_weights(client).items()}\n"
    )
    (verdicts,) = check_against("pfedme", file).values()
    assert [verdict.holds for verdict in verdicts] == [True, True, True, False]


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
