"""Numbers of clients that fit the data, where nobody has given them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dcfl.cli.cards import chosen_by_data
from dcfl.config import experiment_from
from dcfl.data import Dataset, DataSettings, Images, Preparation, load_dataset
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment, FederationSettings
from dcfl.runs.prepare import prepare
from tests.data.pictures import class_folders


def own(count: int, groups: int = 0) -> Dataset:
    """Blank images of two classes, in groups of equal size."""
    pixels, labels = torch.zeros(count, 8, 8, 1, dtype=torch.uint8), torch.arange(count) % 2
    numbers = torch.arange(count) // (count // groups) if groups else None
    train = Images(pixels, labels, numbers)
    return Dataset("npz:mine", train, train[:2], ("a", "b"), Preparation((0.5,), (0.5,)))


def numbers(experiment: Experiment, dataset: Dataset | None = None) -> tuple[object, object]:
    resolved = prepare(experiment, dataset).experiment
    return resolved.data.clients, resolved.federation.participation


def test_the_digits_are_as_ever() -> None:
    assert numbers(Experiment()) == (20, 0.25)
    few = experiment_from(None, {"data": {"train_images": 200}})
    assert numbers(few) == (20, 0.25)
    assert experiment_from(None, {"data": {"clients": 4}}).data.clients == 4


@pytest.mark.parametrize(
    ("images", "clients", "share"),
    [(30, 2, 1.0), (156, 3, 2 / 3), (600, 12, 0.25), (9000, 20, 0.25)],
)
def test_as_many_clients_as_the_data_can_carry(images: int, clients: int, share: float) -> None:
    assert numbers(Experiment(), own(images)) == (clients, share)


def test_what_is_given_stays() -> None:
    given = experiment_from(None, {"data": {"clients": 10}, "federation": {"participation": 0.1}})
    assert numbers(given, own(156)) == (10, 0.1)
    only_clients = replace(given, federation=FederationSettings())
    assert numbers(only_clients, own(156)) == (10, 0.25)


def test_few_groups_make_few_clients() -> None:
    assert numbers(Experiment(), own(600, groups=4))[0] == 4


def test_every_site_takes_part(tmp_path: Path) -> None:
    for site in ("north", "south", "west"):
        class_folders(tmp_path / site, a=5, b=5)
    experiment = Experiment(data=DataSettings(dataset=f"sites:{tmp_path}", image_size=8))
    assert numbers(experiment) == (3, 1.0)
    some = replace(experiment, federation=FederationSettings(participation=0.34))
    assert numbers(some) == (3, 0.34)


def test_a_choice_is_told_in_one_line() -> None:
    asked = Experiment()
    assert chosen_by_data(asked, prepare(asked)) == ""
    line = chosen_by_data(asked, prepare(asked, own(156)))
    assert line == "2 of 3 clients a round, for 156 images (data.clients, federation.participation)"
    given = Experiment(data=DataSettings(clients=3))
    assert chosen_by_data(given, prepare(given, own(156))) == ""


def test_what_everybody_has() -> None:
    assert not load_dataset(DataSettings()).users_own


def test_other_words_are_refused() -> None:
    for table, key, what in (
        ("data", "clients", "a whole number"),
        ("federation", "participation", "a number"),
    ):
        with pytest.raises(ConfigError, match=f'{key} must be {what} or "auto"'):
            experiment_from(None, {table: {key: "many"}})
