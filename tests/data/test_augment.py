import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcfl.data.augment import Augmentation, Preparation, with_border


def prepared(augmentation: Augmentation, pixels: torch.Tensor, seed: int = 0) -> np.ndarray:
    """Augmented pixels as integers again: normalisation with mean 0 and std 1 / 255 is undone."""
    preparation = Preparation((0.0,) * 3, (1 / 255,) * 3, augmentation)
    generator = torch.Generator().manual_seed(seed)
    count, height, width, _ = pixels.shape
    drawn = augmentation.draw(count, height, width, generator)
    made = preparation.augmented(with_border(pixels), torch.arange(len(pixels)), drawn)
    return made.permute(0, 2, 3, 1).round().numpy().astype(int)


def pixels(count: int = 40, size: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(1, 256, (count, size, size, 3), generator=generator, dtype=torch.uint8)


def test_every_crop_is_a_window_of_the_padded_image_and_all_windows_occur() -> None:
    one = pixels(1)
    padded = np.pad(one[0].numpy(), ((2, 2), (2, 2), (0, 0)))
    made = prepared(Augmentation(crop=2), one.expand(400, -1, -1, -1))
    seen = set()
    for image in made:
        where = [
            (r, c)
            for r in range(5)
            for c in range(5)
            if (image == padded[r : r + 6, c : c + 6]).all()
        ]
        assert len(where) == 1
        seen.add(where[0])
    assert len(seen) == 25


def test_flip_mirrors_about_half_of_the_images_and_leaves_the_others() -> None:
    original = pixels(200)
    made, plain = prepared(Augmentation(flip=True), original), original.numpy()
    mirrored = [(a == b[:, ::-1]).all() for a, b in zip(made, plain, strict=True)]
    untouched = [(a == b).all() for a, b in zip(made, plain, strict=True)]
    assert all(m or u for m, u in zip(mirrored, untouched, strict=True))
    assert 70 < sum(mirrored) < 130


def test_rotation_turns_about_the_centre_and_fills_with_black() -> None:
    """A quarter turn, forced by drawing until the angle is nearly 90 degrees."""
    size = 7
    image = torch.zeros(300, size, size, 3, dtype=torch.uint8)
    image[:, 0, 3] = 200  # a dot at the top
    made = prepared(Augmentation(rotation=90.0), image)
    rows, columns = np.nonzero(made.max(axis=(0, 3)))
    radius = np.hypot(rows - 3, columns - 3)
    assert radius.min() > 2.2
    assert radius.max() < 3.8
    assert (rows <= 3).all()  # between -90 and 90 degrees the dot stays in the upper half
    assert {0, 6} <= set(columns)  # and reaches both sides
    assert set(np.unique(made)) == {0, 200}


def test_a_small_rotation_keeps_most_of_the_image() -> None:
    original = pixels(50, size=16)
    made = prepared(Augmentation(rotation=5.0), original)
    assert (made == original.numpy()).all(axis=3).mean() > 0.5
    assert not (made == original.numpy()).all()


def test_cutout_blanks_one_square_that_the_border_may_cut() -> None:
    made = prepared(Augmentation(cutout=3), torch.full((300, 6, 6, 3), 200, dtype=torch.uint8))
    seen = set()
    for image in made:
        rows, columns = np.nonzero((image == 0).all(axis=2))
        assert (image[(image != 0).any(axis=2)] == 200).all()
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert len(rows) == height * width  # a full rectangle
        assert 2 <= height <= 3
        assert 2 <= width <= 3
        seen.add((rows.min(), columns.min()))
    assert len(seen) == 25  # every place, those that hang over the edge twice


def test_cutout_leaves_the_other_draws_alone() -> None:
    plain = prepared(Augmentation(crop=2, flip=True), pixels())
    cut = prepared(Augmentation(crop=2, flip=True, cutout=2), pixels())
    same = (plain == cut).all(axis=3)
    assert 0.8 < same.mean() < 1


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), crop=st.integers(0, 4), flip=st.booleans())
def test_the_same_generator_gives_the_same_images(seed: int, crop: int, flip: bool) -> None:
    how = Augmentation(crop, flip, rotation=10.0)
    assert (prepared(how, pixels(), seed) == prepared(how, pixels(), seed)).all()


def test_normalisation_is_per_channel_and_channels_last() -> None:
    preparation = Preparation((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    made = preparation.clean(pixels())
    expected = (pixels().numpy() / 255 - [0.1, 0.2, 0.3]) / [0.4, 0.5, 0.6]
    np.testing.assert_allclose(made.permute(0, 2, 3, 1), expected, atol=1e-6)
    assert made.shape == (40, 3, 6, 6)
    assert made.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("how", [Augmentation(1), Augmentation(0, True), Augmentation(0, False, 5)])
def test_any_setting_makes_it_active(how: Augmentation) -> None:
    assert how.active
    assert not Augmentation().active
