"""data.holdout: settings are chosen on images that are neither trained on nor the test images."""

import pytest
import torch

import dcfl
from dcfl.data import Dataset, DataSettings, load_dataset
from dcfl.errors import ConfigError


def rows(dataset: Dataset) -> tuple[list[bytes], list[bytes]]:
    train, test = (
        [
            bytes(pixels.numpy().tobytes()) + bytes([int(label)])
            for pixels, label in zip(*part, strict=True)
        ]
        for part in (
            (dataset.train.pixels, dataset.train.labels),
            (dataset.test.pixels, dataset.test.labels),
        )
    )
    return train, test


def test_the_training_images_are_divided_and_the_test_images_are_out_of_sight() -> None:
    whole = load_dataset(DataSettings())
    train, test = rows(load_dataset(DataSettings(holdout=0.25)))
    assert len(test) == round(0.25 * len(whole.train))
    assert sorted(train + test) == sorted(rows(whole)[0])


def test_the_share_is_drawn_by_the_seed_of_the_split() -> None:
    draws = [load_dataset(DataSettings(holdout=0.1, seed=seed)).test.labels for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_nothing_held_out_is_the_data_set_itself() -> None:
    assert len(load_dataset(DataSettings()).test) == 355


@pytest.mark.parametrize(("share", "why"), [(1.0, "0.9"), (-0.1, "0.9"), (1e-9, "none")])
def test_a_share_that_cannot_be(share: float, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_dataset(DataSettings(holdout=share))


def test_a_run_is_evaluated_on_it(tmp_path) -> None:  # type: ignore[no-untyped-def]
    short = {"federation": {"rounds": 1}, "method": "fedavg", "engine": {"workers": 1}}
    held = dcfl.run(out=tmp_path / "held", data={"holdout": 0.5}, **short)
    again = dcfl.run(out=tmp_path / "again", data={"holdout": 0.5}, **short)
    assert held.rounds[0]["accuracy"] == again.rounds[0]["accuracy"]
    hits = held.rounds[0]["accuracy"] * 721 / 100
    assert hits == pytest.approx(round(hits), abs=1e-6)  # of 721 images, not of 355
