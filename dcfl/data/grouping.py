"""Which pictures belong together, such as those of one patient: they are never on both sides of a
split."""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dcfl.errors import ConfigError, DatasetCorrupt
from dcfl.system.printable import printable

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
    """Of the table that the rule names; empty if it names none."""
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
    """From testing one in `share` of each class."""
    return sum((tested[label] / total - 1 / share) ** 2 for label, total in totals.items())
