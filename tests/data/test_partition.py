import contextlib
import time
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcfl.data.splits.partition import (
    SCHEMES,
    USE_ALPHA,
    Partition,
    SplitRequest,
    _balanced,
    _race,
    split,
)
from dcfl.errors import PartitionError

REAL = [scheme for scheme in SCHEMES if scheme != "given"]
LABELS = np.repeat(np.arange(10), 100)


def parts(partition: Partition) -> list[set[int]]:
    return [set(partition.of(client).tolist()) for client in range(len(partition))]


@settings(max_examples=80, deadline=None)
@given(
    scheme=st.sampled_from(REAL),
    alpha=st.floats(0.01, 100) | st.just(float("inf")),
    clients=st.integers(1, 25),
    classes=st.integers(1, 12),
    samples=st.integers(40, 400),
    min_size=st.integers(1, 4),
    per_client=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_parts_are_disjoint_cover_the_data_and_respect_the_minimum(
    scheme: str,
    alpha: float,
    clients: int,
    classes: int,
    samples: int,
    min_size: int,
    per_client: int,
    seed: int,
) -> None:
    labels = np.random.default_rng(seed).integers(0, classes, samples)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            made = split(labels, clients, scheme, alpha, seed, min_size, per_client)
        except PartitionError:
            return  # an honest refusal; that splits do exist is tested below
        again = split(labels, clients, scheme, alpha, seed, min_size, per_client)
    owned = np.sort(made.indices)
    assert (np.diff(owned) > 0).all()
    iid = scheme == "iid" or (np.isinf(alpha) and scheme in USE_ALPHA)
    equal = clients if iid or scheme == "dirichlet-balanced" else None
    equal = clients * per_client if scheme == "shards" else equal
    assert samples - len(owned) == (samples % equal if equal else 0)
    assert made.sizes.min() >= min_size
    assert not equal or (made.sizes == len(owned) // clients).all()
    assert made.sha256 == again.sha256
    assert made.counts(labels, classes).sum() == len(owned)


@pytest.mark.parametrize("scheme", REAL)
def test_ordinary_splits_exist_and_depend_on_the_seed(scheme: str) -> None:
    one, other = (split(LABELS, 20, scheme, 0.3, seed, min_size=10) for seed in (0, 1))
    assert one.sha256 != other.sha256
    assert parts(one) != parts(other)


@pytest.mark.parametrize("scheme", ["dirichlet-balanced", "dirichlet-capped", "dirichlet-uncapped"])
def test_alpha_decides_between_one_class_and_all_alike(scheme: str) -> None:
    def largest_share(alpha: float) -> float:
        counts = split(LABELS, 10, scheme, alpha, 0, min_size=1).counts(LABELS, 10)
        return float((counts.max(1) / counts.sum(1)).mean())

    skewed, mild, even = (largest_share(alpha) for alpha in (0.05, 1.0, 1000.0))
    assert skewed > 0.6 > mild > 0.2 > even > 0.1


def test_infinite_alpha_is_a_random_equal_split() -> None:
    for scheme in USE_ALPHA:
        made = split(LABELS, 10, scheme, float("inf"), 3, min_size=1)
        assert made.sha256 == split(LABELS, 10, "iid", 0.1, 3, min_size=1).sha256


def test_capped_clients_stop_growing() -> None:
    """Only the class that crosses the cap can exceed it."""
    sizes = split(LABELS, 10, "dirichlet-capped", 0.3, 0, min_size=1).sizes
    loose = split(LABELS, 10, "dirichlet-uncapped", 0.3, 0, min_size=1).sizes
    assert sizes.max() <= 100 + 100
    assert sizes.std() < loose.std()


def test_shards_give_most_clients_two_classes() -> None:
    counts = split(LABELS, 25, "shards", 1.0, 0, min_size=1).counts(LABELS, 10)
    assert ((counts > 0).sum(axis=1) <= 4).all()
    assert np.median((counts > 0).sum(axis=1)) == 2
    assert (counts.sum(axis=1) == 40).all()


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
def test_pathological_clients_hold_exactly_so_many_classes(classes: int) -> None:
    made = split(LABELS, 20, "pathological", 1.0, 0, min_size=1, per_client=classes)
    counts = made.counts(LABELS, 10)
    assert ((counts > 0).sum(axis=1) == classes).all()
    assert counts.sum() == 1000
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    kinds = {tuple(np.flatnonzero(row)) for row in counts}
    assert (
        len(kinds) >= {1: 10, 2: 12, 3: 16, 10: 1}[classes]
    )  # not the same groups again and again


def test_quantity_skew_changes_sizes_and_not_mixes() -> None:
    labels = np.tile(LABELS, 20)
    made = split(labels, 10, "quantity", 0.5, 0, min_size=200)
    counts = made.counts(labels, 10)
    assert made.sizes.max() > 3 * made.sizes.min()
    assert np.abs(counts / counts.sum(axis=1, keepdims=True) - 0.1).max() < 0.07


@pytest.mark.slow
@pytest.mark.parametrize("scheme", REAL)
def test_ten_thousand_clients_are_split_or_refused_within_reason(scheme: str) -> None:
    labels = np.repeat(np.arange(10), 5000)
    began = time.perf_counter()
    with contextlib.suppress(PartitionError):
        assert len(split(labels, 10_000, scheme, 1.0, 0, min_size=1)) == 10_000
    assert time.perf_counter() - began < 60  # it takes a few seconds; work per sample took minutes


@pytest.mark.parametrize("scheme", ["quantity", "dirichlet-balanced", "dirichlet-uncapped"])
def test_a_huge_alpha_is_even(scheme: str) -> None:
    counts = split(LABELS, 10, scheme, 1e308, 0, min_size=1).counts(LABELS, 10)
    assert counts.sum(axis=1).min() >= 90
    assert counts.max() < 30


def test_the_race_is_weighted_drawing_without_replacement() -> None:
    """Against numpy's own weighted choice, class by class, to within the noise of 4,000 draws."""
    left, mix, size = np.array([3, 5, 4, 6]), np.array([0.1, 0.6, 0.3, 0.0]), 5
    label_of = np.repeat(np.arange(4), left)
    weight = mix[label_of] / mix[label_of].sum()
    rng = np.random.default_rng(0)
    ours = np.mean([_race(mix, left, size, rng) for _ in range(4000)], axis=0)
    theirs = np.mean(
        [
            np.bincount(label_of[rng.choice(len(label_of), size, False, weight)], minlength=4)
            for _ in range(4000)
        ],
        axis=0,
    )
    assert ours == pytest.approx(theirs, abs=0.06)
    assert ours[3] == 0


def test_a_balanced_client_whose_classes_have_run_out_is_filled_up() -> None:
    """With alpha this small each client wants one class only, and some classes are wanted twice."""
    for part in _balanced(SplitRequest(LABELS[:200], 4, 1e-3, 2, 1, np.random.default_rng(0))):
        assert len(part) == 50


def test_impossible_splits_are_refused_in_one_line() -> None:
    with pytest.raises(PartitionError, match="more than the 1000 training samples"):
        split(LABELS, 1001, "iid", 1.0, 0, min_size=1)
    with pytest.raises(PartitionError, match="comes with its split"):
        split(LABELS, 10, "given", 1.0, 0, min_size=1)
    with pytest.raises(PartitionError, match=r"data\.min_size is 10"):
        split(LABELS, 500, "dirichlet-balanced", 1.0, 0, min_size=10)
    with pytest.raises(PartitionError, match="more than the 1000 training samples"):
        split(LABELS, 600, "shards", 1.0, 0, min_size=1)
    for clients, per_client in ((3, 2), (20, 11)):
        with pytest.raises(PartitionError, match=r"another data\.per_client"):
            split(LABELS, clients, "pathological", 1.0, 0, min_size=1, per_client=per_client)
    with pytest.raises(PartitionError, match=r"larger data\.alpha"):
        split(LABELS, 50, "dirichlet-uncapped", 0.01, 0, min_size=10)


def test_a_saved_split_holds_its_hash_and_counts(tmp_path: Path) -> None:
    made = split(LABELS, 7, "dirichlet-capped", 0.5, 0, min_size=5)
    made.save(tmp_path / "p.npz", made.counts(LABELS, 10), [f"class {i}" for i in range(10)])
    with np.load(tmp_path / "p.npz", allow_pickle=False) as stored:
        read = Partition(stored["offsets"], stored["indices"])
        assert read.sha256 == made.sha256 == str(stored["sha256"])
        for client, (start, end) in enumerate(pairwise(stored["offsets"])):
            counted = np.bincount(LABELS[stored["indices"][start:end]], minlength=10)
            assert (stored["counts"][client] == counted).all()
