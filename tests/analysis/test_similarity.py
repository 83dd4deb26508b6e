"""Against loops over all pairs in float64, transcribed from the definitions."""

import math
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcfl.analysis import similarity
from dcfl.analysis.similarity import (
    BINS,
    FINE,
    inter_class_uniformity,
    measure_similarity,
    overlap,
    percentile,
)
from dcfl.errors import RunFolderError
from dcfl.evaluation import similarity_histogram


def features(
    n: int, d: int, classes: int, seed: int, relu: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, d, generator=generator)
    embeddings = centres[labels] + torch.randn(n, d, generator=generator)
    return embeddings.relu() if relu else embeddings, labels


def cosine(a: list[float], b: list[float]) -> float:
    lengths = math.dist(a, [0.0] * len(a)) * math.dist(b, [0.0] * len(b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / lengths if lengths else 0.0


def unit(a: list[float]) -> list[float]:
    length = math.dist(a, [0.0] * len(a))
    return [x / length for x in a] if length else a


def test_a_model_whose_outputs_are_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its features are: a linear model's are its inputs."""
    subject = SimpleNamespace(
        run=SimpleNamespace(folder="run"),
        model=None,
        dataset=SimpleNamespace(test=None, preparation=None),
    )
    found = torch.ones(2, 3), torch.full((2, 3), torch.nan)
    monkeypatch.setattr(similarity, "embed", lambda *_: found)
    with pytest.raises(RunFolderError, match="not finite"):
        similarity.features_of(subject)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 30),
    d=st.integers(1, 8),
    classes=st.integers(1, 4),
    seed=st.integers(0, 1000),
    relu=st.booleans(),  # which also gives zero vectors
)
def test_numbers_are_those_of_a_loop_over_all_pairs(
    n: int, d: int, classes: int, seed: int, relu: bool
) -> None:
    embeddings, labels = features(n, d, classes, seed, relu)
    found = measure_similarity(embeddings, labels)
    rows = embeddings.double().tolist()
    pairs = list(combinations(range(n), 2))
    gaps: dict[str, list[float]] = {}
    for kind, measured in (("intra", found.intra), ("inter", found.inter)):
        own = [(i, j) for i, j in pairs if bool(labels[i] == labels[j]) == (kind == "intra")]
        gaps[kind] = [math.dist(unit(rows[i]), unit(rows[j])) for i, j in own]
        assert measured.pairs == len(own) == measured.counts.sum()
        assert math.isnan(measured.mean) == (not own)
        if own:
            cosines = [cosine(rows[i], rows[j]) for i, j in own]
            assert measured.mean == pytest.approx(np.mean(cosines), abs=1e-9)
            assert measured.deviation == pytest.approx(np.std(cosines), abs=1e-6)
    if gaps["intra"]:
        expected = np.mean([gap**2 for gap in gaps["intra"]])
        assert found.alignment == pytest.approx(expected, rel=1e-5, abs=1e-9)
    if gaps["inter"]:
        expected = math.log(np.mean([math.exp(-2 * gap**2) for gap in gaps["inter"]]))
        assert found.inter_uniformity == pytest.approx(expected, abs=1e-6)
    else:
        assert math.isnan(found.inter_uniformity)
        assert math.isnan(found.overlap)
    everywhere = [math.exp(-2 * gap**2) for gap in gaps["intra"] + gaps["inter"]]
    assert found.uniformity == pytest.approx(math.log(np.mean(everywhere)), abs=1e-3)


def test_every_pair_of_the_figure_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 images of ten classes, as CIFAR-10's."""
    monkeypatch.setattr(similarity, "MOST_UNIFORM", 500)
    labels = torch.arange(10).repeat_interleave(1000)
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(10_000, 4, generator=generator)
    found = measure_similarity(embeddings, labels)
    assert found.intra.pairs == found.intra.counts.sum() == 4_995_000
    assert found.inter.pairs == found.inter.counts.sum() == 45_000_000
    assert found.intra.density.sum() * 2 / BINS == pytest.approx(1)
    assert found.inter.mean == pytest.approx(0, abs=0.01)
    assert found.overlap > 0.98  # the labels say nothing about these


def test_the_figures_bins_are_those_of_the_histogram() -> None:
    embeddings, labels = features(300, 6, 3, seed=1)
    found = measure_similarity(embeddings, labels)
    for counts, expected in zip(
        (found.intra.counts, found.inter.counts),
        similarity_histogram(embeddings, labels, BINS),
        strict=True,
    ):
        # A cosine on the edge of two bins may be rounded into either.
        assert np.abs(counts - expected.numpy()).sum() <= 4


def test_percentiles_are_within_a_fine_bin_of_the_exact_ones() -> None:
    embeddings, labels = features(200, 5, 3, seed=2)
    normalised = torch.nn.functional.normalize(embeddings.double(), dim=1)
    first, second = np.triu_indices(len(labels), 1)
    same = (labels[first] == labels[second]).numpy()
    cosines = (normalised[first] * normalised[second]).sum(dim=1).numpy()[same]
    exact = np.percentile(cosines, similarity.PERCENTILES, method="inverted_cdf")
    measured = measure_similarity(embeddings, labels).intra.percentiles
    assert np.abs(np.array(measured) - exact).max() <= 1.01 * 2 / FINE


@given(st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(any))
def test_percentiles_of_counts(counts: list[int]) -> None:
    values = [percentile(np.array(counts), share) for share in (0, 5, 50, 95, 100)]
    assert values == sorted(values)
    highest = max(index for index, count in enumerate(counts) if count)
    assert values[-1] == pytest.approx(-1 + (highest + 1) / 2)


def test_overlap_by_hand() -> None:
    assert overlap(np.array([0, 0, 4]), np.array([0, 0, 9])) == 1
    assert overlap(np.array([0, 0, 4]), np.array([3, 1, 0])) == 0
    assert overlap(np.array([0, 2, 2]), np.array([1, 3, 0])) == pytest.approx(0.5)
    assert math.isnan(overlap(np.array([0, 0]), np.array([1, 1])))


def test_blocks_leave_no_pair_out() -> None:
    """More points than a block has."""
    embeddings, labels = features(1203, 3, 4, seed=4)
    normalised = torch.nn.functional.normalize(embeddings.double(), dim=1)
    first, second = np.triu_indices(len(labels), 1)
    squared = (normalised[first] - normalised[second]).square().sum(dim=1)
    different = labels[first] != labels[second]
    expected = torch.exp(-2 * squared[different]).mean().log()
    assert inter_class_uniformity(normalised, labels) == pytest.approx(float(expected), abs=1e-12)


def test_too_many_points_are_drawn_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings, labels = features(60, 5, 3, seed=5)
    whole = measure_similarity(embeddings, labels)
    monkeypatch.setattr(similarity, "MOST_UNIFORM", 40)
    one, again, other = (measure_similarity(embeddings, labels, seed=s) for s in (1, 1, 2))
    assert one.uniformity == again.uniformity != other.uniformity
    assert one.intra.pairs == whole.intra.pairs
    assert one.uniformity == pytest.approx(whole.uniformity, abs=0.3)


def test_classes_that_are_points_have_cosine_one() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    embeddings = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0], [0.0, 1.0]])
    found = measure_similarity(embeddings, labels)
    assert (found.intra.mean, found.intra.deviation, found.alignment) == (1, 0, 0)
    assert (found.inter.mean, found.overlap) == (0, 0)
    assert found.inter_uniformity == pytest.approx(-4)  # orthogonal: squared distance 2
