"""The sentences that a comparison comes to."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dcfl.comparisons.groups import group_runs
from dcfl.comparisons.pairs import Pair, Paired
from dcfl.comparisons.standing import Standing
from dcfl.comparisons.verdict import headline, sentence, verdict
from tests.report.folders import write_run

AROUND = (-0.2, 0.1, 0.0, 0.1)  # seeds differ by tenths around a method's mean


def pair(*differences: float, p_value: float | None = None) -> Pair:
    paired = Paired(differences)
    return Pair("dcfl-pw", "fedavg", paired, paired.p_value if p_value is None else p_value)


def standing(folder: Path, accuracies: Mapping[str, Sequence[float]]) -> Standing:
    runs = [
        write_run(folder / f"{method}{seed}", [value], method=method, seed=seed)
        for method, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    return Standing(group_runs(runs))


@pytest.mark.parametrize(
    ("compared", "wanted"),
    [
        (
            pair(0.7, 0.8, 0.9),
            "dcfl-pw is 0.80 points above fedavg (95 % interval +0.55 to +1.05, p = 0.005).",
        ),
        (
            pair(-0.7, -0.8, -0.9),
            "dcfl-pw is 0.80 points below fedavg (95 % interval −1.05 to −0.55, p = 0.005).",
        ),
        (
            pair(0.7001, 0.7, 0.7002),
            "dcfl-pw is 0.70 points above fedavg (95 % interval +0.70 to +0.70, p < 0.001).",
        ),
        (
            pair(0.0, 1.0, 2.0),
            "dcfl-pw cannot be told from fedavg (+1.00, 95 % interval −1.48 to +3.48, p = 0.225).",
        ),
        (
            pair(0.1, -1.0, 1.0),
            "dcfl-pw cannot be told from fedavg (+0.03, 95 % interval −2.45 to +2.52, p = 0.959).",
        ),
        (
            # Won by all seeds, by next to nothing: that they are close is what can be said.
            pair(0.05, 0.005, 0.005),
            "dcfl-pw is within 0.08 points of fedavg (+0.02, 95 % interval −0.04 to +0.08, "
            "p = 0.314).",
        ),
        (
            pair(9.0, 30.0, 12.0),  # every seed is won: not nothing
            "dcfl-pw is above fedavg in all three seeds, by 17.00 points on average, but seeds "
            "differ too much to be sure (95 % interval −11.21 to +45.21, p = 0.122).",
        ),
        (
            pair(2.0, 2.0),
            "dcfl-pw is above fedavg in both seeds, by 2.00 points on average (p = 0.500).",
        ),
        (
            pair(2.0),
            "dcfl-pw is 2.00 points above fedavg in one seed, which says nothing about chance.",
        ),
        (pair(0.0), "dcfl-pw has the accuracy of fedavg in the one seed they share."),
        (pair(0.0, 0.0, 0.0), "dcfl-pw has the accuracy of fedavg in all three seeds they share."),
    ],
)
def test_sentences(compared: Pair, wanted: str) -> None:
    assert sentence(compared) == wanted


def test_a_p_value_that_correction_takes_away_is_told() -> None:
    """Among many comparisons, an interval without 0 is not enough; nor is it nothing."""
    assert sentence(pair(0.7, 0.8, 0.9, p_value=0.2)) == (
        "dcfl-pw is 0.80 points above fedavg (95 % interval +0.55 to +1.05, p = 0.005 by itself, "
        "0.200 among all)."
    )


SCORES = {
    "fedavg": [50.0 + around for around in AROUND],
    "moon": [53.0, 53.1, 53.2, 53.3],
    "scaffold": [56.0, 56.4, 55.9, 56.1],
}


def test_every_method_is_held_against_the_first(tmp_path: Path) -> None:
    compared = standing(tmp_path, SCORES)
    first, second, correction = verdict(compared)
    assert first.startswith("moon is 3.15 points above fedavg (95 % interval ")
    assert second.startswith("scaffold is 6.10 points above fedavg (")
    assert correction == "p is corrected for two comparisons with fedavg (Holm); intervals are not."
    assert headline(compared).startswith(
        "scaffold has the highest EMA accuracy, 56.10 %. It is 6.10 points above fedavg (95 %"
    )
    assert headline(compared).endswith(" moon is above fedavg.")


def test_all_pairs_on_request(tmp_path: Path) -> None:
    few = standing(tmp_path, SCORES)
    every = Standing(few.groups, all_pairs=True)
    _, _, third, correction = verdict(every)
    assert third.startswith("scaffold is 2.95 points above moon (")
    assert correction == "p is corrected for three pairs of methods (Holm); intervals are not."
    gains = [found.gain(few.groups[1]) for found in (few, every)]
    alone = [gain and gain.paired.p_value for gain in gains]
    asked, among_all = (gain.p_value for gain in gains if gain and gain.p_value)
    assert alone[0] == alone[1] is not None
    assert alone[0] <= asked < among_all


def test_more_baselines_leave_the_interval_and_the_p_value_by_itself(tmp_path: Path) -> None:
    """Eight more methods that are like FedAvg: the difference is still reported."""
    gains = [24.0, 33.0, 25.0]
    others = {f"m{number}": [50.0, 51.0, 50.1 + number / 10] for number in range(8)}
    many = standing(
        tmp_path, {"fedavg": [50.0, 51.0, 52.0], "scaffold": [74.0, 84.0, 77.0], **others}
    )
    found = many.gain(many.groups[1])
    assert found is not None
    assert found.paired.p_value == pytest.approx(Paired(tuple(gains)).p_value)
    assert found.p_value == pytest.approx(9 * (found.paired.p_value or 0))  # not 45 times
    assert verdict(many)[0].startswith("scaffold is 27.33 points above fedavg (95 % interval +15.")
    assert "It is 27.33 points above fedavg" in headline(many)


def test_the_headline_says_how_far_apart_methods_can_be(tmp_path: Path) -> None:
    one = standing(tmp_path / "one", {"fedavg": [50.0, 52.0], "moon": [51.0, 50.0]})
    assert headline(one) == (
        "fedavg has the highest EMA accuracy, 51.00 %. moon is not told from fedavg."
    )
    some = standing(
        tmp_path / "some",
        {"a": [50.0, 52.0, 51.0], "b": [51.0, 50.0, 51.9], "c": [20.0, 22.01, 21.02]},
    )
    assert headline(some) == (
        "a has the highest EMA accuracy, 51.00 %. b is not told from a; c is below it."
    )
    same = standing(tmp_path / "same", {"a": [50.0, 52.0], "b": [50.0, 52.0]})
    assert headline(same) == "a has the highest EMA accuracy, 51.00 %. b is level with a."
    far = standing(
        tmp_path / "far",
        {"a": [50.0, 52.0, 51.0], "b": [63.0, 73.0, 68.0], "c": [50.2, 51.9, 50.9]},
    )
    assert headline(far).startswith(
        "b has the highest EMA accuracy, 68.00 %. It is 17.00 points above a (95 % interval "
    )
    assert headline(far).endswith("c is within 0.43 points of a.")
    single = standing(tmp_path / "single", {"a": [50.0], "b": [51.0], "c": [49.0]})
    assert "It is 1.00 points above a in one seed, which says nothing" in headline(single)


def test_one_method_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    alone = standing(tmp_path, {"fedavg": [50.0, 52.0]})
    assert verdict(alone) == []
    assert headline(alone).startswith("fedavg ends with a model of ")


def test_the_best_over_several_splits(tmp_path: Path) -> None:
    runs = [
        write_run(
            tmp_path / f"{method}{alpha}",
            [10 * alpha + gain],
            method=method,
            settings={"data.alpha": float(alpha)},
        )
        for alpha in range(1, 9)
        for method, gain in (("a", 0.0), ("b", 1.0), ("c", 2.0), ("d", 3.0))
    ]
    ranked = Standing(group_runs(runs))
    assert headline(ranked) == (
        "Over eight data sets or splits, d has the best mean rank (1.00 of 4), but is not "
        "distinguishable from c."
    )
    few = Standing(group_runs([run for run in runs if run.folder.name[0] in "ab"]))
    assert headline(few) == (
        "Of eight data sets, splits or settings, the highest EMA accuracy is b's in eight; methods "
        "can be told apart in none."
    )
    assert verdict(few)[0] == (
        "data.alpha=1: b has the highest EMA accuracy, 11.00 %. It is 1.00 points above a in one "
        "seed, which says nothing about chance."
    )
