"""Which pictures are for training and which for testing, where the user has not said so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcfl.data.grouping import ALONE, held_back, numbered
from dcfl.system.printable import printable

COMMON = -1  # in place of a site's number: a test set for all sites


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
    """Whether any two belong together."""
    return max(Counter(picture.owner for picture in pictures).values(), default=0) > 1


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


def without_idle_groups(
    pictures: Sequence[Picture], warn: Callable[[str], object]
) -> list[Picture]:
    """A group of all pictures of a site tells nothing apart: CLASS/images/1.png."""
    kept: list[Picture] = []
    idle = ALONE
    for _, of_site in groupby(pictures, key=lambda picture: picture.site):
        own = list(of_site)
        alike = len({picture.owner for picture in own}) == 1
        if alike and own[0].group and own[0].site != COMMON:
            idle = own[0].group
            own = [picture._replace(group=ALONE) for picture in own]
        kept += own
    if idle:
        warn(
            f"all pictures are of one group, {printable(idle)}, and are divided one by one; "
            f'data.group = "none" says that it is no patient'
        )
    return kept


def warn_about_groups(
    divided: Divided, class_names: Sequence[str], warn: Callable[[str], object]
) -> None:
    """Where groups do not fit the division."""
    if not come_in_groups(divided.train + divided.test):
        return
    trained = {picture.owner for picture in divided.train if picture.group}
    names = {group for _, group in trained}
    shared = {
        picture.group
        for picture in divided.test
        if picture.owner in trained or (picture.site == COMMON and picture.group in names)
    }
    if shared:
        more = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        warn(
            f"{printable(min(shared))}{more}: to train on and to test on, as the folders say; "
            f"unless they are different patients, accuracies will be too high (data.group)"
        )
    tested = {picture.label for picture in divided.test}
    ours = {picture.label for picture in divided.train if picture.part == "either"}
    for label in sorted(ours - tested):
        warn(f"class {printable(class_names[label])} has no picture to test on: too few groups")
