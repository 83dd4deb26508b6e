"""The robust rules: toys worked out by hand, oracles that know nothing of ours, and properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from dcfl.errors import ConfigError
from dcfl.local_training import LocalTraining
from dcfl.messages import ClientUpdate
from dcfl.server import ServerSettings, robust
from dcfl.server.aggregation import Aggregation, fold_for
from dcfl.server.robust import Defence, Folded

RULES = ["norm-clipping", "median", "trimmed-mean", "krum", "multi-krum"]
ROBUST = [rule for rule in RULES if rule != "norm-clipping"]  # which bounds harm, and no more
ONE_IN_FIVE = Defence(0.2)
SENT = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
Vectors = list[list[float]]


def fold(
    rule: str,
    values: Vectors | np.ndarray,
    defence: Defence = ONE_IN_FIVE,
    sent: torch.Tensor = SENT,
    order: list[int] | None = None,
) -> Folded:
    """Of replies sent + value, in the given order; a buffer and an integer ride along."""
    folded = fold_for(rule, frozenset({"w"}), LocalTraining(), defence)  # type: ignore[arg-type]
    start = {"w": sent, "var": torch.ones(1), "steps": torch.tensor(0)}
    for client in order or range(len(values)):
        weights = {
            "w": sent + torch.as_tensor(values[client], dtype=sent.dtype).view_as(sent),
            "var": torch.tensor([1.0 + client]),
            "steps": torch.tensor(client),
        }
        folded.add(ClientUpdate(client, weights, {}, 1, 1, {}))
        for tensor in weights.values():  # as the pool does with its slots
            tensor.fill_(77)
    return folded.finish(start)


def direction(rule: str, values: Vectors | np.ndarray, defence: Defence = ONE_IN_FIVE) -> list:
    """Of float64 replies from the origin, flat."""
    sent = torch.zeros(len(values[0]), dtype=torch.float64)
    result: list = fold(rule, values, defence, sent).direction["w"].tolist()
    return result


# By hand

LINE = [[0.0], [1.0], [2.0], [4.0], [100.0]]


def test_the_median_is_the_middle_value() -> None:
    assert direction("median", LINE) == [2.0]
    assert direction("median", LINE[:4]) == [1.5]
    assert direction("median", [[0.0, 9.0], [5.0, 1.0], [7.0, 3.0]]) == [5.0, 3.0]


def test_a_trimmed_mean_leaves_out_both_ends() -> None:
    assert direction("trimmed-mean", LINE, Defence(0.2)) == pytest.approx([7 / 3])
    assert direction("trimmed-mean", LINE, Defence(0.4)) == [2.0]
    assert direction("trimmed-mean", LINE, Defence(0.0)) == pytest.approx([107 / 5])


def test_krum_takes_the_reply_with_the_nearest_neighbours() -> None:
    """f = 1: two neighbours each; 1 is at 1 + 1 from 0 and 2, the others are further away."""
    assert direction("krum", LINE) == [1.0]


def test_multi_krum_is_the_mean_of_all_but_the_worst() -> None:
    assert direction("multi-krum", LINE) == pytest.approx([7 / 4])
    longer = [*LINE, [3.0], [-90.0]]
    assert direction("multi-krum", longer, Defence(2 / 7)) == pytest.approx([2.0])


@pytest.mark.parametrize(
    ("rule", "rejected"),
    [("krum", {4}), ("multi-krum", {4}), ("median", set()), ("trimmed-mean", set())],
)
def test_who_was_rejected_is_told(rule: str, rejected: set[int]) -> None:
    sent = torch.zeros(1, dtype=torch.float64)
    assert fold(rule, LINE, sent=sent).rejected == rejected


@pytest.mark.parametrize(
    ("share", "replies", "population", "needed"),
    [
        *((0.2, 5, 5, 5), (0.2, 5, 20, 7), (0.2, 6, 6, 7), (0.2, 10, 10, 7), (0.2, 10, 20, 11)),
        *((0.2, 11, 20, 11), (0.0, 2, 9, 3), (0.2, 1, 20, 3), (0.2, 2, 20, 3), (0.2, 4, 20, 5)),
    ],
)
def test_how_many_replies_krum_needs(
    share: float, replies: int, population: int, needed: int
) -> None:
    def wanted(rule: Aggregation) -> int:
        return ServerSettings(rule, byzantine=share).replies_needed(replies, population)

    assert wanted("krum") == wanted("multi-krum") == needed
    assert wanted("median") == wanted("uniform") == 1


@settings(max_examples=200, deadline=None)
@given(replies=st.integers(1, 60), more=st.integers(0, 200), share=st.floats(0, 0.499))
def test_krum_never_runs_on_a_number_that_its_theorem_does_not_cover(
    replies: int, more: int, share: float
) -> None:
    """However f is bounded: n >= needed means n >= 2 * (the expected number of attackers) + 3."""
    population = replies + more
    if ServerSettings("krum", byzantine=share).replies_needed(replies, population) <= replies:
        assert replies >= 2 * share * replies + 3 - 1e-6


def test_clipping_at_the_median_norm() -> None:
    values = [[3.0, 4.0], [0.0, 1.0], [-30.0, -40.0]]  # of lengths 5, 1 and 50
    assert direction("norm-clipping", values) == pytest.approx([0.0, 1 / 3])
    assert direction("norm-clipping", values, Defence(clip_norm=1.0)) == pytest.approx([0, 1 / 3])
    assert direction("norm-clipping", values, Defence(clip_norm=25.0)) == pytest.approx(
        [-4.0, -5.0]
    )


# Against others

CLOUDS = st.tuples(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**31)).map(
    lambda shape: np.random.default_rng(shape[2]).standard_t(2, shape[:2])
)
SHARES = st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.49])


@settings(max_examples=100, deadline=None)
@given(cloud=CLOUDS)
def test_median_as_in_numpy(cloud: np.ndarray) -> None:
    assert direction("median", cloud) == pytest.approx(np.median(cloud, axis=0))


@settings(max_examples=100, deadline=None)
@given(cloud=CLOUDS)
def test_trimmed_mean_as_in_scipy(cloud: np.ndarray) -> None:
    ours = direction("trimmed-mean", cloud, Defence(0.3))
    cut = min(-(-3 * len(cloud) // 10), (len(cloud) - 1) // 2)
    expected = stats.trim_mean(cloud, (cut + 0.5) / len(cloud), axis=0)
    assert ours == pytest.approx(expected)


def krum_order(cloud: np.ndarray, f: int) -> list[int]:
    """Blanchard et al., section 4, word by word: s(i) sums the squared distances from i to its
    n - f - 2 closest vectors, where n >= 2f + 3."""
    n = len(cloud)
    scores = []
    for i in range(n):
        apart = sorted(float(((cloud[i] - cloud[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(apart[: n - f - 2]))
    return sorted(range(n), key=lambda i: (round(scores[i], 9), i))


@settings(max_examples=100, deadline=None)
@given(cloud=CLOUDS, share=SHARES)
def test_krum_as_in_its_paper(cloud: np.ndarray, share: float) -> None:
    n = len(cloud)
    f = int(np.ceil(round(share * n, 9)))
    assume(n >= 2 * f + 3)
    order = krum_order(cloud, f)
    assert direction("krum", cloud, Defence(share)) == pytest.approx(cloud[order[0]])
    expected = cloud[order[: n - f]].mean(axis=0)
    assert direction("multi-krum", cloud, Defence(share)) == pytest.approx(expected)


@settings(max_examples=50, deadline=None)
@given(cloud=CLOUDS)
def test_clipping_as_in_numpy(cloud: np.ndarray) -> None:
    norms = np.linalg.norm(cloud, axis=1)
    bound = np.sort(norms)[(len(norms) - 1) // 2]
    expected = (cloud * np.minimum(1, bound / norms)[:, None]).mean(axis=0)
    assert direction("norm-clipping", cloud) == pytest.approx(expected)


# Properties


@settings(max_examples=100, deadline=None)
@given(cloud=CLOUDS, rule=st.sampled_from(RULES), share=SHARES, data=st.data())
def test_the_order_of_the_replies_does_not_matter_to_the_last_bit(
    cloud: np.ndarray, rule: str, share: float, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(cloud))))
    sent = torch.linspace(-1, 1, cloud.shape[1])
    # Float32, and values with many ties
    one, other = (
        fold(rule, cloud.round(), Defence(share), sent, each)
        for each in (list(range(len(cloud))), list(order))
    )
    assert torch.equal(one.direction["w"], other.direction["w"])
    assert torch.equal(one.buffers["var"], other.buffers["var"])
    assert one.buffers["steps"].item() == other.buffers["steps"].item()
    assert one.rejected == other.rejected
    assert one.buffers["steps"].item() not in one.rejected


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("rule", RULES)
def test_what_all_agree_on_is_the_answer(rule: str, count: int) -> None:
    value = [[0.3, -7.0], [1e-3, 40.0]]
    result = fold(rule, [value] * count).direction["w"]  # type: ignore[list-item]
    torch.testing.assert_close(result, torch.tensor(value).double(), rtol=1e-6, atol=1e-6)
    assert result.dtype == torch.float64


@settings(max_examples=100, deadline=None)
@given(
    rule=st.sampled_from(ROBUST),
    honest=st.integers(4, 9),
    forged=st.floats(10, 1e14),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_a_minority_cannot_carry_the_result_away(
    rule: str, honest: int, forged: float, seed: int, data: st.DataObject
) -> None:
    """However far the forgeries lie, together or apart, the result stays with the honest."""
    rng = np.random.default_rng(seed)
    # f of n with n >= 2f + 3, as Krum's theorem wants
    liars = data.draw(st.integers(1, (honest - 3) if honest < 6 else 3))
    together = data.draw(st.booleans())
    cloud = rng.uniform(-1, 1, (honest, 5))
    signs = np.ones((liars, 5)) if together else rng.choice([-1, 1], (liars, 5))
    if honest < liars + 3:
        return
    mixed = rng.permutation(np.vstack([cloud, forged * signs]))
    result = direction(rule, mixed, Defence(liars / len(mixed)))
    assert np.abs(result).max() <= 1.0 + 1e-9


@pytest.mark.parametrize("rule", ["uniform", "samples"])
def test_the_mean_can_be_carried_anywhere(rule: str) -> None:
    assert direction(rule, [*LINE[:4], [1e14]])[0] > 1e13


def test_clipping_bounds_the_harm() -> None:
    rng = np.random.default_rng(0)
    cloud = rng.normal(size=(9, 4))
    norms = np.linalg.norm(cloud, axis=1)
    honest = np.array(direction("norm-clipping", cloud))
    forged = np.array(direction("norm-clipping", np.vstack([cloud, [[1e14] * 4]])))
    assert np.linalg.norm(forged - honest) <= 2 * np.sort(norms)[5] / 5


@pytest.mark.parametrize("rule", RULES)
def test_forged_buffers_and_counts_are_no_way_around(rule: str) -> None:
    """Honest parameters with a running variance of 1e14, and all the samples in the world."""
    folded = fold_for(rule, frozenset({"w"}), LocalTraining(), Defence(0.2))  # type: ignore[arg-type]
    for client in range(5):
        variance = 1e14 if client == 2 else 1.0 + client / 10
        weights = {"w": torch.tensor([1.0, 2.0]) + client / 100, "var": torch.tensor([variance])}
        folded.add(ClientUpdate(client, weights, {}, 2**39 if client == 2 else 5, 1, {}))
    buffers = folded.finish({"w": torch.zeros(2), "var": torch.ones(1)}).buffers
    assert 1.0 <= buffers["var"].item() <= 1.4


STATISTICS = [[1.0, 20.0], [1.5, 24.0], [2.0, 22.0], [1.2, 23.0], [1.8, 21.0]]


def krum_statistics(rule: str, statistics: Vectors, parameters: Vectors) -> list[float]:
    folded = fold_for(rule, frozenset({"w"}), LocalTraining(), Defence(0.2))  # type: ignore[arg-type]
    for client, (own, value) in enumerate(zip(statistics, parameters, strict=True)):
        weights = {"w": torch.tensor(value), "var": torch.tensor(own, dtype=torch.float64)}
        folded.add(ClientUpdate(client, weights, {}, 1, 1, {}))
    start = {"w": torch.zeros(1), "var": torch.ones(2, dtype=torch.float64)}
    result: list[float] = folded.finish(start).buffers["var"].tolist()
    return result


def test_krum_takes_the_statistics_that_belong_to_its_parameters() -> None:
    """Those of the chosen replies, and not everybody's median: client 1 of LINE; all but 4."""
    assert krum_statistics("krum", STATISTICS, LINE) == pytest.approx([1.5, 24.0])
    of_four = np.mean(STATISTICS[:4], axis=0)
    assert krum_statistics("multi-krum", STATISTICS, LINE) == pytest.approx(of_four)


