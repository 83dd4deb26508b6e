"""Sentences that the terminal shows, with numbers that are rare or awkward."""

from dataclasses import replace

import pytest

from dcfl.cli.cards import dataset_card
from dcfl.cli.doctor import step_shares
from dcfl.data import DataSettings, load_dataset
from dcfl.data.catalogue import DatasetSummary, summarise_dataset


@pytest.fixture(scope="module")
def digits() -> DatasetSummary:
    settings = DataSettings()
    return summarise_dataset(load_dataset(settings), settings)


@pytest.mark.parametrize(
    ("sites", "words"),
    [
        ({"north": 75, "south": 75}, "2, of 75 images each: north, south"),
        ({"north": 9, "south": 1200}, "2, of 9 to 1,200 images: north, south"),
    ],
)
def test_sites_and_their_sizes(digits: DatasetSummary, sites: dict[str, int], words: str) -> None:
    assert dataset_card(replace(digits, sites=sites)).endswith(f"sites      {words}")


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        (
            {"resnet18": 0.55, "cnn": 0.78},
            "a bfloat16 step takes 0.55 of the time of float32 (resnet18), 0.78 (cnn)",
        ),
        (
            {"resnet18": None, "cnn": 0.78},
            "a bfloat16 step takes 0.78 of the time of float32 (cnn); "
            "could not be measured: resnet18",
        ),
        ({"resnet18": None, "cnn": None}, "could not be measured: resnet18, cnn"),
    ],
)
def test_what_bfloat16_gains(shares: dict[str, float | None], words: str) -> None:
    assert step_shares(shares) == words
