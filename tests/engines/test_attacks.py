"""Clients that lie: who, what they send, and that nobody else changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dcfl.client import Client
from dcfl.config import as_tables, experiment_from, parse_settings, to_toml
from dcfl.data import DataSettings, load_dataset
from dcfl.engines.attacks import attack_on
from dcfl.engines.runner import ClientRunner, client_runner
from dcfl.errors import ConfigError, ProtocolError
from dcfl.experiment import AttackSettings, Experiment
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import METHODS, Method
from dcfl.runs.prepare import resolved
from dcfl.server.validation import Schema, check_update
from dcfl.tensors import sha256, snapshot
from tests.engines.runs import Flat, bits, trained

KINDS = ["sign-flip", "noise", "scaling", "label-flip", "prototype-flip"]
PARAMETERS = ["classifier.weight", "convolutions.0.weight"]


def runner(attack: AttackSettings, **method: Any) -> ClientRunner:
    digits = load_dataset(DataSettings())
    experiment = Experiment(
        method=METHODS["dcfl-pw"](**method), training=LocalTraining(epochs=1), attack=attack
    )
    partition = experiment.data.split(digits)
    return client_runner(resolved(experiment, digits, partition), digits, partition)


def visit(made: ClientRunner, client: int) -> tuple[ClientUpdate, Broadcast]:
    sent = Broadcast(1, snapshot(made.model), {})
    reply, _ = made.train(sent, client, {})
    assert isinstance(reply, ClientUpdate)
    return reply, sent


def honest_and_forged(kind: str, strength: float = 10.0, **method: Any) -> tuple[Any, Any, Any]:
    """What an attacker would have sent, what it sends, and what it was sent."""
    lying = runner(AttackSettings(kind, 0.2, strength), **method)  # type: ignore[arg-type]
    assert lying.attack is not None
    client = min(lying.attack.clients)
    forged, sent = visit(lying, client)
    honest, _ = visit(replace(lying, model=runner(AttackSettings()).model, attack=None), client)
    return honest, forged, sent


@pytest.mark.parametrize(("kind", "factor"), [("sign-flip", -10.0), ("scaling", 100.0)])
def test_a_change_goes_the_other_way_or_too_far(kind: str, factor: float) -> None:
    honest, forged, sent = honest_and_forged(kind, abs(factor))
    for name in PARAMETERS:
        expected = sent.weights[name] + factor * (honest.weights[name] - sent.weights[name])
        torch.testing.assert_close(forged.weights[name], expected)


def test_noise_has_its_length_and_no_direction() -> None:
    honest, forged, sent = honest_and_forged("noise", 7.0)
    names = [name for name in honest.weights if name not in _buffers(honest)]
    change, noise = (
        torch.cat([(each.weights[n] - sent.weights[n]).flatten() for n in names])
        for each in (honest, forged)
    )
    assert noise.norm().item() == pytest.approx(7 * change.norm().item(), rel=1e-4)
    assert abs(torch.cosine_similarity(noise, change, dim=0).item()) < 0.05


@pytest.mark.parametrize("kind", ["sign-flip", "noise", "scaling", "prototype-flip"])
def test_all_else_is_as_an_honest_client_sends_it(kind: str) -> None:
    honest, forged, _ = honest_and_forged(kind)
    for name in _buffers(honest):
        assert torch.equal(forged.weights[name], honest.weights[name])
    assert torch.equal(forged.upload["counts"], honest.upload["counts"])
    assert (forged.num_examples, forged.num_steps) == (honest.num_examples, honest.num_steps)
    same_weights = sha256(forged.weights) == sha256(honest.weights)
    same_sums = torch.equal(forged.upload["sums"], honest.upload["sums"])
    assert (same_weights, same_sums) == (kind == "prototype-flip", kind != "prototype-flip")


def test_flipped_prototypes_point_the_other_way() -> None:
    honest, forged, _ = honest_and_forged("prototype-flip")
    torch.testing.assert_close(forged.upload["sums"], -10 * honest.upload["sums"])


@dataclass(frozen=True)
class Forgeable(Method):
    least: float = 0.0

    def upload(self, client: Client) -> Tensors:
        return {"size": torch.tensor([1e3]), "count": torch.tensor([7])}

    def check_upload(self, update: ClientUpdate, training: LocalTraining) -> None:
        if update.upload["size"] < self.least:
            raise ProtocolError("a size that cannot be")


@pytest.mark.parametrize(("least", "factor"), [(-1e6, -3.0), (-1e3, -1.0)])
def test_any_upload_is_forged_if_the_server_accepts_it(least: float, factor: float) -> None:
    digits, attack = load_dataset(DataSettings()), AttackSettings("prototype-flip", 0.2, 3.0)
    experiment = Experiment(
        method=Forgeable(least), training=LocalTraining(epochs=1), attack=attack
    )
    partition = experiment.data.split(digits)
    made = client_runner(resolved(experiment, digits, partition), digits, partition)
    assert made.attack is not None
    for client in (min(made.attack.clients), min(set(range(20)) - made.attack.clients)):
        upload = visit(made, client)[0].upload
        assert upload["size"].item() == 1e3 * (factor if client in made.attack.clients else 1.0)
        assert upload["count"].item() == 7
    with pytest.raises(ConfigError, match="fedprox sends nothing beside the weights"):
        Experiment(method=METHODS["fedprox"](), attack=attack)


def test_flipped_labels_are_trained_on_and_nothing_is_forged() -> None:
    honest, forged, _ = honest_and_forged("label-flip")
    assert torch.equal(forged.upload["counts"], honest.upload["counts"].flip(0))
    assert sha256(forged.weights) != sha256(honest.weights)
    lying = runner(AttackSettings("label-flip"))
    before = lying.data.dataset.train.labels.clone()
    visit(lying, min(lying.attack.clients))  # type: ignore[union-attr]
    assert torch.equal(lying.data.dataset.train.labels, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalize", [False, True])
def test_lies_pass_the_door(kind: str, normalize: bool) -> None:
    _, forged, sent = honest_and_forged(kind, 100.0, prototype_normalize=normalize)
    method = METHODS["dcfl-pw"](prototype_normalize=normalize)  # type: ignore[call-arg]
    check_update(forged, sent, Schema(method, LocalTraining(epochs=1)))


@pytest.mark.parametrize("kind", KINDS)
def test_honest_clients_are_not_touched(kind: str) -> None:
    lying, plain = runner(AttackSettings(kind)), runner(AttackSettings())  # type: ignore[arg-type]
    honest = min(set(range(20)) - lying.attack.clients)  # type: ignore[union-attr]
    one, other = visit(lying, honest)[0], visit(plain, honest)[0]
    assert sha256(one.weights) == sha256(other.weights)
    assert sha256(one.upload) == sha256(other.upload)


def test_attackers_are_drawn_from_the_seed_alone() -> None:
    def liars(kind: str = "noise", seed: int = 0, share: float = 0.2) -> frozenset[int]:
        return attack_on(20, AttackSettings(kind, share), seed).clients  # type: ignore[arg-type]

    assert len(liars()) == 4
    assert liars() == liars("sign-flip") == liars()
    assert liars() != liars(seed=1)
    assert liars() < liars(share=0.5)  # more attackers are the same ones and others
    assert [len(liars(share=share)) for share in (0.01, 0.06, 0.15, 1.0)] == [1, 2, 3, 20]
    assert runner(AttackSettings("none")).attack is None


@pytest.mark.parametrize("kind", ["noise", "label-flip", "prototype-flip"])
def test_the_pool_tells_the_same_lies(kind: str, tmp_path: Path) -> None:
    one, two = (
        bits(_attacked(tmp_path / str(workers), kind, workers, METHODS["dcfl-pw"]()))
        for workers in (1, 2)
    )
    plain = bits(trained(tmp_path / "plain", METHODS["dcfl-pw"](), 1, rounds=2, model=Flat()))
    assert one == two
    assert all(row["rejected"] == 0 for row in one["rounds"])
    assert one["weights"] != plain["weights"]


def _attacked(folder: Path, kind: str, workers: int, method: Any) -> Any:
    return trained(
        folder,
        method,
        workers,
        rounds=2,
        model=_flat(),
        attack=AttackSettings(kind, 0.3),  # type: ignore[arg-type]
    )


def _flat() -> Flat:
    torch.manual_seed(0)
    return Flat()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attack.kind=flip"], "attack.kind must be"),
        (["attack.share=0"], r"attack.share must lie in \(0, 1\]"),
        (["attack.share=1.5"], r"attack.share must lie in \(0, 1\]"),
        (["attack.strength=0"], r"attack.strength must lie in \(0, 1,000,000\]"),
        (["attack.strength=inf"], r"attack.strength must lie in \(0, 1,000,000\]"),
        (["method.name=fedavg", "attack.kind=prototype-flip"], "fedavg sends nothing beside"),
        (["attack.king=noise"], "did you mean kind"),
    ],
)
def test_mistakes_are_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment_from(None, parse_settings(words))


def test_the_config_says_that_there_were_attackers(tmp_path: Path) -> None:
    words = ["attack.kind=sign-flip", "attack.strength=3", "server.aggregation=multi-krum"]
    experiment = experiment_from(None, parse_settings([*words, "server.byzantine=0.4"]))
    text = to_toml(as_tables(experiment))
    assert '[attack]\nkind = "sign-flip"\nshare = 0.2\nstrength = 3.0' in text
    (tmp_path / "c.toml").write_text(text)
    assert experiment_from(tmp_path / "c.toml") == experiment


def _buffers(update: ClientUpdate) -> list[str]:
    return [n for n in update.weights if "running" in n or "tracked" in n]
