"""dcfl embed with a network of one's own: the features of a whole data set."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from dcfl.config import experiment_from
from dcfl.data import Dataset, DataSettings, load_dataset
from dcfl.models.own_models import OWN_MODELS, register_model
from dcfl.trained import embed as backbone
from tests.command_line import Call
from tests.trained.picture_runs import coloured

SIZE = 12
NETWORK = """
import torch
from torch import nn

def small_eyes(channels, size, classes):
    torch.manual_seed(5)
    return nn.Sequential(nn.Conv2d(channels, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(6, classes))
"""


@pytest.fixture
def network(tmp_path: Path) -> Path:
    (tmp_path / "small_eyes.py").write_text(NETWORK)
    return tmp_path / "small_eyes.py"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCFL_CACHE", str(tmp_path / "cache"))


def hospitals(folder: Path) -> Path:
    """Two sites with test pictures of their own, and patients of two pictures each."""
    rng = np.random.default_rng(0)
    for site, patients in (("north", 6), ("south", 9)):
        for part in ("train", "test"):
            for colour in ("red", "blue"):
                for patient in range(patients if part == "train" else 3):
                    place = folder / site / part / colour / f"{part}_{colour}_{patient}"
                    place.mkdir(parents=True)
                    for number in range(2):
                        coloured(colour, rng).save(place / f"{number}.png")
    return folder


def features(cli: Call, network: Path, out: Path, *settings: str) -> Dataset:
    code, shown, err = cli("embed", *settings, "--model-file", network, "--size", SIZE, "-o", out)
    assert code == 0, err
    assert "to train on" in shown
    return load_dataset(DataSettings(dataset=f"npz:{out}"))


def test_sites_patients_and_labels_stay(cli: Call, network: Path, tmp_path: Path) -> None:
    name = f"sites:{hospitals(tmp_path / 'sites')}"
    found = features(cli, network, tmp_path / "f.npz", f"data.dataset={name}")
    wanted = load_dataset(DataSettings(dataset=name, image_size=SIZE))
    assert (found.vectors, found.channels) == (True, 6)
    assert (found.site_names, found.class_names) == (("north", "south"), ("blue", "red"))
    assert found.partition is not None
    assert wanted.partition is not None
    assert [*found.partition.offsets] == [*wanted.partition.offsets] == [0, 24, 60]
    for ours, theirs in ((found.train, wanted.train), (found.test, wanted.test)):
        for what in ("labels", "groups", "owners"):
            one, other = getattr(ours, what), getattr(theirs, what)
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other), what
    assert found.group_count == 42
    code, _, err = cli(
        "run", f"data.dataset=npz:{tmp_path / 'f.npz'}", "model.name=mlp",
        "federation.rounds=1", "--out", tmp_path / "run",
    )  # fmt: skip
    assert code == 0, err


def test_a_feature_is_what_enters_the_classifier(cli: Call, network: Path, tmp_path: Path) -> None:
    """Computed anew, image by image, with Pillow's bilinear filter."""
    found = features(cli, network, tmp_path / "f.npz", "data.dataset=digits")
    digits = load_dataset(DataSettings(dataset="digits"))
    module: Any = register_model(network)
    model: nn.Module = OWN_MODELS[module].build(1, SIZE, 10).eval()
    for row in (0, 700, 1441):
        pixels = digits.train.pixels[row, :, :, 0].numpy()
        picture = Image.fromarray(pixels).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        again = torch.from_numpy(np.array(picture))[None, :, :, None]
        with torch.no_grad():
            wanted = model(digits.preparation.clean(again)).embedding[0]
        np.testing.assert_allclose(found.train.pixels[row], wanted, atol=0.02)


def test_a_split_is_the_same_as_of_the_images(cli: Call, network: Path, tmp_path: Path) -> None:
    found = features(cli, network, tmp_path / "f.npz", "data.dataset=digits")
    settings = DataSettings(clients=7, alpha=0.3, seed=3)
    digits = load_dataset(replace(settings, dataset="digits"))
    assert settings.split(found).sha256 == settings.split(digits).sha256


def test_they_are_computed_once_and_do_not_depend_on_the_cores(
    network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = register_model(network)
    monkeypatch.setattr(backbone, "CHUNK", 100)

    def made(cores: int, **data: Any) -> torch.Tensor:
        monkeypatch.setattr(backbone, "available_cores", lambda: cores)
        tables = {"data": {"dataset": "digits", **data}, "model": {"name": name}}
        return backbone.embed_dataset(experiment_from(None, tables), SIZE).train.pixels

    first = made(1)
    with monkeypatch.context() as changed:
        changed.setattr(backbone, "cached", lambda name, files, identity, read: read())
        assert torch.equal(made(3), first)
    monkeypatch.setattr(backbone, "embed", lambda *given: pytest.fail("computed again"))
    made(1)
    with pytest.raises(pytest.fail.Exception):  # other images
        made(1, test_images=20)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.name=cnn"], "cnn would have random weights: model.weights names a file"),
        (["data.dataset=remote"], "the images are at the sites"),
        (["model.name=small_eyes", "data.partition=file:x.json"], "leave the split to runs"),
        (["model.name=small_eyes", "data.dataset=npz:v.npz"], "npz:v.npz has no pictures"),
    ],
)
def test_what_cannot_be_embedded(
    settings: list[str], message: str, cli: Call, network: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    vectors = np.zeros((4, 3), np.float32)
    labels = np.array([0, 1, 0, 1])
    np.savez("v.npz", x_train=vectors, y_train=labels, x_test=vectors, y_test=labels)
    (tmp_path / "x.json").write_text("[[0, 1]]")
    code, _, err = cli("embed", *settings, "--model-file", network, "-o", "f.npz")
    assert (code, len(err.splitlines())) == (2, 1)
    assert message in err
    assert not Path("f.npz").exists()
