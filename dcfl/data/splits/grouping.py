"""Samples that belong together, such as all pictures of a patient: which they are, and that they
stay together between training and testing and between clients."""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcfl.data.splits.partition import Integers, Partition
from dcfl.errors import ConfigError, DatasetCorrupt, PartitionError
from dcfl.system.wording import printable

SUBFOLDER, NONE = "subfolder", "none"
ALONE = ""  # the group of a picture that belongs to no other
COLUMNS = ("file", "group")

GroupOf = Callable[[Path, Path], str]  # of a picture, in the folder of a class


def check_grouping(rule: str) -> None:
    """Refuses what `grouping` could not read."""
    if not rule:
        raise ConfigError(
            'data.group must be "subfolder", "none", a regular expression or a .csv file, not empty'
        )
    if rule in (SUBFOLDER, NONE) or is_table(rule):
        return
    try:
        re.compile(rule)
    except re.error as error:
        raise ConfigError(f"data.group = {rule!r} is no regular expression: {error}") from error


def is_table(rule: str) -> bool:
    return rule.lower().endswith(".csv")


def grouping(rule: str) -> GroupOf:
    """The rule that data.group gives."""
    if rule == NONE:
        return lambda path, class_folder: ALONE
    if rule == SUBFOLDER:
        return _subfolder
    return _by_table(Path(os.path.expanduser(rule))) if is_table(rule) else _by_expression(rule)


def _subfolder(path: Path, class_folder: Path) -> str:
    """The first folder below the class: CLASS/patient_07/left/1.png is of patient_07."""
    below = path.relative_to(class_folder).parts
    return below[0] if len(below) > 1 else ALONE


def _by_expression(rule: str) -> GroupOf:
    pattern = re.compile(rule)

    def group_of(path: Path, class_folder: Path) -> str:
        found = pattern.search(path.relative_to(class_folder).as_posix())
        if found is None:
            raise DatasetCorrupt(
                f"{printable(path)}: data.group = {rule!r} finds no group in its name"
            )
        return (found[1] if pattern.groups else found[0]) or ALONE

    return group_of


def _by_table(table: Path) -> GroupOf:
    groups = _read_table(table)

    def group_of(path: Path, class_folder: Path) -> str:
        try:
            return groups[os.path.abspath(path)]
        except KeyError:
            raise DatasetCorrupt(
                f"{printable(path)}: not in {printable(table)}, where data.group looks for it; "
                f"files are named as seen from that table"
            ) from None

    return group_of


def _read_table(table: Path) -> dict[str, str]:
    """The group of each file, by its absolute path."""
    folder = Path(os.path.abspath(table)).parent
    try:
        with table.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.DictReader(stream)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise ConfigError(
                    f"data.group: {printable(table)} needs a first line with the names of its "
                    f"columns, file and group among them"
                )
            return {
                os.path.normpath(folder / (row["file"] or "")): (row["group"] or "").strip()
                for row in rows
            }
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"data.group: {printable(table)} cannot be read ({reason})") from error


def table_sha256(rule: str) -> str:
    """The hash of the table that the rule names; empty if it names none."""
    if not is_table(rule):
        return ""
    try:
        return hashlib.sha256(Path(os.path.expanduser(rule)).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"data.group: {printable(rule)} cannot be read ({error.strerror})"
        ) from error


