"""Sites whose data is an .npz file of feature vectors: served, trained on, scored and labelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dcfl
from dcfl.data.settings import DataSettings
from dcfl.errors import ClassNotAgreed, ConfigError
from dcfl.flower.deploy.checks import problems
from dcfl.flower.deploy.server_app import ask_sites
from dcfl.flower.deploy.site_check import check_data
from dcfl.flower.node_config import NodeConfig
from dcfl.flower.roster import Roster
from dcfl.runs.folder import RecordedRun
from dcfl.trained.evaluate import evaluate
from tests.command_line import Call
from tests.flower.in_process import InProcessGrid
from tests.flower.sites_in_process import Sites, remote_experiment

NAMES, LENGTH = ("calm", "mixed", "wild"), 6
AGREED: dict[str, Any] = {
    "data.class_names": list(NAMES),
    "data.features": LENGTH,
    "model.name": "linear",
    "model.norm": "batch",
    "federation.rounds": 3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """whole.npz of two sites, and a file of each with the classes that it has, in an order of its
    own. Two vectors of a patient each; the south has no wild ones."""
    folder, rng = tmp_path_factory.mktemp("vectors"), np.random.default_rng(0)
    labels = np.arange(120) % 3
    site = np.where((np.arange(120) < 60) | (labels == 2), "north", "south")
    inputs = rng.normal(size=(3, LENGTH))[labels] + rng.normal(size=(120, LENGTH))
    whole = dcfl.Dataset.of(
        inputs, labels, class_names=NAMES, sites=site, groups=np.arange(120) // 6
    )
    whole.save(folder / "whole.npz")
    arrays, owners = whole.arrays, np.repeat([0, 1], np.diff(whole.arrays.site_offsets))
    for number, name in enumerate(("north", "south")):
        order = [2, 0, 1] if name == "north" else [1, 0]
        place = {label: at for at, label in enumerate(order)}
        of_site = {
            "train": (owners == number, arrays.train_pixels, arrays.train_labels),
            "test": (arrays.test_owners == number, arrays.test_pixels, arrays.test_labels),
        }
        stored: dict[str, Any] = {"class_names": [NAMES[label] for label in order]}
        for part, (own, features, classes) in of_site.items():
            stored[f"{part}_features"] = features[own]
            stored[f"{part}_labels"] = [place[label] for label in classes[own].tolist()]
            stored[f"{part}_groups"] = getattr(arrays, f"{part}_groups")[own]
        np.savez(folder / f"{name}.npz", **stored)
    return folder


def at_sites(folder: Path, tmp_path: Path, **changes: Any) -> RecordedRun:
    files = [folder / f"{name}.npz" for name in ("north", "south")]
    own = [{"data": f"npz:{file}", "memories": str(tmp_path / file.stem)} for file in files]
    return Sites(files, own).train(remote_experiment(tmp_path / "out", **AGREED, **changes))


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return at_sites(folder, tmp_path_factory.mktemp("there"))


@pytest.mark.parametrize("holdout", [0.0, 0.3])
def test_vectors_at_sites_have_the_bits_of_a_simulation(
    holdout: float, folder: Path, tmp_path: Path
) -> None:
    there = at_sites(folder, tmp_path, data__holdout=holdout)
    same = {key: value for key, value in AGREED.items() if not key.startswith("data")}
    same |= {"data.dataset": f"npz:{folder / 'whole.npz'}", "data.mean": [0.0], "data.std": [1.0]}
    same |= {"data.holdout": holdout, "training.epochs": 1, "training.batch_size": 8}
    here = dcfl.run(
        method="fedavg", out=tmp_path / "here", **same, **{"federation.participation": 1.0}
    )
    assert there.summary is not None
    assert there.summary.weights_sha256 == here.summary.weights_sha256
    assert [row.client_accuracy for row in there.rounds] == [
        row.client_accuracy for row in here.rounds
    ]


def test_such_a_model_is_scored_and_labels_the_vectors_of_a_file(
    trained: RecordedRun, folder: Path, cli: Call
) -> None:
    file = folder / "south.npz"
    scored = evaluate(trained.folder, f"npz:{file}")
    code, out, _ = cli("predict", trained.folder, file)
    assert code == 0
    labelled = [*dcfl.predict(trained.folder, file)]
    tests = [one for one in labelled if one.picture.parent.name == "test"]
    assert sum(bool(one.right) for one in tests) == scored.confusion.trace()
    assert f"{file}/train/0" in out
    assert f"of {len(labelled)} whose class is known" in out
    assert "Whether it was trained on them is not known here" in out


def test_what_embed_has_written_of_pictures_is_labelled(
    trained: RecordedRun, tmp_path: Path
) -> None:
    features = np.random.default_rng(1).normal(size=(3, LENGTH))
    named = {"files": ["a.png", "b.png", "c.png"], "class_names": ["wild", "calm"]}
    np.savez(tmp_path / "some.npz", features=features, labels=[1, -1, 0], **named)
    found = [*dcfl.predict(trained.folder, tmp_path / "some.npz")]
    assert [str(one.picture) for one in found] == ["a.png", "b.png", "c.png"]
    assert [one.truth for one in found] == ["calm", None, "wild"]
    np.savez(tmp_path / "bare.npz", features=features)
    bare = [*dcfl.predict(trained.folder, tmp_path / "bare.npz")]
    assert [one.ranking for one in bare] == [one.ranking for one in found]
    assert bare[2].picture == tmp_path / "bare.npz" / "2"


def test_what_is_of_another_kind_is_refused_in_a_line(
    trained: RecordedRun, tmp_path: Path, cli: Call
) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    np.savez(tmp_path / "long.npz", features=np.ones((2, LENGTH + 1)))
    np.savez(tmp_path / "odd.npz", features=np.ones((2, LENGTH)), labels=[0, 5])
    for words, why in (
        (["a.png"], "trained on feature vectors, not on pictures: give an .npz file"),
        (["long.npz"], f"has inputs of [7], and {trained.folder} was trained on [1, 1, 6]"),
        (["long.npz", "a.png"], "take one kind at a time"),
        (["odd.npz"], "labels, files and class_names do not fit the features"),
    ):
        code, _, err = cli("predict", trained.folder, *(tmp_path / word for word in words))
        assert code in (2, 3)
        assert why in err
        assert err.count("\n") == 1


def settings(**changes: Any) -> DataSettings:
    agreed = {"dataset": "remote", "class_names": NAMES, "features": LENGTH, "clients": 2}
    return DataSettings(**{**agreed, **changes})


def test_a_site_refuses_what_does_not_fit_its_file(folder: Path, tmp_path: Path) -> None:
    node = NodeConfig.read({"data": f"npz:{folder / 'north.npz'}"})
    with pytest.raises(ConfigError, match=r"inputs of \[6\], and the run is of \[9\]"):
        node.load(settings(features=9))
    with pytest.raises(ConfigError, match=r"and the run is of \[3, 32, 32\]"):
        node.load(settings(features=0))
    with pytest.raises(ClassNotAgreed, match="wild: not among the classes agreed on"):
        node.load(settings(class_names=("calm", "mixed")))
    with pytest.raises(ConfigError, match=r"data\.group is for pictures of your own"):
        NodeConfig.read({"data": node.data, "group": "^(P[0-9]+)"}).load(settings())
    (tmp_path / "scans" / "calm").mkdir(parents=True)
    (tmp_path / "scans" / "wild").mkdir()
    for number in range(4):
        picture = Image.new("RGB", (8, 8), (number, 0, 0))
        picture.save(tmp_path / "scans" / ("calm", "wild")[number % 2] / f"{number}.png")
    pictures = NodeConfig.read({"data": f"folder:{tmp_path / 'scans'}"})
    with pytest.raises(ConfigError, match=r"and the run is of \[6\]"):
        pictures.load(settings(class_names=("calm", "wild")))
    with pytest.raises(ConfigError, match=r"data\.features is for"):
        DataSettings(features=6)


def test_a_look_at_such_a_site(folder: Path) -> None:
    node = NodeConfig.read({"data": f"npz:{folder / 'north.npz'}"})
    found = {one.subject: one.text for one in check_data(node, settings())}
    assert found["data"].startswith("68 to train on, 12 to test on, each [6], in /")
    assert found["classes"].startswith("wild (")
    assert found["groups"].endswith("groups, by the file")
    assert found["identical"] == "none in two places that matter"
    (problem,) = problems(check_data(node, settings(features=9)))
    assert "agree on data.features" in problem.text
    pictures = NodeConfig.read({"data": f"folder:{folder}"})
    (other,) = problems(check_data(pictures, settings()))
    assert other.text == "the run is of feature vectors, and these are pictures"
    (missing,) = problems(check_data(NodeConfig.read({"data": "npz:/nowhere.npz"})))
    assert "no such file" in missing.text


def test_statistics_of_vectors(folder: Path, tmp_path: Path) -> None:
    from dcfl.config import as_tables, to_toml
    from dcfl.flower.client_app import app

    files = [folder / f"{name}.npz" for name in ("north", "south")]
    experiment = remote_experiment(tmp_path / "out", **AGREED)
    grid = InProcessGrid(app, 2, {"experiment": to_toml(as_tables(experiment))})
    for place, context in enumerate(grid.contexts.values()):
        own = {"data": f"npz:{files[place]}", "memories": str(tmp_path / f"{place}")}
        context.node_config.update(own)
    told = ask_sites(grid, Roster(2, names=("north", "south")), experiment.data)
    with np.load(files[0]) as stored:
        mean = stored["train_features"].mean(axis=0)
    assert told["north"]["mean"] == pytest.approx(mean.tolist(), rel=1e-4)
    assert told["south"]["by_class"][2] == 0
