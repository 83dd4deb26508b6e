"""Optuna behind a small door: what it is told, and what it remembers."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from dcfl.comparisons.searches import POINTS, PointsFile, Search, Tuner, key_of
from dcfl.comparisons.space import Choices, Range, Space
from dcfl.comparisons.trials import Trial
from dcfl.errors import RunFolderError
from dcfl.runs.rows import RoundRow
from tests.reliability.test_folders import nastier
from tests.reliability.victims import SLOW, damaged
from tests.report import folders

pytest.importorskip("optuna")

SPACE = Space((Range("training.lr", 1e-3, 1.0, log=True), Choices("method.mu", ((1, 2), "x"))))
ROUNDS = 9


def tuner(folder: Path, count: int = 12, space: Space = SPACE) -> Tuner:
    return Tuner(space, Search("tune", count), ROUNDS, "ema", folder)


class Ended(Trial):
    """A trial with a score that nobody trained."""

    state = "finished"

    def score(self, by: str) -> float:
        return 50.0 + self.number


def report(tuner: Tuner, number: int, value: float) -> list[bool]:
    row = RoundRow.from_json(folders.row(1, [value]), Path("rounds.jsonl"))
    rows = (replace(row, round=n, ema_accuracy=value + n) for n in range(1, ROUNDS + 1))
    return [tuner.report(number, one) for one in rows]


def test_a_curve_below_the_median_ends_after_a_third(tmp_path: Path) -> None:
    study = tuner(tmp_path)
    for number in range(4):
        point = study.next(number)
        assert point is not None
        assert 1e-3 <= point["training.lr"] <= 1.0
        assert point["method.mu"] in ((1, 2), "x")
        assert not any(report(study, number, 50.0 + number))
        study.end(Ended(number, point, ()))
    assert study.next(4)
    assert report(study, 4, 60.0) == [False] * ROUNDS
    assert study.next(5)
    assert report(study, 5, 10.0) == [False] * 2 + [True] * 7


def test_the_same_points_again_then_new_ones(tmp_path: Path) -> None:
    first = tuner(tmp_path)
    points = [first.next(number) for number in range(5)]
    again = tuner(tmp_path)
    assert [again.next(number) for number in range(5)] == points
    more = [again.next(number) for number in range(5, 12)]
    assert len({key_of(point) for point in (*points, *more) if point}) == 12
    assert again.next(12) is None
    assert len(json.loads((tmp_path / POINTS).read_text())["points"]) == 12


def test_a_small_space_ends(tmp_path: Path) -> None:
    space = Space((Choices("method.mu", (1, 2, 3)),))
    study = tuner(tmp_path, 10, space)
    points = [study.next(number) for number in range(3)]
    assert len({key_of(point) for point in points if point}) == 3
    assert study.next(3) is None


def test_another_space_in_the_folder(tmp_path: Path) -> None:
    tuner(tmp_path).next(0)
    other = Space((Range("training.lr", 1e-3, 2.0, log=True),))
    with pytest.raises(RunFolderError, match=r"search over training.lr = 0.001:1:log"):
        tuner(tmp_path, space=other)
    (tmp_path / POINTS).write_text("{")
    with pytest.raises(RunFolderError, match="not as it was written"):
        tuner(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("method.mu", value) for value in ([1, 3], "y", 7, None, {}, [[1]])),
        *(("training.lr", value) for value in (2.0, 0.0, -1, True, "0.1", None, [0.1], 10**400)),
    ],
)
def test_points_that_are_not_of_the_space_are_refused(
    key: str, value: object, tmp_path: Path
) -> None:
    """Optuna would take another in their place, and learn from a point that was not tried."""
    tuner(tmp_path).next(0)
    stored = json.loads((tmp_path / POINTS).read_text())
    stored["points"][0][key] = value
    (tmp_path / POINTS).write_text(json.dumps(stored))
    with pytest.raises(RunFolderError, match="not as it was written") as refused:
        tuner(tmp_path)
    assert "\n" not in str(refused.value)


def test_mutations_of_a_points_file(tmp_path: Path) -> None:
    """Refused in one line, or points of the space."""
    study = tuner(tmp_path)
    points = [study.next(number) for number in range(3)]
    original, rng, refused = (tmp_path / POINTS).read_bytes(), random.Random(1), 0
    for _ in range(4_000 if SLOW else 400):
        stored = json.loads(original)
        as_json = rng.random() < 0.7
        changed = json.dumps(nastier(stored, rng)).encode() if as_json else damaged(original, rng)
        (tmp_path / POINTS).write_bytes(changed)
        try:
            memory = PointsFile(tmp_path / POINTS, SPACE)
        except RunFolderError as error:
            refused += "\n" not in str(error)
        else:
            for point in memory.points:
                assert 1e-3 <= point["training.lr"] <= 1.0
                assert point["method.mu"] in ((1, 2), "x")
    assert refused > 100
    (tmp_path / POINTS).write_bytes(original)
    assert PointsFile(tmp_path / POINTS, SPACE).points == points
