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
            # The mean is 1 and the deviation 1: ten seeds find that with a power of 0.8.
            pair(0.0, 1.0, 2.0),
            "dcfl-pw and fedavg are not distinguishable: +1.00 points (95 % interval −1.48 to "
            "+3.48, p = 0.225). Three seeds cannot tell these apart; about ten would.",
        ),
        (
            pair(0.1, -1.0, 1.0),
            "dcfl-pw and fedavg are not distinguishable: +0.03 points (95 % interval −2.45 to "
            "+2.52, p = 0.959). Three seeds cannot tell these apart; more than 100 would be "
            "needed.",
        ),
        (
            pair(2.0, 2.0),
            "dcfl-pw and fedavg are not distinguishable: +2.00 points (the same in both seeds, "
            "p = 0.500). Two seeds cannot tell these apart; about six would.",
        ),
        (pair(2.0), "One seed cannot tell dcfl-pw and fedavg apart (+2.00 points)."),
        (pair(0.0), "dcfl-pw and fedavg have the same accuracy in the one seed they share."),
        (
            pair(0.0, 0.0, 0.0),
            "dcfl-pw and fedavg have the same accuracy in all three seeds they share.",
        ),
    ],
)
def test_sentences(compared: Pair, wanted: str) -> None:
    assert sentence(compared) == wanted


def test_a_corrected_p_value_needs_more_seeds() -> None:
    """Among many pairs, an interval without 0 is not enough."""
    assert sentence(pair(0.7, 0.8, 0.9, p_value=0.2)) == (
        "dcfl-pw and fedavg are not distinguishable once corrected for all pairs: +0.80 points "
        "(95 % interval +0.55 to +1.05, p = 0.200). Three seeds cannot tell these apart; about "
        "four would."
    )


def test_every_method_is_held_against_the_first_and_the_best_against_the_second(
    tmp_path: Path,
) -> None:
    compared = standing(
        tmp_path,
        {
            "fedavg": [50.0 + around for around in AROUND],
            "moon": [53.0, 53.1, 53.2, 53.3],
            "scaffold": [56.0, 56.4, 55.9, 56.1],
        },
    )
    first, second, third, correction = verdict(compared)
    assert first.startswith("moon is 3.15 points above fedavg (95 % interval ")
    assert second.startswith("scaffold is 6.10 points above fedavg (")
    assert third.startswith("scaffold is 2.95 points above moon (")
    assert correction == "p is corrected for three pairs of methods (Holm); intervals are not."
    assert headline(compared).startswith("scaffold has the highest EMA accuracy: 56.10 %, 6.10")


def test_the_headline_says_when_methods_are_not_distinguishable(tmp_path: Path) -> None:
    one = standing(tmp_path / "one", {"fedavg": [50.0, 52.0], "moon": [51.0, 50.0]})
    assert headline(one).startswith(
        "fedavg has the highest EMA accuracy: 51.00 %. It is not distinguishable from moon (+0.50 "
    )
    some = standing(
        tmp_path / "some",
        {"a": [50.0, 52.0, 51.0], "b": [51.0, 50.0, 51.9], "c": [20.0, 22.01, 21.02]},
    )
    assert headline(some).startswith(
        "a has the highest EMA accuracy: 51.00 %. It is not distinguishable from b (+0.03 points, "
    )  # and c, far below, is not named
    same = standing(tmp_path / "same", {"a": [50.0, 52.0], "b": [50.0, 52.0]})
    assert headline(same) == (
        "a has the highest EMA accuracy: 51.00 %. It is not distinguishable from b (0.00 points, "
        "the same in both seeds, p = 1.000)."
    )
    far = standing(
        tmp_path / "far",
        {"a": [50.0, 52.0, 51.0], "b": [63.0, 73.0, 68.0], "c": [50.2, 51.9, 50.9]},
    )
    assert headline(far) == (
        "b has the highest EMA accuracy: 68.00 %. It is not distinguishable from any other method "
        "once corrected for all pairs. Three seeds cannot tell these apart; about four would."
    )
    single = standing(tmp_path / "single", {"a": [50.0], "b": [51.0], "c": [49.0]})
    assert headline(single).endswith("One seed cannot tell it from any other method.")


def test_one_method_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    alone = standing(tmp_path, {"fedavg": [50.0, 52.0]})
    assert verdict(alone) == []
    assert headline(alone).startswith("fedavg reached 51.00 % at best (MAX) and 51.00 %")


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
    assert headline(few) == "Eight data sets or splits, compared below."
    assert verdict(few)[0] == (
        "data.alpha=1: b has the highest EMA accuracy: 11.00 %. One seed cannot tell it from a."
    )
