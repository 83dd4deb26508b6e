"""Numbers and tensors of one's own: logged, kept, and read again from the run's folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import dcfl
from dcfl.analysis.similarity import look_at
from dcfl.errors import ConfigError, RunMissing
from dcfl.models.parts import all_but
from dcfl.runs.folder import RecordedRun
from dcfl.system.tensor_files import read_tensors, write_tensors
from dcfl.tensors import as_rows, checksum, sha256
from dcfl.trackers import numbers
from dcfl.trained.embed import embed_pictures
from dcfl.trained.evaluate import evaluation_of

QUICK: dict[str, Any] = {
    "federation.rounds": 4,
    "data.clients": 8,
    "federation.participation": 0.5,
    "engine.workers": 1,
    "output.report": False,
    "model.width": 4,
}


@dataclass(frozen=True)
class Logging(dcfl.Method):
    """FedAvg that counts the images of each step."""

    name = "logging"

    def objective(self, client: dcfl.Client) -> dcfl.Objective:
        plain = super().objective(client)

        def loss(batch: dcfl.Batch) -> torch.Tensor:
            client.log("batch", len(batch.labels))
            return plain(batch)

        return loss

    def merge(self, shared: Any, uploads: Sequence[Any], population: int) -> Mapping[str, Any]:
        assert not [name for name in shared if name.startswith("log/")]  # and so in no message
        return {**shared, "log/population": torch.tensor(float(population))}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    more = {"output.keep_every": 2, "output.keep_updates": True, "output.report": True}
    folder = tmp_path_factory.mktemp("runs") / "kept"
    return dcfl.open_run(dcfl.run(method=Logging(), out=folder, **{**QUICK, **more}).folder)


def test_clients_log_their_mean_and_rounds_that_of_the_clients(kept: RecordedRun) -> None:
    for row in kept.rounds:
        clients = [one for one in kept.clients if one.round == row.round]
        for one in clients:  # each image is in one batch of each epoch
            steps = one.num_steps / 5
            assert one.metrics["log/batch"] == pytest.approx(one.num_examples / steps, rel=0.05)
        sizes = np.array([one.num_examples for one in clients])
        told = np.array([one.metrics["log/batch"] for one in clients])
        assert row.logged["batch"] == pytest.approx((sizes * told).sum() / sizes.sum())
        assert row.logged["population"] == row["log/population"] == 8
        assert row["log/nothing"] is None
        assert numbers(row)["log/batch"] == row.logged["batch"]
    assert "Line chart of batch, population." in (kept.folder / "report.html").read_text()


def test_it_changes_nothing_and_is_the_same_in_a_pool(kept: RecordedRun, tmp_path: Path) -> None:
    plain = dcfl.run(method="fedavg", out=tmp_path / "plain", **QUICK)
    assert kept.summary
    assert plain.summary.weights_sha256 == kept.summary.weights_sha256
    assert "logged" not in json.loads((plain.folder / "rounds.jsonl").read_text().split("\n")[0])
    pool = dcfl.run(method=Logging(), out=tmp_path / "pool", **{**QUICK, "engine.workers": 2})
    assert [row.logged for row in pool.rounds] == [row.logged for row in kept.rounds]


def test_models_of_rounds(kept: RecordedRun) -> None:
    assert kept.summary
    assert sha256(kept.model(round=4).state_dict()) == kept.summary.weights_sha256
    assert sha256(kept.model(round=2).state_dict()) != kept.summary.weights_sha256
    with pytest.raises(RunMissing, match="has not kept round 3"):
        kept.model(round=3)
    with pytest.raises(ConfigError, match="keep_every"):
        dcfl.run(**QUICK, output={"keep_updates": True})


def test_a_model_takes_prepared_test_images(kept: RecordedRun) -> None:
    """As docs/experiments.md shows it."""
    model, images = kept.model(round=4), kept.test_images
    assert model.preparation
    with torch.no_grad():
        logits = model(model.preparation.clean(images.pixels)).logits
    right = (logits.argmax(dim=1) == images.labels).double().mean()
    assert 100 * float(right) == pytest.approx(kept.rounds[-1].accuracy)


def test_the_mean_of_the_updates_is_the_model(kept: RecordedRun) -> None:
    updates, state = kept.updates(4), kept.model(round=4).state_dict()
    assert len(updates) == len([*kept.folder.glob("round-000004-client-*.safetensors")]) == 4
    for name in (name for name, tensor in state.items() if tensor.is_floating_point()):
        sent = torch.stack([one.weights[name] for one in updates.values()])
        torch.testing.assert_close(sent.double().mean(dim=0).float(), state[name])


def test_what_was_kept_is_listed_and_read(kept: RecordedRun) -> None:
    assert kept.kept_rounds == [2, 4]
    rows = [row for row in kept.clients if row.round == 2]
    updates = kept.updates(2)
    assert list(updates) == [row.client for row in rows]
    for row in rows:
        assert updates[row.client].num_examples == row.num_examples
        assert updates[row.client].metrics == row.metrics
    with pytest.raises(RunMissing, match=r"no update of round 3: see output\.keep_updates"):
        kept.updates(3)


def test_test_images_and_embeddings(kept: RecordedRun) -> None:
    features, labels = kept.embeddings()
    model, images = kept.model(), kept.test_images
    assert model.preparation
    with torch.no_grad():
        expected = model(model.preparation.clean(images.pixels))
    torch.testing.assert_close(features, expected.embedding)
    assert torch.equal(labels, images.labels)
    early, _ = kept.embeddings(round=2)
    assert not torch.equal(early, features)
    by_name = embed_pictures(kept.folder, ["digits"], "features")  # `dcfl embed RUN digits`
    assert np.array_equal(by_name.features, features.numpy())
    assert by_name.labels.tolist() == labels.tolist()


def test_files_have_tensors_as_torch_shows_them(tmp_path: Path, kept: RecordedRun) -> None:
    newest = max(kept.folder.glob("checkpoint-*.safetensors"))
    stored, state = load_file(newest), kept.model().state_dict()
    for name, tensor in state.items():
        assert torch.equal(stored[f"weights/{name}"], tensor)
    kernel = {"a": torch.randn(2, 3, 5, 4).contiguous(memory_format=torch.channels_last)}
    write_tensors(tmp_path / "new", kernel, "text")
    # As dcfl 0.2 wrote it.
    metadata = {"names": '["a"]', "text": "text", "checksum": checksum(kernel, "text")}
    save_file(as_rows(kernel), tmp_path / "old", metadata)
    for file in ("new", "old"):
        found, _ = read_tensors(tmp_path / file)
        assert torch.equal(found["a"], kernel["a"])
        assert found["a"].stride() == kernel["a"].stride()  # the layout decides the last bits


def test_fine_tuning_a_frozen_head(tmp_path: Path) -> None:
    frozen = {"model.freeze": ["classifier"], "data.alpha": 0.1, "training.lr": 0.05}
    run = dcfl.run(method="fedavg", out=tmp_path / "run", **{**QUICK, **frozen})

    def tuned(*parts: str) -> float:
        record = evaluation_of(run.folder, fine_tune=2, parts=parts)
        return float(record.fine_tuned_fairness.mean or 0)

    found = {parts: tuned(*parts) for parts in ((), ("classifier",), ("all",))}
    assert len({*found.values()}) == 3
    assert found[("classifier",)] > 50
    with pytest.raises(ConfigError, match='no part "clasifier"'):
        tuned("clasifier")


def test_all_but_some_parts() -> None:
    network = dcfl.build_model(dcfl.ModelSettings("resnet8"), 1, 8, 10, 0)
    rest = all_but(network, ["classifier", "stages.2"])
    kept = [
        n for n in network.state_dict() if not any(n == r or n.startswith(f"{r}.") for r in rest)
    ]
    assert {name.split(".")[0] for name in kept} == {"classifier", "stages"}
    assert all(name.startswith(("classifier.", "stages.2.")) for name in kept)
    assert all_but(network, ["all"]) == []
    tokens = dcfl.build_model(dcfl.ModelSettings("transformer"), 9, (4,), 3, 0)
    assert "places" in all_but(tokens, ["classifier"])  # a parameter of the model itself


@pytest.mark.parametrize("network", ["cnn", "lenet", "resnet8", "cnn1d"])
def test_maps_are_the_stages_before_they_are_pooled(network: str) -> None:
    series = network == "cnn1d"
    size: Any = (20,) if series else 20
    model = dcfl.build_model(dcfl.ModelSettings(network), 3, size, 5, 0)
    images = torch.randn(4, 3, 20) if series else torch.randn(4, 3, 20, 20)
    output, maps = model.eval().maps(images)
    assert len(maps) == len(output.stages)
    for unpooled, pooled in zip(maps, output.stages, strict=True):
        assert unpooled.dim() == 4
        torch.testing.assert_close(unpooled.mean(dim=(2, 3)), pooled)
    maps[0].square().mean().backward()  # for terms on them
    assert any(live.grad is not None for live in model.parameters())
    torch.testing.assert_close(model(images).logits, output.logits)  # nobody listens any more


def test_maps_of_an_adapted_module_and_of_none() -> None:
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2)
    )
    _, maps = dcfl.adapt(layers, stages=["0"]).maps(torch.zeros(2, 1, 8, 8))
    assert maps[0].shape == (2, 4, 6, 6)
    linear = dcfl.build_model(dcfl.ModelSettings("linear"), 1, 8, 2, 0)
    with pytest.raises(ConfigError, match="has no maps"):
        linear.maps(torch.zeros(2, 1, 8, 8))


def test_tsne_of_the_test_images(kept: RecordedRun) -> None:
    pytest.importorskip("sklearn")
    embeddings, labels = kept.embeddings()
    plane, _ = look_at(embeddings[:120], labels[:120], seed=1, layout="tsne")
    again, _ = look_at(embeddings[:120], labels[:120], seed=1, layout="tsne")
    assert np.array_equal(plane.points, again.points)
    near = np.linalg.norm(plane.points[:, None] - plane.points[None], axis=2)
    np.fill_diagonal(near, np.inf)
    unit = torch.nn.functional.normalize(embeddings[:120], dim=1)
    cosines = (unit @ unit.T).fill_diagonal_(-2)
    closest = cosines.topk(10, dim=1).indices.numpy()
    hits = [row in closest[at] for at, row in enumerate(near.argmin(axis=1))]
    assert np.mean(hits) > 0.8  # by chance 0.08


def test_a_program_that_is_missing_is_named(
    kept: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ConfigError, match="umap-learn"):
        look_at(*kept.embeddings(), layout="umap")
