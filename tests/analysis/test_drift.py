"""Against rounds that are put together here from the one local loop, without an engine."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from dcfl.analysis import drift as drifting
from dcfl.analysis.drift import Drift, keeps_state, measure_drift, pairwise_cosines
from dcfl.data import FederatedData
from dcfl.errors import ConfigError
from dcfl.local_training import train_client
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import METHODS
from dcfl.models import FeatureModel
from dcfl.runs.folder import RecordedRun
from dcfl.runs.model_file import load_model
from dcfl.trained.subject import Subject, open_subject
from tests.analysis.trained import copied, train


def replies(
    subject: Subject, clients: list[int], shared: Tensors, memories: dict[int, Tensors]
) -> list[ClientUpdate]:
    """One round of these clients from the final model; what they keep goes into `memories`."""
    model = load_model(subject.run.folder)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    partition = subject.experiment.data.split(subject.dataset)
    found = []
    for client in clients:
        update, memories[client] = train_client(
            subject.experiment.method,
            model,
            FederatedData(subject.dataset, partition).client(client),
            Broadcast(subject.round + 1, start, shared),
            memories.get(client, {}),
            subject.experiment.training,
            client,
            subject.experiment.federation.seed,
        )
        found.append(update)
    return found


def check(subject: Subject, found: Drift, updates: list[ClientUpdate]) -> None:
    start = load_model(subject.run.folder)
    names = [name for name, _ in start.named_parameters()]
    weights = dict(start.state_dict())
    moved = []
    for own, update in zip(found.clients, updates, strict=True):
        assert own.client == update.client
        change = [(update.weights[name] - weights[name]).double().flatten() for name in names]
        moved.append(torch.cat(change).numpy())
        length = math.sqrt(sum(float(weights[name].double().square().sum()) for name in names))
        assert own.weights == pytest.approx(np.linalg.norm(moved[-1]) / length, rel=1e-3)
        local = load_model(subject.run.folder)
        local.load_state_dict(update.weights)
        assert own.features == pytest.approx(turn(subject, start, local), rel=1e-2)
    cosines = [
        a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        for index, a in enumerate(moved)
        for b in moved[index + 1 :]
    ]
    assert found.update_cosines == pytest.approx(np.array(cosines), abs=1e-3)
    assert found.agreement == pytest.approx(np.mean(cosines), abs=1e-3)


@torch.no_grad()
def turn(subject: Subject, start: FeatureModel, local: FeatureModel) -> float:
    inputs = subject.dataset.preparation.clean(subject.dataset.test.pixels)
    here, there = (model(inputs).embedding.double().numpy() for model in (start, local))
    total = 0.0
    for a, b in zip(here, there, strict=True):
        total += 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    return total / len(inputs)


def test_drift_of_fedavg_is_that_of_one_more_round(fedavg: RecordedRun) -> None:
    subject = open_subject(fedavg)
    found = measure_drift(subject, clients=3)
    assert not found.rehearsed
    assert (found.round, found.images, found.failures) == (3, 355, ())
    clients = [own.client for own in found.clients]
    assert clients == sorted(set(clients))
    check(subject, found, replies(subject, clients, {}, {}))


@pytest.mark.parametrize("method", ["dcfl-pw", "moon", "scaffold"])
def test_what_a_run_has_not_kept_is_made_again(method: str, tmp_path: Path) -> None:
    """Prototypes, previous models, control variates: by a round before, of the same clients."""
    changes = {"method.mu": 5.0} if method == "moon" else {}
    subject = open_subject(train(tmp_path / "run", **{"method.name": method, **changes}))
    found = measure_drift(subject, clients=3)
    assert found.rehearsed
    clients = [own.client for own in found.clients]
    memories: dict[int, Tensors] = {}
    rehearsal = replies(subject, clients, {}, memories)
    uploads = [update.upload for update in rehearsal]
    shared = subject.experiment.method.merge({}, uploads, len(uploads))
    check(subject, found, replies(subject, clients, shared, memories))


def test_which_methods_need_a_rehearsal() -> None:
    needed = {name for name, method in METHODS.items() if keeps_state(method())}
    zoo = {"feddyn", "fedspeed", "feddc", "feddisco", "q-fedavg", "ccvr", "fedgen"}
    personal = {"apfl", "fedala", "fedpac", "fedproto", "fedrod", "ifca"}
    assert needed == {"fedproc", "fedpcl", "dcfl-pw", "moon", "scaffold"} | zoo | personal


def test_a_client_that_does_not_move_does_not_drift(tmp_path: Path) -> None:
    """Group normalisation: running statistics would move whatever the step is."""
    still = {"method.name": "fedavg", "training.lr": 1e-60, "model.norm": "group"}
    found = measure_drift(open_subject(train(tmp_path / "run", **still)), clients=2)
    assert [own.weights for own in found.clients] == [0, 0]
    assert found.features == pytest.approx(0, abs=1e-12)
    assert not len(found.update_cosines)  # nobody has a direction
    assert found.as_json()["update_pairs"] == 0
    assert math.isnan(found.agreement)


def test_the_same_bits_twice_and_the_run_as_it_was(fedproc: RecordedRun) -> None:
    before = {path: path.read_bytes() for path in fedproc.folder.iterdir()}
    one, again = (measure_drift(open_subject(fedproc), clients=2) for _ in range(2))
    assert one.as_json() == again.as_json()
    assert before == {path: path.read_bytes() for path in fedproc.folder.iterdir()}


def test_a_pool_gives_the_same_numbers(tmp_path: Path, fedproc: RecordedRun) -> None:
    one = measure_drift(open_subject(fedproc), clients=3)
    text = fedproc.config_text.replace("workers = 1", "workers = 2")
    again = copied(fedproc, tmp_path / "run")
    (again.folder / "config.toml").write_text(text)
    pooled = measure_drift(open_subject(again), clients=3)
    assert pooled.clients == one.clients
    assert pooled.update_cosines.tolist() == one.update_cosines.tolist()


def test_faults_and_attacks_are_left_out(tmp_path: Path) -> None:
    quiet = {"method.name": "fedavg", "federation.participation": 0.5}
    loud = {**quiet, "attack.kind": "sign-flip", "attack.share": 0.4, "faults.crash": 0.3}
    subject = open_subject(train(tmp_path / "loud", **loud))
    found = measure_drift(subject, clients=1000)  # more than there are
    assert not found.failures
    clients = [own.client for own in found.clients]
    assert clients == list(range(subject.experiment.data.population))
    check(subject, found, replies(subject, clients, {}, {}))


def test_a_client_that_diverges_is_named(fedavg: RecordedRun, tmp_path: Path) -> None:
    run = copied(fedavg, tmp_path / "run")
    text = run.config_text.replace("lr = 0.01", "lr = 1e37", 1)
    (run.folder / "config.toml").write_text(
        text.replace("max_grad_norm = 10.0", "max_grad_norm = 0")
    )
    found = measure_drift(open_subject(RecordedRun.open(run.folder)), clients=2)
    assert not found.clients
    assert len(found.failures) == 2
    assert "no longer finite" in found.failures[0]
    assert math.isnan(found.weights)


def test_another_split_is_refused(fedavg: RecordedRun, tmp_path: Path) -> None:
    run = copied(fedavg, tmp_path / "run")
    (run.folder / "config.toml").write_text(run.config_text.replace("alpha = 0.3", "alpha = 0.4"))
    with pytest.raises(ConfigError, match="--no-drift"):
        measure_drift(open_subject(RecordedRun.open(run.folder)), clients=2)


def test_cosines_between_updates_by_hand() -> None:
    vectors = [torch.tensor(v) for v in ([1.0, 0.0], [0.6, 0.8], [-1.0, 0.0])]
    assert pairwise_cosines(vectors) == pytest.approx([0.6, -1, -0.6])
    assert pairwise_cosines(vectors[:1]).shape == (0,)


def test_updates_beyond_the_memory_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, fedproc: RecordedRun
) -> None:
    monkeypatch.setattr(drifting, "MOST_NUMBERS", 250_000)  # two updates of this model
    found = measure_drift(open_subject(fedproc), clients=3)
    assert len(found.clients) == 3
    assert len(found.update_cosines) == 1