@pytest.mark.parametrize("forged", [[0.0, 1e14], [1e6, 22.0], [1.5, 0.0]])
def test_statistics_far_from_all_others_are_not_taken(forged: list[float]) -> None:
    """Client 1 has the best parameters of all, and forged statistics."""
    statistics = [forged if client == 1 else own for client, own in enumerate(STATISTICS)]
    others = np.delete(statistics, 1, axis=0)
    taken = krum_statistics("krum", statistics, LINE)
    assert taken == pytest.approx(others.mean(axis=0))
    of_three = krum_statistics("multi-krum", statistics, LINE)
    assert of_three == pytest.approx(others[:3].mean(axis=0))


@pytest.mark.parametrize("rule", ["trimmed-mean", "multi-krum", "norm-clipping"])
def test_without_suspicion_it_is_the_mean(rule: str) -> None:
    cloud = np.random.default_rng(0).normal(size=(7, 4))
    tolerant = Defence(byzantine=0.0, clip_norm=1e9)
    assert direction(rule, cloud, tolerant) == pytest.approx(cloud.mean(axis=0))


@pytest.mark.parametrize("rule", [rule for rule in RULES if "krum" not in rule])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_few_replies_still_give_an_answer_among_them(rule: str, count: int) -> None:
    values = [[float(k), -float(k)] for k in range(1, count + 1)]
    first, second = direction(rule, values, Defence(0.49))
    assert first == pytest.approx(-second)
    assert first == pytest.approx(min(max(first, 1), count))


