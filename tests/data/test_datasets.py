from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import dcfl
from dcfl.data import Dataset, DataSettings, Images, load_dataset
from dcfl.data.augment import Augmentation, Preparation
from dcfl.errors import ConfigError, DatasetCorrupt


def test_the_digits_are_all_there_and_balanced() -> None:
    digits = load_dataset(DataSettings())
    assert (len(digits.train), len(digits.test)) == (1442, 355)
    assert digits.train.pixels.shape == (1442, 8, 8, 1)
    assert digits.class_names == tuple("0123456789")
    train, test = (np.bincount(part.labels) for part in (digits.train, digits.test))
    # UCI's count of each digit in this part of the collection
    assert (train + test).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert set(test.tolist()) <= {34, 35, 36}


def test_the_digits_equal_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    theirs = datasets.load_digits()
    digits = load_dataset(DataSettings())
    assert digits.train.pixels.max() == 255
    ours = torch.cat([digits.train.pixels, digits.test.pixels]).float().mean(dim=0)[..., 0]
    np.testing.assert_allclose(ours / 255 * 16, theirs.images.mean(axis=0), atol=0.05)


def test_the_digits_normalisation_is_that_of_their_training_images() -> None:
    digits = load_dataset(DataSettings())
    inputs = digits.preparation.clean(digits.train.pixels)
    assert inputs.mean().item() == pytest.approx(0, abs=0.01)
    assert inputs.std().item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", ["digitz", "folder:", "npz", "ftp:x", "cifar-10"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown data set"):
        load_dataset(DataSettings(dataset=name))


def test_labels_and_pixels_are_checked_at_the_door() -> None:
    pixels = torch.zeros(3, 4, 4, 1, dtype=torch.uint8)
    good = Images(pixels, torch.tensor([0, 1, 1]))
    with pytest.raises(DatasetCorrupt, match="uint8"):
        Images(pixels.double(), good.labels)
    with pytest.raises(DatasetCorrupt, match="one int64 per image"):
        Images(pixels, torch.tensor([0, 1]))
    with pytest.raises(DatasetCorrupt, match="between 0 and 0"):
        Dataset("x", good, good, ("only",), Preparation((0.5,), (0.5,)))


def test_settings_replace_only_what_they_name() -> None:
    usual = Augmentation(crop=4, flip=True)
    assert DataSettings().augmentation(usual) == usual
    assert DataSettings(flip=False).augmentation(usual) == Augmentation(4, False)
    turned = DataSettings(crop=0, rotation=10.0, cutout=3)
    assert turned.augmentation(usual) == Augmentation(0, True, 10.0, 3)


# --- parts: data.holdout, data.train_images, data.classes, data.test_images ----------------------


def rows(dataset: Dataset) -> tuple[list[bytes], list[bytes]]:
    train, test = (
        [
            image.numpy().tobytes() + bytes([int(label)])
            for image, label in zip(part.pixels, part.labels, strict=True)
        ]
        for part in (dataset.train, dataset.test)
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


def test_a_run_is_evaluated_on_it(tmp_path: Path) -> None:
    held = dcfl.run(
        out=tmp_path, data={"holdout": 0.5}, federation={"rounds": 1}, engine={"workers": 1}
    )
    hits = held.rounds[0]["accuracy"] * 721 / 100
    assert hits == pytest.approx(round(hits), abs=1e-6)  # of 721 images, not of 355


SAMPLED = [("train_images", 0), ("test_images", 1)]


@pytest.mark.parametrize(("key", "part"), SAMPLED)
def test_a_seed_draws_its_own_images_however_the_files_are_sorted(key: str, part: int) -> None:
    """A deviation over seeds is then also one over images."""
    whole = load_dataset(DataSettings())
    counts = {"train_images": 300, "test_images": 100}
    samples = [rows(load_dataset(DataSettings(seed=s, **{key: counts[key]})))[part] for s in (0, 1)]
    assert samples[0] == rows(load_dataset(DataSettings(**{key: counts[key]})))[part]
    assert [len(sample) for sample in samples] == [counts[key]] * 2
    share = len(set(samples[0]) & set(samples[1])) / counts[key]
    assert share == pytest.approx(counts[key] / len(rows(whole)[part]), abs=0.15)  # as by chance
    turned = replace(
        whole, train=whole.train[torch.arange(len(whole.train)).flip(0)],
        test=whole.test[torch.arange(len(whole.test)).flip(0)],
    )  # fmt: skip
    again = turned.trained_on(300, 1) if key == "train_images" else turned.scored_on(100, 1)
    assert sorted(rows(again)[part]) == sorted(samples[1])


def test_training_and_test_samples_are_drawn_apart() -> None:
    same = replace(load_dataset(DataSettings()), test=load_dataset(DataSettings()).train)
    train, test = rows(same.trained_on(300, 0).scored_on(300, 0))
    assert train != test


def test_test_images_by_which_something_was_chosen_are_left_out_for_every_seed() -> None:
    whole = load_dataset(DataSettings())
    seen = {*rows(replace(whole, test=whole.test.sample(100)))[1]}
    left = {*rows(whole)[1]} - seen
    for seed in (0, 1):
        assert {*rows(load_dataset(DataSettings(test_skip=100, seed=seed)))[1]} == left
        drawn = rows(load_dataset(DataSettings(test_skip=100, test_images=50, seed=seed)))[1]
        assert len(drawn) == 50
        assert {*drawn} < left
    kept_back = load_dataset(DataSettings(holdout=0.1))
    assert rows(load_dataset(DataSettings(holdout=0.1, test_skip=100))) == rows(kept_back)
    with pytest.raises(ConfigError, match=r"data\.test_skip = 355: .* none would be left"):
        load_dataset(DataSettings(test_skip=355))


def test_none_that_is_kept_back_is_trained_on() -> None:
    whole, _ = rows(load_dataset(DataSettings()))
    tuned, kept_back = rows(load_dataset(DataSettings(train_images=300, holdout=0.25)))
    assert len(tuned) == 300
    assert len(kept_back) == round(0.25 * len(whole))
    assert not set(tuned) & set(kept_back)


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
        ({"holdout": 1.0}, "0.9"),
        ({"holdout": -0.1}, "0.9"),
        ({"holdout": 1e-9}, "none"),
        ({"classes": 11}, "digits has 10"),
        ({"classes": 1}, "2 or more"),
        ({"train_images": -1}, "data.train_images must be 0"),
        ({"test_images": -1}, "data.test_images must be 0"),
    ],
)
def test_a_part_that_cannot_be(settings: dict[str, float], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_dataset(DataSettings(**settings))  # type: ignore[arg-type]


def test_a_data_set_is_printed_in_five_lines() -> None:
    assert repr(load_dataset(DataSettings())).splitlines() == [
        "Dataset digits",
        "  train    1,442 of [8, 8, 1]",
        "  test     355",
        "  classes  10: 0, 1, 2, 3, 4 and 5 more",
        "  clients  as data.partition says",
    ]


def test_the_groups_that_are_told_are_those_to_train_on() -> None:
    """Of ten patients, two are to test on."""
    inputs = np.random.default_rng(0).normal(size=(40, 3))
    data = Dataset.of(inputs, [0, 1] * 20, groups=np.arange(40) // 4)
    assert data.train.groups is not None
    told = f"  train    {len(data.train)} of [3], in {len(data.train.groups.unique())} groups"
    assert data.group_count == 10
    assert repr(data).splitlines()[1] == told
