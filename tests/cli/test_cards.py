"""Sentences that the terminal shows, with numbers that are rare or awkward."""

from dataclasses import replace

import pytest

from dcfl.cli.cards import dataset_card
from dcfl.cli.doctor import step_shares
from dcfl.data import DataSettings, load_dataset
from dcfl.data.dataset_summary import DatasetSummary, summarise_dataset


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


def test_classes_that_sites_lack(digits: DatasetSummary) -> None:
    def line(lacking: dict[str, list[str]]) -> str:
        return dataset_card(replace(digits, lacking=lacking)).splitlines()[-1]

    assert line({"south": ["unclear"]}) == "lacking    south has no unclear"
    many = {f"s{n}": ["a", "b", "c", "d"] for n in range(9)}
    assert line(many).startswith("lacking    s0 has no a, b, c, ...; s1 has no a, b")
    assert line(many).endswith("; and 6 more sites lack classes")
    assert "lacking" not in line({})


@pytest.mark.parametrize(
    ("of_a_class", "words"),
    [((0.2, 0.2), "(20 %)"), ((0.304, 0.451), "(20 %, 30 to 45 % of a class)")],
)
def test_the_share_to_test_on(
    digits: DatasetSummary, of_a_class: tuple[float, float], words: str
) -> None:
    least, most = of_a_class
    card = dataset_card(replace(digits, smallest_test_share=least, largest_test_share=most))
    assert card.splitlines()[1] == f"images     1,442 to train on, 355 to test on {words}"


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
