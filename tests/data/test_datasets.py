import numpy as np
import pytest
import torch

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
        Images(pixels.float(), good.labels)
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
