"""Samples that belong together, such as all pictures of a patient: which they are, and that they
stay together between training and testing and between clients."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from dcfl.data.splits.partition import Integers, Partition
from dcfl.errors import ConfigError, DatasetCorrupt, PartitionError
from dcfl.system.storage import open_data
from dcfl.system.wording import printable, some

SUBFOLDER, NONE = "subfolder", "none"
ALONE = ""  # the group of a picture that belongs to no other
LARGEST_TABLE = 200_000_000  # bytes
LONGEST_RULE = 500  # characters of a regular expression
MOST_SECONDS = 10.0  # for all names together; 100,000 take less than one

# Python's classes, as RE2 writes them: its own are ASCII, and would put Müller and Mörike both into
# the group "M". Each begins and ends with \p, so that a hyphen beside it makes no range.
UNICODE = {
    "w": r"\p{L}_\p{N}",
    "d": r"\p{Nd}",
    "s": r"\p{Zs}\x09-\x0d\x1c-\x1f\x85\p{Zl}\p{Zp}",
}
REFUSED = "bBCQ"  # ASCII alone, or bytes, or what would hide a class
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_PART = re.compile(
    r"\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^\]\\])*\]|\\.|\{,(?=\d*\})",  # [...], \w, {,3}
    re.DOTALL,
)

GroupOf = Callable[[Path, Path], str]  # of a picture, in the folder of a class


def check_grouping(rule: str) -> None:
    if not rule:
        raise ConfigError(
            'data.group must be "subfolder", "none", a regular expression or a .csv file, not empty'
        )
    if rule in (SUBFOLDER, NONE) or is_table(rule):
        return
    _compiled(rule)


def _compiled(rule: str) -> Any:
    """By RE2, whose time does not explode with the name: a rule may come in a foreign folder."""
    import re2

    if len(rule) > LONGEST_RULE:
        raise ConfigError(f"data.group is longer than {LONGEST_RULE} characters")

    def refuse(part: str) -> NoReturn:
        raise ConfigError(
            f"data.group = {rule!r} has {part}, which cannot be read here: name the characters "
            f"that you mean, such as \\p{{L}} for letters"
        )

    def in_brackets(found: re.Match[str]) -> str:
        if found[1] in REFUSED + "WDS":
            refuse(f"{found[0]} in brackets")
        return UNICODE.get(found[1], found[0])

    def translated(found: re.Match[str]) -> str:
        part, letter = found[0], found[0][1:]
        if part[0] != "\\":
            return "{0," if part == "{," else _ESCAPE.sub(in_brackets, part)
        if letter in REFUSED:
            refuse(part)
        if letter.lower() not in UNICODE:
            return part
        return f"[{'^' if letter.isupper() else ''}{UNICODE[letter.lower()]}]"

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(_PART.sub(translated, rule).encode("utf-8", "surrogatepass"), options)
    except re2.error as error:
        reason = printable(error.args[0].decode("utf-8", "replace"), 200)
        raise ConfigError(
            f"data.group = {rule!r} is not an expression that RE2 reads: {reason}"
        ) from error


def is_table(rule: str) -> bool:
    return rule.lower().endswith(".csv")


def grouping(rule: str) -> GroupOf:
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
    pattern = _compiled(rule)
    which, spent = min(pattern.groups, 1), 0.0

    def group_of(path: Path, class_folder: Path) -> str:
        nonlocal spent
        name, began = path.as_posix()[len(class_folder.as_posix()) + 1 :], time.perf_counter()
        found = pattern.search(name.encode("utf-8", "backslashreplace"))  # RE2 wants valid UTF-8
        spent += time.perf_counter() - began
        if spent > MOST_SECONDS:
            raise ConfigError(f"data.group = {rule!r} takes too long: choose a simpler expression")
        if found is None:
            raise DatasetCorrupt(
                f"{printable(path)}: data.group = {rule!r} finds no group in its name"
            )
        return (found[which] or b"").decode()

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
    folder = Path(os.path.abspath(table)).parent
    with _table(table) as stream:
        rows = csv.DictReader(io.TextIOWrapper(stream, "utf-8-sig", newline=""))
        if not {"file", "group"} <= {*(rows.fieldnames or ())}:
            raise ConfigError(
                f"data.group: {printable(table)} needs a first line with the names of its "
                f"columns, file and group among them"
            )
        return {
            os.path.normpath(folder / (row["file"] or "")): (row["group"] or "").strip()
            for row in rows
        }


@contextmanager
def _table(table: Path) -> Iterator[BufferedReader]:
    try:
        with open_data(table, LARGEST_TABLE) as stream:
            yield stream
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"data.group: {printable(table)} cannot be read ({reason})") from error


def table_sha256(rule: str) -> str:
    """The hash of the table that the rule names; empty if it names none."""
    if not is_table(rule):
        return ""
    with _table(Path(os.path.expanduser(rule))) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def numbered(names: Sequence[Hashable]) -> NDArray[np.int64]:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


KEY_BITS, SITE_BITS = 47, 15  # of the number of a group: the hash of its name, and its site


def key_of(name: str) -> int:
    """A group's place between 0 and 2 ** KEY_BITS: the hash of its name, and of nothing else."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - KEY_BITS)