def test_three_replies_are_enough_to_drop_one() -> None:
    for rule in ("median", "trimmed-mean"):
        assert abs(direction(rule, [[1.0], [1.5], [1e12]], Defence(0.2))[0]) <= 1.5


def test_memory_layouts_and_shapes_are_those_that_were_sent() -> None:
    sent = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    result = fold("median", [torch.ones(48).tolist()] * 3, sent=sent).direction["w"]
    assert result.shape == sent.shape
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = np.random.default_rng(1).normal(size=(6, 41))
    whole = {rule: direction(rule, cloud) for rule in RULES}
    monkeypatch.setattr(robust, "BLOCK", 30)
    for rule in RULES:
        assert direction(rule, cloud) == pytest.approx(whole[rule])


def test_distances_do_not_cancel() -> None:
    """A reply of 1e14 must not blur how far the others are apart."""
    rows = [torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1e-3]), torch.tensor([1e14, 0.0])]
    assert robust.squared_distances(rows)[0, 1].item() == pytest.approx(1e-6, rel=1e-6)


@pytest.mark.parametrize(
    ("share", "replies", "population", "expected"),
    [
        *((0.2, 15, 15, 3), (0.2, 16, 16, 4), (0.2, 10, 0, 2), (0.0, 10, 100, 0)),
        *((0.3, 1, 9, 0), (0.3, 2, 9, 0), (0.3, 3, 9, 1), (0.49, 10, 10, 4)),  # a minority
        *((0.2, 10, 20, 4), (0.2, 5, 20, 2), (0.1, 10, 20, 2)),  # all attackers, or a minority
        (0.2, 100, 1000, 32),  # 20 + 3 * 3.80 = 31.4
    ],
)
def test_how_many_are_suspect(share: float, replies: int, population: int, expected: int) -> None:
    assert robust.MultiKrum([], Defence(share, 0.0, population)).suspects(replies) == expected


@pytest.mark.parametrize(("population", "size"), [(20, 10), (50, 20), (100, 15), (1000, 100)])
def test_hardly_a_sample_holds_more_attackers_than_suspects(population: int, size: int) -> None:
    suspects = robust.MultiKrum([], Defence(0.2, 0.0, population)).suspects(size)
    more = stats.hypergeom(population, population // 5, size).sf(suspects)
    assert more < 0.003


@pytest.mark.parametrize(
    "wrong", [{"byzantine": 0.5}, {"byzantine": -0.1}, {"clip_norm": -1.0}, {"clip_norm": 1e39}]
)
def test_settings_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"server.{next(iter(wrong))}"):
        ServerSettings("multi-krum", **wrong)  # type: ignore[arg-type]
