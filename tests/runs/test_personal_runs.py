"""Whole runs in which every client has a part of the model for itself: on every engine, resumed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dcfl import config, load_model
from dcfl.cli.cards import run_card
from dcfl.data import load_dataset
from dcfl.engines.engine import Connect, Session
from dcfl.errors import ConfigError, RunFolderError, RunMissing
from dcfl.evaluation import own_mix_accuracies, score_model
from dcfl.experiment import Experiment
from dcfl.messages import num_bytes
from dcfl.report import write_report
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run
from dcfl.system.tensor_files import read_stored, read_tensors
from dcfl.tensors import sha256
from tests.engines.runs import bits
from tests.reliability.victims import interrupted
from tests.runs.small_runs import FOUR_CLIENTS, finished, quick_experiment

HEAD = {"classifier.weight", "classifier.bias"}


def experiment(folder: Path, **settings: Any) -> Experiment:
    own = {
        **FOUR_CLIENTS,
        "method.name": "scaffold",
        "training.head_epochs": 1,
        "federation.rounds": 3,
        "federation.personal": ["classifier", "norms"],
    }
    return quick_experiment(folder, **{**own, **settings})


def trained(folder: Path, **settings: Any) -> Run:
    return finished(Run(experiment(folder, **settings)))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("alone") / "run")


def parts(run: Run) -> dict[str, tuple[str, str]]:
    """The clients' own, as they are on disk: the hash of the tensors, and whose they are."""
    read = {path.name: read_tensors(path) for path in (run.folder / "personal").iterdir()}
    return {name: (sha256(tensors), owner) for name, (tensors, owner) in read.items()}


def same(run: Run, other: Run) -> bool:
    rows = [RecordedRun.open(one.folder).personal for one in (run, other)]
    return bits(run) == bits(other) and parts(run) == parts(other) != {} and rows[0] == rows[1]


def is_personal(name: str) -> bool:
    return name.startswith(("classifier.", "norms."))