def numbered(names: Sequence[Hashable]) -> NDArray[np.int64]:
    """A number for each name, in the order in which they first appear."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def held_back(groups: Sequence[str], labels: Sequence[int], share: float) -> set[str]:
    """Whole groups for testing: about one picture in `share` of each class, and never the last
    group of a class. Which ones depends on their names, in no order that people give them."""
    contents: dict[str, Counter[int]] = {}
    for group, label in zip(groups, labels, strict=True):
        contents.setdefault(group, Counter())[label] += 1
    totals = Counter(labels)
    left = Counter(label for content in contents.values() for label in content)  # groups to train
    held: dict[str, Counter[int]] = {}

    def may_go(group: str) -> bool:
        return group not in held and all(left[label] > 1 for label in contents[group])

    def hold(group: str) -> None:
        held[group] = contents[group]
        left.subtract(contents[group].keys())

    tested: Counter[int] = Counter()
    for group in sorted(contents, key=_mixed):
        with_it = tested + contents[group]
        if may_go(group) and _distance(with_it, totals, share) < _distance(tested, totals, share):
            hold(group)
            tested = with_it
    for label in sorted(totals):
        able = [group for group in contents if label in contents[group] and may_go(group)]
        if not any(label in content for content in held.values()) and able:
            hold(min(able, key=lambda group: (contents[group].total(), _mixed(group))))
    return {*held}


def _mixed(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()


def _distance(tested: Counter[int], totals: Counter[int], share: float) -> float:
    """How far this is from testing one in `share` of each class."""
    return sum((tested[label] / total - 1 / share) ** 2 for label, total in totals.items())


TEST_SHARE = 5  # every how many-th picture is for testing, where there is no test set
COMMON = -1  # in place of a site's number: a test set for all sites


class PictureFile(NamedTuple):
    site: int
    label: int
    part: Literal["train", "test", "either"]  # "either": there is no separate test set
    path: Path
    group: str = ALONE  # of its site

    @property
    def owner(self) -> tuple[int, str]:
        """Pictures with the same one stay together."""
        return self.site, self.group or f"/{self.path}"  # no group's name begins with a slash


def divide(pictures: Sequence[PictureFile]) -> tuple[list[PictureFile], list[PictureFile]]:
    """Pictures to train on and to test on: every fifth picture of a class is for testing; where
    pictures come in groups, about as many in whole groups. A site's division does not depend on
    other sites."""
    train: list[PictureFile] = []
    test: list[PictureFile] = []
    for _, of_site in groupby(pictures, key=lambda picture: picture.site):
        own = list(of_site)
        open_ones = [picture for picture in own if picture.part == "either"]
        choose = _whole_groups if come_in_groups(open_ones) else _every_fifth
        held = {*choose(open_ones)}
        for picture in own:
            tests = picture.part == "test" or picture in held
            (test if tests else train).append(picture)
    return train, test


def come_in_groups(pictures: Sequence[PictureFile]) -> bool:
    """Whether any two belong together."""
    return max(Counter(picture.owner for picture in pictures).values(), default=0) > 1


def _whole_groups(pictures: Sequence[PictureFile]) -> Iterator[PictureFile]:
    owners = [picture.owner[1] for picture in pictures]
    held = held_back(owners, [picture.label for picture in pictures], TEST_SHARE)
    return (picture for picture in pictures if picture.owner[1] in held)


def _every_fifth(pictures: Sequence[PictureFile]) -> Iterator[PictureFile]:
    for _, of_class in groupby(pictures, key=lambda picture: picture.label):
        own = list(of_class)
        few = 2 <= len(own) < TEST_SHARE
        yield from own[-1:] if few else own[TEST_SHARE - 1 :: TEST_SHARE]


def group_numbers(pictures: Sequence[PictureFile]) -> NDArray[np.int64]:
    """A number for each picture, the same within a group; empty where no pictures belong
    together."""
    together = come_in_groups(pictures)
    return numbered([picture.owner for picture in pictures if together])


def without_idle_groups(
    pictures: Sequence[PictureFile], warn: Callable[[str], object]
) -> list[PictureFile]:
    """A group of all pictures of a site tells nothing apart: CLASS/images/1.png."""
    kept: list[PictureFile] = []
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
    train: Sequence[PictureFile],
    test: Sequence[PictureFile],
    class_names: Sequence[str],
    warn: Callable[[str], object],
) -> None:
    """Warns where groups do not fit the division."""
    if not come_in_groups([*train, *test]):
        return
    trained = {picture.owner for picture in train if picture.group}
    names = {group for _, group in trained}
    shared = {
        picture.group
        for picture in test
        if picture.owner in trained or (picture.site == COMMON and picture.group in names)
    }
    if shared:
        more = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        warn(
            f"{printable(min(shared))}{more}: to train on and to test on, as the folders say; "
            f"unless they are different patients, accuracies will be too high (data.group)"
        )
    tested = {picture.label for picture in test}
    ours = {picture.label for picture in train if picture.part == "either"}
    for label in sorted(ours - tested):
        warn(f"class {printable(class_names[label])} has no picture to test on: too few groups")


# Splits samples with these labels, so many at least for each client.
Split = Callable[[Integers, int], Partition]


def whole_groups(
    labels: Integers, groups: Integers, min_size: int, clients: int, split: Split
) -> Partition:
    """A scheme deals out groups as if each were one sample of its most frequent class. Groups that
    it leaves over go to the clients with the fewest samples: each sample is somebody's."""
    _, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if clients > len(sizes):
        raise PartitionError(
            f"data.clients = {clients} is more than the {len(sizes)} groups of samples that stay "
            f"together (data.group): ask for fewer clients"
        )
    least = -(-min_size * len(sizes) // len(labels))  # groups that have min_size on average
    try:
        dealt = split(_main_labels(labels, group_of, len(sizes)), least)
    except PartitionError as error:
        raise PartitionError(f"{error} (a sample is a whole group here: data.group)") from error
    owners = _everybodys(dealt, sizes)
    rows = np.argsort(group_of, kind="stable")  # by group
    starts = np.cumsum(sizes) - sizes
    parts = [
        np.concatenate([rows[starts[group] : starts[group] + sizes[group]] for group in own])
        for own in owners
    ]
    smallest = min(map(len, parts))
    if smallest < min_size:
        raise PartitionError(
            f"whole groups (data.group) leave a client with {smallest} of {len(labels)} samples, "
            f"and data.min_size is {min_size}: ask for fewer clients or a smaller data.min_size"
        )
    return Partition.of_parts(parts)


def _main_labels(labels: Integers, group_of: Integers, groups: int) -> NDArray[np.int64]:
    """The most frequent class of each group."""
    counts = np.zeros((groups, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (group_of, labels), 1)
    return np.asarray(counts.argmax(axis=1))


def _everybodys(dealt: Partition, sizes: NDArray[np.int64]) -> list[list[int]]:
    """The groups of each client, after those that were left over, the largest first."""
    owners = [dealt.of(client).tolist() for client in range(len(dealt))]
    held = [int(sizes[own].sum()) for own in owners]
    spare = np.setdiff1d(np.arange(len(sizes)), dealt.indices)
    for group in spare[np.argsort(-sizes[spare], kind="stable")].tolist():
        poorest = held.index(min(held))
        owners[poorest].append(group)
        held[poorest] += int(sizes[group])
    return owners
