"""Forgetting a client: the bits of a federation that never had it, told what it costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dcfl.config import apply
from dcfl.errors import ConfigError, RunFolderError
from dcfl.experiment import EngineSettings, Experiment, FederationSettings, OutputSettings
from dcfl.methods import METHODS
from dcfl.privacy import PrivacySettings
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run
from dcfl.runs.start import Begun, Resumption
from dcfl.trained.forget import Forgetting
from tests.command_line import Call, calls
from tests.engines.runs import TRAINING, Flat, bits, federation

call = pytest.fixture(calls)
MODEL = Flat()  # a run trains a copy
ROUNDS = 6


CENTRAL = {"privacy__where": "server", "privacy__clip": 1.0, "privacy__noise": 0.6}
TURNS = {**CENTRAL, "privacy__correlated": True, "federation__sampling": "in-turn"}
FEDBUFF = {"clock__devices": "phones", "clock__mode": "fedbuff", "clock__buffer": 2}


def experiment(folder: Path, method: str = "fedavg", **settings: Any) -> Experiment:
    plain = Experiment(
        method=METHODS[method](),
        training=TRAINING,
        federation=FederationSettings(ROUNDS, 0.34),
        engine=EngineSettings(workers=1, device="cpu"),
        output=OutputSettings(str(folder), report=False, keep_every=1),
    )
    tables: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        table, _, key = name.partition("__")
        tables.setdefault(table, {})[key] = value
    return apply(plain, tables)


def finished(run: Run) -> Run:
    for _ in run.rounds():
        pass
    return run


def trained(folder: Path, method: str = "fedavg", **settings: Any) -> RecordedRun:
    run = finished(Run(experiment(folder, method, **settings), federation(), MODEL))
    return RecordedRun.open(run.folder)


def latecomer(run: RecordedRun) -> Forgetting:
    """Forgetting the client that came last."""
    there = {*range(6)}.difference(run.experiment.federation.without)
    return max((Forgetting(run, client) for client in sorted(there)), key=lambda one: one.first)


@pytest.mark.parametrize(
    ("method", "settings", "obstacle"),
    [
        ("fedavg", {}, ""),
        ("feddecorr", {"federation__sampling": "poisson"}, ""),
        ("fedavg", {**CENTRAL, "federation__sampling": "poisson"}, ""),
        ("fedavg", TURNS, ""),
        ("fedavg", {"output__keep_every": 0}, "kept no model of an earlier round"),
        ("fedavg", {"server__optimizer": "fedadam"}, "go on from more than the model"),
        ("scaffold", {}, "go on from more than the model"),
        ("fedavg", {"output__checkpoint": 0}, "no checkpoint is left"),
        ("fedavg", {"federation__selection": "samples"}, ""),
        ("fedavg", {"federation__selection": "oort"}, "go on from more than the model"),
        ("fedavg", {"clock__devices": "phones"}, "go on from more than the model"),
        ("fedavg", FEDBUFF, "go on from more than the model"),
    ],
)
def test_the_bits_are_those_of_a_federation_that_never_had_it(
    tmp_path: Path, method: str, settings: dict[str, Any], obstacle: str
) -> None:
    run = trained(tmp_path / "with", method, **settings)
    forgetting = latecomer(run)
    assert forgetting.first > 1
    assert obstacle in forgetting.cost
    assert forgetting.start == (0 if obstacle else forgetting.first - 1)
    without = finished(forgetting.begin(tmp_path / "without", MODEL))
    gone = {"federation__without": (forgetting.client,)}
    fresh = Run(experiment(tmp_path / "fresh", method, **settings, **gone), federation(), MODEL)
    assert bits(without) == bits(finished(fresh))
    assert bits(without)["weights"] != run.summary.weights_sha256  # type: ignore[union-attr]
    assert forgetting.client not in {row.client for row in RecordedRun.open(without.folder).clients}


def test_a_client_that_is_at_work_when_the_run_ends_was_asked(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", **FEDBUFF, federation__rounds=1)
    (seen,) = {row.round for row in run.clients}
    at_work = {*range(6)}.difference(row.client for row in run.clients)
    asked = [client for client in sorted(at_work) if Forgetting(run, client).first == seen]
    assert asked
    for path in run.folder.glob("checkpoint*"):
        path.unlink()
    assert Forgetting(run, min(at_work)).first == 1  # who knows


def test_of_a_client_of_the_first_round_no_model_is_missed(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", federation__rounds=2)
    first = next(row.client for row in run.clients if row.round == 1)
    assert Forgetting(run, first).cost.endswith("from the start")


def test_not_a_pixel_of_a_client_that_is_left_out_is_used(tmp_path: Path) -> None:
    """Its images and labels are others, and no bit of the run is."""
    found = []
    for name, changed in (("as-they-are", False), ("others", True)):
        dataset = federation()
        assert dataset.partition is not None
        mine = torch.from_numpy(dataset.partition.of(2)).long()
        pixels, labels = dataset.train.pixels.clone(), dataset.train.labels.clone()
        if changed:
            pixels[mine], labels[mine] = 255 - pixels[mine], (labels[mine] + 1) % dataset.classes
        other = replace(dataset, train=replace(dataset.train, pixels=pixels, labels=labels))
        made = experiment(tmp_path / name, federation__without=(2,), federation__participation=1.0)
        found.append(bits(finished(Run(made, other, MODEL)))["weights"])
    assert found[0] == found[1]


@pytest.mark.slow
def test_several_are_forgotten_one_after_the_other(tmp_path: Path) -> None:
    once = finished(latecomer(trained(tmp_path / "all")).begin(tmp_path / "five", MODEL))
    twice = latecomer(RecordedRun.open(once.folder))
    again = finished(twice.begin(tmp_path / "four", MODEL))
    without = again.experiment.federation.without
    assert len(without) == 2
    fresh = experiment(tmp_path / "fresh", federation__without=without)
    assert bits(again) == bits(finished(Run(fresh, federation(), MODEL)))


def test_what_cannot_be_forgotten_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", federation__rounds=2)
    with pytest.raises(ConfigError, match=r"--client 6: .* trained by clients 0 to 5$"):
        Forgetting(run, 6)
    asked = run.clients[0].client
    with pytest.raises(ConfigError, match=r"was trained with another model: name its"):
        Forgetting(run, asked).begin(tmp_path / "new")  # which has a module from Python
    assert not (tmp_path / "new" / "rounds.jsonl").exists()
    other = Begun(run, 1, {**Run.resume(run.folder, model=MODEL, rounds=3).prepared.fingerprint})
    other.begun_with["torch"] = "0.4"  # type: ignore[index]
    made = experiment(tmp_path / "other", federation__rounds=3)
    with pytest.raises(ConfigError, match=r"another torch: train a new run with"):
        Run(made, federation(), MODEL, resumption=Resumption(begun=other))
    secret = PrivacySettings(clip=1.0, noise=1.0, secret=True)
    private = replace(experiment(tmp_path / "secret", federation__rounds=1), privacy=secret)
    noisy = finished(Run(private, federation(), MODEL))
    with pytest.raises(ConfigError, match="cannot be drawn again"):
        Forgetting(RecordedRun.open(noisy.folder), asked)
    (run.folder / "summary.json").unlink(missing_ok=True)
    with pytest.raises(RunFolderError, match="has not finished"):
        Forgetting(RecordedRun.open(run.folder), asked)


def test_the_verb_tells_the_cost_and_forgets(tmp_path: Path, call: Call) -> None:
    folder = tmp_path / "run"
    small = ["federation.rounds=3", "data.clients=8", "output.keep_every=1", "engine.workers=1"]
    small += ["training.epochs=1", "output.report=false"]
    call("run", *small, "method.name=fedavg", "--out", folder)
    run = RecordedRun.open(folder)
    forgetting = max((Forgetting(run, client) for client in range(8)), key=lambda one: one.first)
    client, new = forgetting.client, tmp_path / "without"
    code, _, told = call("forget", folder, "--client", client, "--dry-run")
    assert code == 0
    assert f"client {client} was first asked in round {forgetting.first} of 3" in told
    assert call("forget", folder, "--client", client, "--out", new)[0] == 0
    assert RecordedRun.open(new).experiment.federation.without == (client,)
    never = next(client for client in range(8) if not Forgetting(run, client).first)
    code, _, told = call("forget", folder, "--client", never, "--out", tmp_path / "none")
    assert code == 0
    assert "nothing is trained" in told
    assert not (tmp_path / "none").exists()
