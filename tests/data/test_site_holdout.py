"""Sites keep whole groups of their own back: in a simulation as at a node, by the hash alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dcfl
from dcfl.data import Dataset, DataSettings, Images, load_dataset
from dcfl.data.catalogue import load_own_site
from dcfl.data.splits.grouping import KEY_BITS
from tests.command_line import Call
from tests.data.pictures import class_folders
from tests.data.scanners import CLASSES, SCANNERS, scanners

SMALL: dict[str, Any] = {"training": {"batch_size": 8, "epochs": 1}, "engine": {"workers": 1}}


def settings_of(folder: Path, **changes: Any) -> DataSettings:
    return DataSettings(dataset=f"sites:{folder}", image_size=8, **changes)


def by_site(dataset: Dataset) -> list[tuple[set[int], set[int]]]:
    """The groups of each site that are trained on, and those that are scored."""
    assert dataset.partition is not None
    found = []
    for site in range(len(dataset.partition)):
        train, test = (
            dataset.train[torch.from_numpy(dataset.partition.of(site)).long()],
            dataset.test,
        )
        found.append((_groups(train), _groups(test.of(site))))
    return found


def _groups(images: Images) -> set[int]:
    assert images.groups is not None
    return {number % 2**KEY_BITS for number in images.groups.tolist()}


def test_each_site_keeps_whole_groups_back(tmp_path: Path) -> None:
    whole = load_dataset(settings_of(scanners(tmp_path)))
    held = load_dataset(settings_of(tmp_path, holdout=0.2, seed=1))
    assert held.held_out
    assert len(held.train) + len(held.test) == len(whole.train)
    for (everybody, _), (train, test) in zip(by_site(whole), by_site(held), strict=True):
        assert train | test == everybody
        assert not train & test
        assert test
    assert {*held.train.digests.tolist()} | {*held.test.digests.tolist()} == {
        *whole.train.digests.tolist()
    }
    # Whatever the seed, and whoever else comes.
    assert by_site(load_dataset(settings_of(tmp_path, holdout=0.2, seed=2))) == by_site(held)
    scanners(tmp_path, patients=14)
    grown = load_dataset(settings_of(tmp_path, holdout=0.2))
    for (train, _), (_, test) in zip(by_site(held), by_site(grown), strict=True):
        assert not train & test


@pytest.mark.parametrize("kind", ["folder", "sites"])
def test_a_node_keeps_back_what_the_simulation_does(tmp_path: Path, kind: str) -> None:
    simulated = load_dataset(settings_of(scanners(tmp_path), holdout=0.2))
    whole = load_dataset(settings_of(tmp_path)).partition
    assert whole is not None
    for number, site in enumerate(SCANNERS):
        asked = DataSettings(
            dataset="remote", clients=3, class_names=CLASSES, image_size=8, holdout=0.2
        )
        own = f"folder:{tmp_path / site}" if kind == "folder" else f"sites:{tmp_path}"
        found, split = load_own_site(asked, own, site, number)
        assert {*found.test.digests.tolist()} == {*simulated.test.of(number).digests.tolist()}
        assert len(split.of(number)) + len(found.test) == len(whole.of(number))


def test_without_groups_by_the_pixels_and_never_all(tmp_path: Path) -> None:
    for site, count in (("large", 40), ("tiny", 3)):
        class_folders(tmp_path / site, cat=count, dog=count)
    held = load_dataset(settings_of(tmp_path, holdout=0.3))
    assert held.partition is not None
    assert held.partition.sizes.min() >= 2
    sizes = np.bincount(held.test.owners, minlength=2)  # type: ignore[arg-type]
    assert 8 <= sizes[0] <= 32
    assert {*held.train.labels.tolist()} == {0, 1}


@pytest.mark.slow
def test_the_best_round_patience_and_a_sweep_at_sites(tmp_path: Path, cli: Call) -> None:
    data = {"dataset": f"sites:{scanners(tmp_path / 'pictures')}", "image_size": 8, "holdout": 0.2}
    federation = {"rounds": 3, "patience": 1}
    result = dcfl.run(data=data, federation=federation, output={"keep_best": True}, **SMALL)
    assert (result.folder / "best.safetensors").is_file()
    scored = result.rounds[-1].sites
    assert [site.client for site in scored] == [0, 1, 2]
    best = dcfl.evaluate(result.folder, which="best")
    assert best.accuracy == pytest.approx(max(row.accuracy or 0 for row in result.rounds))
    assert best.images == sum(site.images for site in scored)
    words = [f"data.dataset={data['dataset']}", "data.image_size=8", "training.batch_size=8"]
    code, out, err = cli(
        *("sweep", *words, "federation.rounds=1", "training.lr=0.01,0.1", "--out", "tuned")
    )
    assert code == 0, err
    assert "test images" in out
