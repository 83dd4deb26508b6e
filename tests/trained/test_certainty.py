"""Intervals, and two models on the same pictures."""

import json
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest  # type: ignore[import-untyped]

import dcfl
from dcfl.scores import wilson
from dcfl.trained.evaluate import PairedModels, accuracy_interval, compare_models, evaluation_of
from tests.command_line import Call
from tests.data.pictures import class_folders
from tests.data.scanners import scanners

SMALL: dict[str, Any] = {"training": {"batch_size": 8, "epochs": 1}, "engine": {"workers": 1}}


@given(st.integers(1, 3000), st.data())
def test_wilson_as_scipy_has_it(images: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, images))
    expected = binomtest(right, images).proportion_ci(0.95, "wilson")
    assert wilson(right, images) == pytest.approx((100 * expected.low, 100 * expected.high))


def test_groups_that_agree_are_worth_one_picture_each() -> None:
    """Fifty patients with forty pictures each, all of them right or all wrong."""
    groups = torch.arange(50).repeat_interleave(40)
    right = groups % 5 > 0
    narrow, wide = accuracy_interval(right, None), accuracy_interval(right, groups)
    assert narrow == pytest.approx(wilson(1600, 2000))
    assert wide == pytest.approx(wilson(40, 50), abs=2.5)
    assert accuracy_interval(right, torch.arange(2000)) == pytest.approx(narrow, abs=0.4)
    everything = torch.ones(2000, dtype=torch.bool)
    assert accuracy_interval(everything, groups) == pytest.approx(wilson(50, 50))


@pytest.mark.slow
def test_an_interval_by_groups_holds_the_truth_about_as_often_as_it_says() -> None:
    rng, held = np.random.default_rng(3), 0
    for _ in range(60):
        chances = rng.beta(4, 1, 40)  # of patients: 80 % on average
        groups = torch.arange(40).repeat_interleave(10)
        right = torch.from_numpy(rng.random(400) < np.repeat(chances, 10))
        low, high = accuracy_interval(right, groups)
        held += low <= 80 <= high
    assert held >= 51


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 60))
def test_mcnemar(won: int, lost: int, both: int) -> None:
    images = won + lost + both
    if not images:
        return
    first, second = torch.zeros(images, dtype=torch.bool), torch.zeros(images, dtype=torch.bool)
    second[:won], first[won : won + lost] = True, True
    first[won + lost :], second[won + lost :] = True, True
    found = PairedModels.of(first, second, None)
    assert (found.only_second, found.only_first, found.images) == (won, lost, images)
    assert found.difference == pytest.approx(100 * (won - lost) / images)
    as_far = [comb(won + lost, n) for n in range(min(won, lost) + 1)]
    assert found.p_value == pytest.approx(min(1.0, 2 * sum(as_far) / 2 ** (won + lost)))
    low, high = found.interval
    assert low <= found.difference <= high or images < 3
    swapped = PairedModels.of(second, first, None)
    assert swapped.interval == pytest.approx((-high, -low))


def test_by_groups_a_few_lucky_patients_prove_nothing() -> None:
    """One patient of ten has fifty pictures that the second model alone gets right."""
    groups = torch.cat([torch.zeros(50), torch.arange(1, 10).repeat_interleave(50)]).long()
    first = torch.ones(500, dtype=torch.bool)
    first[:50] = False
    second = torch.ones(500, dtype=torch.bool)
    by_pictures, by_groups = (PairedModels.of(first, second, one) for one in (None, groups))
    assert by_pictures.p_value < 1e-9
    assert by_groups.p_value > 0.5
    assert by_groups.interval[0] == pytest.approx(0)


def test_evaluate_shows_it_everywhere_and_compares_two_runs(tmp_path: Path, cli: Call) -> None:
    """FedBN's model beside FedAvg's, on patients' pictures of scanners that differ."""
    data = {"dataset": f"sites:{scanners(tmp_path / 'sites')}", "image_size": 8}
    runs = [
        dcfl.run(data=data, method=name, federation={"rounds": 2}, out=tmp_path / name, **SMALL)
        for name in ("fedavg", "fedprox")
    ]
    _, out, _ = cli("evaluate", runs[0].folder, "--json")
    found = json.loads(out)
    record = evaluation_of(runs[0].folder)
    assert found["interval"] == [*record.interval]  # type: ignore[misc]
    assert found["groups"] == record.groups
    assert found["interval"][0] <= found["accuracy"] <= found["interval"][1]
    assert found["most_frequent"]["share"] >= 50
    shown = cli("evaluate", runs[0].folder)[1]
    assert record.interval_words in shown
    assert "most frequent" in shown
    assert record.interval_words in (runs[0].folder / "report.html").read_text()
    folders = [run.folder for run in runs]
    _, out, _ = cli("evaluate", *folders, tmp_path / "sites" / "north")
    assert "difference  " in out
    assert "whole groups change signs" in out
    _, out, _ = cli("evaluate", *folders, "--json")
    paired = json.loads(out)["paired"]
    own = compare_models(folders)
    assert paired["difference"] == own.paired.difference
    accuracies = [dcfl.evaluate(folder).accuracy for folder in folders]
    assert paired["difference"] == pytest.approx(accuracies[1] - accuracies[0])
    for words in ([*folders, folders[0], "x"], [*folders, "--clients"], [folders[0], "a", "b"]):
        code, _, err = cli("evaluate", *words)
        assert (code, err.count("\n")) == (2, 1)


def test_pictures_without_groups_count_each(tmp_path: Path) -> None:
    data = {"dataset": f"folder:{class_folders(tmp_path / 'x', a=20, b=20)}", "image_size": 8}
    run = dcfl.run(data={**data, "clients": 2}, federation={"rounds": 1}, **SMALL).folder
    record = evaluation_of(run)
    assert record.groups is None
    right = round(record.scores.accuracy / 100 * record.images)
    assert record.interval == pytest.approx(wilson(right, record.images))