def test_the_personal_part_is_sent_in_neither_direction(alone: Run) -> None:
    weights, _ = read_stored(alone.folder / "model.safetensors")
    sent = {name: tensor for name, tensor in weights.items() if not is_personal(name)}
    for row in RecordedRun.open(alone.folder).rounds:
        both = 2 * row.sampled * num_bytes(sent)  # SCAFFOLD's variates are as large
        assert row.bytes_up == both
        assert row.bytes_down == (both if row.round > 1 else both // 2)


def test_the_servers_part_is_the_initial_one(alone: Run, tmp_path: Path) -> None:
    initial = Run(experiment(tmp_path / "run")).prepared.model.state_dict()
    weights, _ = read_stored(alone.folder / "model.safetensors")
    kept = {name for name in weights if weights[name].equal(initial[name])}
    assert kept == {name for name in weights if is_personal(name)}


def test_a_pool_has_the_same_bits(alone: Run, tmp_path: Path) -> None:
    assert same(trained(tmp_path / "pool", **{"engine.workers": 2}), alone)


def test_memories_on_disk_have_the_same_bits(alone: Run, tmp_path: Path) -> None:
    assert same(trained(tmp_path / "disk", **{"engine.memory_budget": 0}), alone)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_run_ends_with_the_same_bits(alone: Run, tmp_path: Path, workers: int) -> None:
    run = Run(experiment(tmp_path / "run", **{"engine.workers": workers}))
    folder = interrupted(run, 1)
    assert not (folder / "personal").exists()
    assert same(finished(Run.resume(folder)), alone)


def at_two_sites(there: Experiment, folder: Path, blind: bool = False) -> Connect:
    """Each site builds its model from the config alone. `blind`: the server has no test images."""
    pytest.importorskip("flwr")
    from dcfl.flower.client_app import app
    from dcfl.flower.engine import GridEngine
    from dcfl.flower.roster import Roster
    from tests.flower.in_process import InProcessGrid

    @contextmanager
    def connect(session: Session) -> Iterator[GridEngine]:
        grid = InProcessGrid(app, 2, {"experiment": config.to_toml(config.as_tables(there))})
        for number, context in enumerate(grid.contexts.values()):
            context.node_config["memories"] = str(folder / f"memories-{number}")
        if blind:
            data = session.runner.data
            dataset = replace(data.dataset, test=data.dataset.test[:0])
            runner = replace(session.runner, data=replace(data, dataset=dataset))
            session = replace(session, runner=runner)
        engine = GridEngine(session, grid, Roster(2))
        yield engine
        engine.forget()

    return connect


def test_sites_keep_their_part_and_have_the_same_bits(alone: Run, tmp_path: Path) -> None:
    """Stopped and resumed on the way. What is personal stays at the nodes after the end."""
    there = experiment(tmp_path / "flower", **{"engine.device": "cpu"})
    connect = at_two_sites(there, tmp_path)
    folder = interrupted(Run(there, connect=connect), 1)
    run = finished(Run.resume(folder, connect=connect))
    summary = run.result().summary
    assert summary.weights_sha256 == alone.result().summary.weights_sha256
    assert all(row.ok == row.sampled for row in RecordedRun.open(run.folder).rounds)
    assert list(tmp_path.glob("memories-*/*/client-*/round-*.safetensors"))
    assert summary.personal_models == 0
    assert not (run.folder / "personal").exists()


def test_flowers_simulation_has_the_same_bits(alone: Run, tmp_path: Path) -> None:
    """As on Ray, where all nodes have the run's own folder of memories."""
    pytest.importorskip("flwr")
    from tests.flower.in_process import in_process

    there = experiment(tmp_path / "flower")
    run = finished(Run(there, connect=in_process(2, same_runner=True)))
    assert parts(run) == parts(alone)  # with the hash of the global weights
    accuracies = [one.result().summary.personal_accuracy for one in (run, alone)]
    assert accuracies[0] == accuracies[1]


def test_sites_score_their_own_models_on_their_own_images(tmp_path: Path) -> None:
    two = {"data.clients": 2, "federation.participation": 1.0, "engine.device": "cpu"}
    here, there = trained(tmp_path / "here", **two), experiment(tmp_path / "there", **two)
    run = finished(Run(there, connect=at_two_sites(there, tmp_path, blind=True)))
    dataset = here.prepared.data.dataset
    accuracies = [score_model(load_model(here.folder, site), dataset).accuracy for site in (0, 1)]
    summary = run.result().summary
    assert summary.personal_models == 2
    assert summary.personal_accuracy == pytest.approx(sum(accuracies) / 2)
    assert summary.worst_decile_personal_accuracy == pytest.approx(min(accuracies))
    rows = RecordedRun.open(run.folder).personal
    assert [row.personal_accuracy for row in rows] == pytest.approx(accuracies)
    assert [row.global_accuracy for row in rows] == [summary.final_accuracy] * 2


def test_each_clients_model_is_scored_on_its_own_mix_of_classes(alone: Run) -> None:
    """Against models that are loaded from the folder."""
    summary, experiment = alone.result().summary, RecordedRun.open(alone.folder).experiment
    trained_clients = sorted({row.client for row in RecordedRun.open(alone.folder).clients})
    assert summary.personal_models == len(trained_clients)
    mixes, dataset = alone.prepared.data.label_mixes(), load_dataset(experiment.data)
    accuracies = torch.tensor(
        [
            own_mix_accuracies(
                score_model(load_model(alone.folder, client), dataset).by_class,
                mixes[client : client + 1],
            )[0]
            for client in trained_clients
        ]
    )
    assert summary.personal_accuracy == pytest.approx(float(accuracies.mean()))
    assert summary.worst_decile_personal_accuracy == pytest.approx(float(accuracies.min()))
    assert summary.client_accuracy is not None
    assert float(accuracies.mean()) > summary.client_accuracy
    assert RecordedRun.open(alone.folder).summary == summary


def test_a_row_per_client_has_both_accuracies(alone: Run, tmp_path: Path) -> None:
    """Also of a client that never trained: it has no model of its own."""
    run = trained(tmp_path / "run", **{"federation.rounds": 1})
    rows, summary = RecordedRun.open(run.folder).personal, run.result().summary
    assert [row.client for row in rows] == [0, 1, 2, 3]
    of_global = [row.global_accuracy for row in rows]
    assert sum(filter(None, of_global)) / 4 == pytest.approx(summary.client_accuracy)
    known = {row.client: row.personal_accuracy for row in rows if row.personal_accuracy is not None}
    assert known.keys() == {row.client for row in RecordedRun.open(run.folder).clients}
    assert len(known) == summary.personal_models == 2
    assert sum(known.values()) / 2 == pytest.approx(summary.personal_accuracy)
    page = write_report(run.folder).read_text()
    assert "2 clients never trained." in page
    for value in known.values():
        assert f"{value:.2f}" in page
    assert "on average over clients, each on its own with models of their own" in page
    card = run_card(summary, RecordedRun.open(run.folder).rounds, "here", run.folder)
    first, second = card.splitlines()[:2]
    assert f"the clients' own models {summary.personal_accuracy:.2f} % on average, each on" in first
    assert "2 of 4 clients have one" in first
    assert second.startswith(f"global  accuracy {summary.final_accuracy:.2f} %, MAX ")
    assert second.endswith(f"; {summary.client_accuracy:.2f} % on average at the clients")
    assert "recall  of the global model, lowest of" in card
    config = run.folder / "config.toml"
    config.write_text(config.read_text().replace('"scaffold"', '"somebodys"'))
    assert run_card(summary, [], "here", run.folder).startswith(first.partition(" on ")[0])


def test_a_clients_model_is_the_global_one_with_its_own_part(alone: Run) -> None:
    whole, own = load_model(alone.folder).state_dict(), load_model(alone.folder, 0).state_dict()
    assert {name for name in whole if not whole[name].equal(own[name])} == {
        name for name in whole if is_personal(name)
    }


def test_a_model_that_is_not_there_is_refused(alone: Run, tmp_path: Path) -> None:
    with pytest.raises(RunMissing, match="client 17 has no personal model"):
        load_model(alone.folder, 17)
    plain = {"federation.personal": [], "training.head_epochs": 0, "federation.rounds": 1}
    other = trained(tmp_path / "other", **plain)
    assert "personal_accuracy" not in other.result().summary.to_json()
    with pytest.raises(RunMissing, match=r"see federation\.personal"):
        load_model(other.folder, 0)
    (other.folder / "personal").mkdir()
    name = "client-000000.safetensors"
    shutil.copy(alone.folder / "personal" / name, other.folder / "personal")
    with pytest.raises(RunFolderError, match="belongs to another run"):
        load_model(other.folder, 0)


def test_head_epochs_and_choices_need_what_they_are_about(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.head_epochs are of the part"):
        experiment(tmp_path, **{"federation.personal": []})
    with pytest.raises(ConfigError, match=r"output\.keep_best goes by the global model"):
        experiment(tmp_path, **{"output.keep_best": True, "data.holdout": 0.1})
    alone = {"federation.personal": [], "training.head_epochs": 0, "method.name": "fedavg"}
    alone |= {"federation.baseline": "alone", "federation.patience": 3, "data.holdout": 0.1}
    with pytest.raises(ConfigError, match=r"patience goes by .* or federation\.baseline"):
        experiment(tmp_path, **alone)
    with pytest.raises(ConfigError, match="must be 0"):
        experiment(tmp_path, **{"training.head_epochs": -1})


def test_privacy_covers_what_is_sent(tmp_path: Path) -> None:
    """Personal statistics are no secret, and the clipped change is that of the rest."""
    private = {"privacy.clip": 1e-3, "method.name": "fedavg", "federation.rounds": 1}
    run = trained(tmp_path / "run", **private)
    assert run.result().summary.ok == 2
    start = Run(experiment(tmp_path / "start", **private)).prepared.model.state_dict()
    moved, _ = read_stored(run.folder / "model.safetensors")
    squares = sum(float((moved[n].double() - start[n].double()).square().sum()) for n in moved)
    assert 0 < squares**0.5 <= 1.0001e-3


@pytest.mark.parametrize(
    "settings",
    [
        {"attack.kind": "sign-flip"},
        {"attack.kind": "noise"},
        {"server.aggregation": "fednova"},
        {"server.optimizer": "fedacg"},
        {"server.aggregation": "median"},
        {"method.name": "dcfl-pw", "method.prototype_model": "running"},
        {"method.name": "moon"},
    ],
    ids=str,
)
def test_it_goes_with_the_rest(settings: dict[str, Any], tmp_path: Path) -> None:
    run = trained(tmp_path / "run", **settings, **{"federation.rounds": 2})
    assert run.result().summary.ok == 4