def number_of(site: int, key: int) -> int:
    """Groups of one name have one key at all sites, and are different groups."""
    return (site % (1 << SITE_BITS)) * (1 << KEY_BITS) + key


def held_back(keys: Sequence[int], labels: Sequence[int], share: float) -> set[int]:
    """Of groups, by their keys, those that are not trained on: about this share of them. Each class
    has one of them, its lowest, and one to train on, its highest. So no group that was trained on
    is held back because others have come, unless it was all that its class had to train on."""
    of_class: dict[int, set[int]] = {}
    for key, label in zip(keys, labels, strict=True):
        of_class.setdefault(label, set()).add(key)
    needed = {key for own in of_class.values() if len(own) == 1 for key in own}
    held = {key for key in keys if key < share * 2**KEY_BITS} - needed
    held |= {min(own - needed) for own in of_class.values() if own - needed}
    return held - {max(own) for own in of_class.values() if own <= held}


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

    @property
    def key(self) -> int:
        """Of its group, or of its own name, wherever the folder of all pictures lies."""
        return key_of(self.group or "/".join(["", *self.path.parts[-2:]]))


def divide(pictures: Sequence[PictureFile]) -> tuple[list[PictureFile], list[PictureFile]]:
    """Pictures to train on and to test on: whole groups by the hashes of their names. Of a site
    without groups every fifth picture of a class. A site's division does not depend on others."""
    train: list[PictureFile] = []
    test: list[PictureFile] = []
    for _, of_site in groupby(pictures, key=lambda picture: picture.site):
        own = list(of_site)
        open_ones = [picture for picture in own if picture.part == "either"]
        if come_in_groups(open_ones):
            keys = [picture.key for picture in open_ones]
            chosen = held_back(keys, [picture.label for picture in open_ones], 1 / TEST_SHARE)
            held = {one for one, key in zip(open_ones, keys, strict=True) if key in chosen}
        else:
            held = {*_every_fifth(open_ones)}
        for picture in own:
            tests = picture.part == "test" or picture in held
            (test if tests else train).append(picture)
    return train, test


def come_in_groups(pictures: Sequence[PictureFile]) -> bool:
    """Whether any is of a group. One picture of each patient is enough: the second one, when it
    comes, must not move the others."""
    return any(picture.group for picture in pictures)


def _every_fifth(pictures: Sequence[PictureFile]) -> Iterator[PictureFile]:
    for _, of_class in groupby(pictures, key=lambda picture: picture.label):
        own = list(of_class)
        few = 2 <= len(own) < TEST_SHARE
        yield from own[-1:] if few else own[TEST_SHARE - 1 :: TEST_SHARE]


def group_numbers(pictures: Sequence[PictureFile]) -> NDArray[np.int64]:
    """A number for each picture, the same within a group; empty where there are none."""
    grouped = come_in_groups(pictures)
    numbers = [number_of(picture.site, picture.key) for picture in pictures if grouped]
    return np.array(numbers, np.int64)


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
        warn(
            f"{some(sorted(shared), 1, 300)}: to train on and to test on, as the folders say; "
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
    numbers = numbered(groups.tolist())  # in the order of the samples, whatever their names are
    _, group_of, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
    if clients > len(sizes):
        raise PartitionError(
            f"data.clients = {clients} is more than the {len(sizes)} groups of samples that stay "
            f"together (data.group): ask for fewer clients"
        )
    least = -(-min_size * len(sizes) // len(labels))  # groups that have min_size on average
    counts = np.zeros((len(sizes), int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (group_of, labels), 1)
    try:
        dealt = split(counts.argmax(axis=1), least)
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
