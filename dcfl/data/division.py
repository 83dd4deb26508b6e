"""Which pictures are for training and which for testing, where the user has not said so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcfl.data.grouping import ALONE, held_back, numbered
from dcfl.system.printable import printable


class Picture(NamedTuple):
    site: int
    label: int
    part: Literal["train", "test", "either"]  # "either": there is no separate test set
    path: Path
    group: str = ALONE  # of its site

    @property
    def owner(self) -> tuple[int, str]:
        """Pictures with the same one stay together."""
        return self.site, self.group or f"/{self.path}"  # no group's name begins with a slash


class Divided(NamedTuple):
    train: list[Picture]
    test: list[Picture]


def divide(pictures: Sequence[Picture], share: int) -> Divided:
    """Every `share`-th picture of a class is for testing; where pictures come in groups, about as
    many in whole groups. A site's division does not depend on other sites."""
    train: list[Picture] = []
    test: list[Picture] = []
    for _, of_site in groupby(pictures, key=lambda picture: picture.site):
        own = list(of_site)
        open_ones = [picture for picture in own if picture.part == "either"]
        held = _whole_groups(open_ones, share) if come_in_groups(open_ones) else None
        if held is None:
            held = set(_every_so_many(open_ones, share))
        for picture in own:
            tests = picture.part == "test" or picture in held
            (test if tests else train).append(picture)
    return Divided(train, test)


def come_in_groups(pictures: Sequence[Picture]) -> bool:
    """Whether some belong together and not all of them do: CLASS/images/1.png says nothing."""
    sizes = Counter(picture.owner for picture in pictures).values()
    return len(sizes) > 1 and max(sizes) > 1


def _whole_groups(pictures: Sequence[Picture], share: int) -> set[Picture]:
    owners = [picture.owner[1] for picture in pictures]
    held = held_back(owners, [picture.label for picture in pictures], share)
    return {picture for picture, owner in zip(pictures, owners, strict=True) if owner in held}


def _every_so_many(pictures: Sequence[Picture], share: int) -> Iterator[Picture]:
    for _, of_class in groupby(pictures, key=lambda picture: picture.label):
        own = list(of_class)
        few = 2 <= len(own) < share
        yield from own[-1:] if few else own[share - 1 :: share]


def group_numbers(divided: Divided) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A number for each picture to train on and to test on, the same within a group; empty where
    no pictures belong together."""
    pictures = divided.train + divided.test
    if not come_in_groups(pictures):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    numbers = numbered([picture.owner for picture in pictures])
    return numbers[: len(divided.train)], numbers[len(divided.train) :]


def remarks_on_groups(divided: Divided, class_names: Sequence[str]) -> Iterator[str]:
    """What the user should know about groups that do not fit the division."""
    pictures = divided.train + divided.test
    names = {picture.group for picture in pictures} - {ALONE}
    if not names:
        return
    if not come_in_groups(pictures):
        if len({picture.owner for picture in pictures}) == 1:
            yield (
                f"all pictures are of one group, {printable(min(names))}, and are divided one by "
                f'one; data.group = "none" says that it is no patient'
            )
        return
    sides = [{picture.group for picture in part} - {ALONE} for part in divided]
    if shared := sorted(sides[0] & sides[1]):
        more = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        yield (
            f"{printable(shared[0])}{more}: to train on and to test on, as the folders say; "
            f"unless they are different patients, accuracies will be too high (data.group)"
        )
    untested = {picture.label for picture in divided.train} - {
        picture.label for picture in divided.test
    }
    for label in sorted(untested):
        yield f"class {printable(class_names[label])} has no picture to test on: too few groups"
