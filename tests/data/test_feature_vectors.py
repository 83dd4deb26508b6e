"""Feature vectors: read, normalised, trained on by every method that needs no augmentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dcfl
from dcfl.data import DataSettings, Images, load_dataset
from dcfl.data.readers.npz import read_npz
from dcfl.errors import ConfigError, DatasetCorrupt
from dcfl.methods import METHODS
from tests.toys import CONVOLUTIONAL, PERSONAL

QUICK: dict[str, Any] = {
    "model.name": "linear",
    "data.clients": 3,
    "data.min_size": 2,
    "data.alpha": 10.0,
    "training.epochs": 10,
    "training.batch_size": 16,
    "training.lr": 0.1,
    "federation.rounds": 2,
    "federation.participation": 1.0,
    "engine.workers": 1,
    "output.report": False,
}


@pytest.fixture(autouse=True)
def cached_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCFL_CACHE", str(tmp_path / "cache"))


def features(folder: Path, dtype: Any = np.float32, **changes: Any) -> str:
    """Three clouds far from zero, and a number that never varies."""
    rng = np.random.default_rng(0)
    labels = np.arange(150) % 3
    centres = 100 + 5 * rng.normal(size=(3, 6))
    vectors = (centres[labels] + rng.normal(size=(150, 6))).astype(dtype)
    vectors[:, 5] = 7
    arrays = {
        "train_features": vectors[:120],
        "train_labels": labels[:120],
        "test_features": vectors[120:],
        "test_labels": labels[120:],
    }
    np.savez(folder / "features.npz", **{**arrays, **changes})
    return f"npz:{folder / 'features.npz'}"


def test_they_are_normalised_by_the_training_part(tmp_path: Path) -> None:
    name = features(tmp_path, np.float64)
    for _ in range(2):  # the second time from the cache
        dataset = load_dataset(DataSettings(dataset=name))
        prepared = dataset.preparation.clean(dataset.train.pixels)
        assert (dataset.vectors, dataset.channels, dataset.size) == (True, 6, 1)
        assert not dataset.preparation.augmentation.active
        torch.testing.assert_close(prepared.mean(dim=0), torch.zeros(6), atol=1e-4, rtol=0)
        spread = prepared.std(dim=0, unbiased=False)
        expected = torch.tensor([1.0] * 5 + [0.0])
        torch.testing.assert_close(spread, expected, atol=1e-4, rtol=0)


def test_or_as_they_are_told(tmp_path: Path) -> None:
    settings = DataSettings(dataset=features(tmp_path), mean=(100.0,), std=(5.0,))
    dataset = load_dataset(settings)
    vectors = dataset.test.pixels
    assert torch.equal(dataset.preparation.clean(vectors), (vectors - 100) / 5)
    with pytest.raises(ConfigError, match="one number for each channel"):
        load_dataset(DataSettings(dataset=settings.dataset, mean=(1.0, 2.0), std=(1.0, 1.0)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros((120, 6), np.int64), r"feature vectors floats \[n, length\], not \[120, 6\]"),
        (np.zeros((120, 0), np.float32), "no numbers"),
        (np.full((120, 6), np.nan), "not finite"),
        (np.full((120, 6), 1e300), "not finite in float32"),
        (np.zeros((120, 5), np.float32), r"train_features are \[5\] and test_features \[6\]"),
    ],
)
def test_what_cannot_be_a_feature_vector(wrong: Any, message: str, tmp_path: Path) -> None:
    features(tmp_path, train_features=wrong)
    with pytest.raises(DatasetCorrupt, match=message):
        read_npz(tmp_path / "features.npz")


@pytest.mark.parametrize("pixels", [torch.zeros(2, 3), torch.zeros(2, 8, 8, 1, dtype=torch.uint8)])
def test_forms_and_no_other(pixels: torch.Tensor) -> None:
    labels = torch.zeros(2, dtype=torch.int64)
    assert Images(pixels, labels).vectors is (pixels.dim() == 2)
    for odd in (pixels.double(), pixels.to(torch.uint8).flatten(1)):
        with pytest.raises(DatasetCorrupt, match="other inputs float32 or int32"):
            Images(odd, labels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.name": "cnn"}, '"cnn" is not for .* feature vectors: use "linear", "mlp"'),
        ({"data.crop": 1}, r"data\.crop"),
        ({"data.flip": True}, r"data\.flip"),
        ({"data.rotation": 5.0}, r"data\.rotation"),
        ({"data.cutout": 1}, r"data\.cutout"),
    ],
)
def test_settings_for_images_are_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        trained(tmp_path, "fedavg", **settings)
    assert "\n" not in str(error.value)


def trained(folder: Path, method: str, **settings: Any) -> Any:
    return dcfl.run(
        out=folder / f"run-{method}-{len(settings)}",
        **{"method.name": method, **QUICK, "data.dataset": features(folder), **settings},
    )


# Without a projection FedETF's fixed classes may lie where no ReLU's outputs are; q-FedAvg takes
# shorter steps.
THEIR_WAY: dict[str, dict[str, Any]] = {
    "fedetf": {"model.head": "mlp16"},
    "q-fedavg": {"federation.rounds": 4},
}
# What a method needs that an MLP has not.
NEEDED = {**dict.fromkeys(CONVOLUTIONAL, "convolutions"), "fedbn": "no normalisation layers"}


@pytest.mark.parametrize("method", sorted(METHODS.keys() - NEEDED))
def test_every_method_trains_on_them(method: str, tmp_path: Path) -> None:
    way = THEIR_WAY.get(method, {})
    result = trained(tmp_path, method, **{"model.name": "mlp", "model.width": 16, **way})
    own, shared = result.summary.personal_accuracy, result.summary.final_accuracy
    assert (own if method in PERSONAL else shared) > 90
    projection = 2 * (16 * 16 + 16) if "model.head" in way else 0
    assert result.summary.parameters == 6 * 16 + 16 + projection + 16 * 3 + 3


@pytest.mark.parametrize("method", sorted(NEEDED))
def test_or_says_what_it_needs(method: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=NEEDED[method]):
        trained(tmp_path, method, **{"model.name": "mlp"})


def test_a_linear_model_and_what_comes_back_from_its_folder(tmp_path: Path) -> None:
    result = trained(tmp_path, "fedavg")
    assert result.summary.parameters == 6 * 3 + 3
    assert result.summary.final_accuracy > 90
    model = dcfl.load_model(result.folder)
    test = load_dataset(DataSettings(dataset=f"npz:{tmp_path / 'features.npz'}")).test
    assert model.preparation is not None
    hits = model(model.preparation.clean(test.pixels)).logits.argmax(dim=1) == test.labels
    assert 100 * float(hits.double().mean()) == pytest.approx(result.summary.final_accuracy)


def test_images_are_rows_of_numbers_too(tmp_path: Path) -> None:
    settings = {"data.dataset": "digits", "model.name": "linear", "data.clients": 20}
    assert trained(tmp_path, "fedavg", **settings).summary.parameters == 650


def test_a_pool_has_the_same_bits(tmp_path: Path) -> None:
    alone, pool = (
        trained(tmp_path, "dcfl-pw", **{"engine.workers": workers, **extra})
        for workers, extra in ((1, {}), (2, {"engine.threads": 1}))
    )
    assert alone.summary.weights_sha256 == pool.summary.weights_sha256
