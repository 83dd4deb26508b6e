"""data.mean and data.std: used for every data set, and kept with the trained model."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import dcfl
from dcfl.data import DataSettings, load_dataset
from dcfl.data.catalogue import load_own_site
from dcfl.data.readers import cifar
from dcfl.errors import ConfigError
from tests.data import cifar_files
from tests.data.pictures import class_folders, tiny_imagenet

COLOURS = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.25, 1.0)}
GREY = {"mean": (0.4,), "std": (0.2,)}


def write_npz(folder: Path, channels: int) -> str:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, channels), dtype=np.uint8)
    labels = np.arange(12) % 3
    path = folder / "mine.npz"
    np.savez(path, train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels)
    return f"npz:{path}"


def write_cifar(folder: Path, name: str) -> str:
    cifar_files.write(folder, cifar_files.SMALL[name])
    return name


def write_tiny(folder: Path) -> str:
    tiny_imagenet(folder)
    return "tiny-imagenet"


def write_sites(folder: Path) -> str:
    for site in ("north", "south"):
        class_folders(folder / "sites" / site, cat=4, dog=4)
    return f"sites:{folder / 'sites'}"


DATA_SETS: dict[str, Callable[[Path], str]] = {
    "digits": lambda folder: "digits",
    "cifar10": lambda folder: write_cifar(folder, "cifar10"),
    "cifar100": lambda folder: write_cifar(folder, "cifar100"),
    "tiny-imagenet": write_tiny,
    "npz in grey": lambda folder: write_npz(folder, 1),
    "npz in colour": lambda folder: write_npz(folder, 3),
    "folder": lambda folder: f"folder:{class_folders(folder / 'pictures', cat=5, dog=5)}",
    "sites": write_sites,
}


@pytest.fixture(autouse=True)
def small_and_cached_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cifar, "LAYOUTS", cifar_files.SMALL)


@pytest.mark.filterwarnings("ignore:.*checksum", "ignore:.*not the official")
@pytest.mark.parametrize("kind", DATA_SETS)
def test_every_data_set_is_normalised_as_it_is_told(kind: str, tmp_path: Path) -> None:
    name, usual = DATA_SETS[kind](tmp_path), {"path": str(tmp_path), "image_size": 8}
    before = load_dataset(DataSettings(dataset=name, **usual))  # type: ignore[arg-type]
    wanted = GREY if before.channels == 1 else COLOURS
    dataset = load_dataset(DataSettings(dataset=name, **usual, **wanted))  # type: ignore[arg-type]
    assert dataset.preparation.augmentation == before.preparation.augmentation
    pixels = dataset.test.pixels
    mean, std = torch.tensor(wanted["mean"]), torch.tensor(wanted["std"])
    expected = ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)
    torch.testing.assert_close(dataset.preparation.clean(pixels), expected)


@pytest.mark.parametrize(
    "wrong",
    [
        COLOURS,  # one number for each channel
        {"mean": (0.5,)},
        {"mean": (0.5,), "std": (0.2, 0.2)},
        {"mean": (float("nan"),), "std": (0.2,)},
        {"mean": (0.5,), "std": (0.0,)},
        {"mean": (1.5,), "std": (0.2,)},  # pixels lie in zero to one
        {"mean": (0.5,), "std": (3.0,)},
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(ConfigError, match=r"data\.(mean|std)"):
        load_dataset(DataSettings(**wrong))  # type: ignore[arg-type]


def test_the_recorded_model_carries_them(tmp_path: Path) -> None:
    run = dcfl.run(
        out=tmp_path / "run",
        method="fedavg",
        data=GREY,
        federation={"rounds": 1},
        engine={"workers": 1},
    )
    preparation = dcfl.load_model(run.folder).preparation
    assert preparation is not None
    assert (preparation.mean, preparation.std) == (GREY["mean"], GREY["std"])


def test_sites_of_a_federation_agree_on_them(tmp_path: Path) -> None:
    """With remote data nothing is measured: what is agreed, or a half and a quarter."""
    settings = DataSettings(dataset="remote", class_names=("cat", "dog"), image_size=8, clients=2)
    data = write_sites(tmp_path)
    dataset, _ = load_own_site(settings, data, "north", 0)
    assert (dataset.preparation.mean, dataset.preparation.std) == ((0.5,) * 3, (0.25,) * 3)
    told = DataSettings(
        dataset="remote",
        class_names=("cat", "dog"),
        image_size=8,
        clients=2,
        **COLOURS,  # type: ignore[arg-type]
    )
    for each in (load_dataset(told), load_own_site(told, data, "north", 0)[0]):
        assert (each.preparation.mean, each.preparation.std) == (COLOURS["mean"], COLOURS["std"])
