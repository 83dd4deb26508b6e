"""data.train_images, data.classes and data.test_images: a part of a data set."""

import pytest

from dcfl.data import DataSettings, load_dataset
from dcfl.errors import ConfigError
from tests.data.test_holdout import rows


def test_the_same_training_images_for_every_seed_and_none_that_is_kept_back() -> None:
    whole, _ = rows(load_dataset(DataSettings()))
    train, _ = rows(load_dataset(DataSettings(train_images=300)))
    assert len(train) == 300
    assert set(train) <= set(whole)
    assert train == rows(load_dataset(DataSettings(train_images=300, seed=5)))[0]
    tuned, kept_back = rows(load_dataset(DataSettings(train_images=300, holdout=0.25)))
    assert len(tuned) == 300
    assert len(kept_back) == round(0.25 * len(whole))
    assert not set(tuned) & set(kept_back)
    # What is kept back makes room for others: most images stay the same.
    assert len(set(train) & set(tuned)) == len(set(train) - set(kept_back))


def test_more_than_there_are_is_all() -> None:
    whole = load_dataset(DataSettings())
    assert load_dataset(DataSettings(train_images=10**6)).fingerprint == whole.fingerprint


def test_the_first_classes_of_training_and_test_images() -> None:
    whole, part = load_dataset(DataSettings()), load_dataset(DataSettings(classes=3))
    assert part.class_names == whole.class_names[:3]
    for some, every in ((part.train, whole.train), (part.test, whole.test)):
        assert some.labels.tolist() == [label for label in every.labels.tolist() if label < 3]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"classes": 11}, "digits has 10"),
        ({"classes": 1}, "2 or more"),
        ({"train_images": -1}, "data.train_images must be 0"),
        ({"test_images": -1}, "data.test_images must be 0"),
    ],
)
def test_a_part_that_cannot_be(settings: dict[str, int], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_dataset(DataSettings(**settings))  # type: ignore[arg-type]
