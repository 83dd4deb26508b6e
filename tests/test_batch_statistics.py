"""A model that normalises by the batch in evaluation too is judged on the same batches, however the
images are stored, whoever scores them and whatever suits the device."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dcfl
from dcfl import evaluation
from dcfl.analysis.similarity import embed
from dcfl.client import Client
from dcfl.data import ClientData, Dataset, DataSettings, Images, client_data, load_dataset
from dcfl.data.client_data import clean_batches
from dcfl.evaluation import Evaluation, score_model, scored_parts
from dcfl.local_training import LocalTraining
from dcfl.methods.dcfl import DCFLPrototypeWise
from dcfl.models import FeatureModel, ModelSettings, build_model
from dcfl.testing.toys import toy_images
from dcfl.trained.evaluate import evaluation_of
from tests import toys

Resort = Callable[[Images], Images]


def by_class(images: Images) -> Images:
    return images[images.labels.sort(stable=True).indices]


def shuffled(images: Images) -> Images:
    return images[torch.randperm(len(images), generator=torch.Generator().manual_seed(5))]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset(DataSettings())


@pytest.fixture(scope="module")
def trained(digits: Dataset) -> FeatureModel:
    """A CNN without running statistics, after two epochs of all digits."""
    model = build_model(ModelSettings("cnn", norm="batch-nostats"), 1, 8, 10, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = ClientData(digits.train, 10, digits.preparation)
    for batch in data.training_batches(2, 64, 0, 1, 0, second_view=False):
        optimizer.zero_grad()
        F.cross_entropy(model(batch.images).logits, batch.labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def said(found: Evaluation) -> tuple[float, float, list[float]]:
    return found.accuracy, found.loss, found.by_class.tolist()


@pytest.mark.parametrize("resort", [by_class, shuffled])
def test_accuracy_does_not_depend_on_how_images_are_stored(
    trained: FeatureModel, digits: Dataset, resort: Resort
) -> None:
    stored = said(score_model(trained, digits))
    assert stored[0] > 80  # a model that knows nothing would be judged alike in any order
    assert said(score_model(trained, replace(digits, test=resort(digits.test)))) == stored


def test_a_batch_of_one_class_is_what_spoils_it(trained: FeatureModel, digits: Dataset) -> None:
    """So that the tests above cannot pass for want of a difference."""
    right = 0
    for label in range(10):
        own = digits.test[digits.test.labels == label]
        with torch.no_grad():
            logits = trained(digits.preparation.clean(own.pixels)).logits
        right += int((logits.argmax(dim=1) == own.labels).sum())
    assert 100 * right / len(digits.test) < score_model(trained, digits).accuracy - 30


@pytest.mark.parametrize("resort", [by_class, shuffled])
@pytest.mark.parametrize("source", ["trained", "received"])
def test_prototypes_do_not_either(
    trained: FeatureModel, digits: Dataset, resort: Resort, source: str
) -> None:
    method = DCFLPrototypeWise(prototype_model=source)  # type: ignore[arg-type]

    def prototypes(images: Images) -> Tensor:
        data = ClientData(images, 10, digits.preparation)
        received = dict(trained.state_dict())
        upload = method.upload(Client(0, 1, trained, received, {}, {}, data, LocalTraining()))
        return upload["sums"] / upload["counts"][:, None]

    some = digits.train[:450]
    torch.testing.assert_close(prototypes(resort(some)), prototypes(some))


@pytest.mark.parametrize("resort", [by_class, shuffled])
def test_nor_do_embeddings_and_each_stays_with_its_image(
    trained: FeatureModel, digits: Dataset, resort: Resort
) -> None:
    rows = Images(digits.test.pixels, torch.arange(len(digits.test)))  # labels that name the image
    before, _ = embed(trained, rows, digits.preparation)
    moved = resort(replace(rows, labels=digits.test.labels))
    places = [
        int((rows.pixels == image).all(dim=(1, 2, 3)).nonzero()[0, 0]) for image in moved.pixels
    ]
    after, _ = embed(trained, moved, digits.preparation)
    torch.testing.assert_close(after, before[places])


def test_the_batch_that_suits_the_device_plays_no_part(
    trained: FeatureModel, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = said(score_model(trained, digits))
    monkeypatch.setattr(client_data, "efficient_batch", lambda images: 1000)
    assert said(score_model(trained, digits)) == expected


@pytest.mark.parametrize("part", [100, 130, 1000])
def test_nor_do_the_parts_that_workers_score(
    trained: FeatureModel, digits: Dataset, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = said(score_model(trained, digits))
    monkeypatch.setattr(evaluation, "PART", part)
    backwards = [
        evaluation.score(trained, digits, *each) for each in reversed(scored_parts(digits))
    ]
    assert said(evaluation.evaluation(backwards[::-1], digits)) == expected


@settings(max_examples=40, deadline=None)
@given(count=st.integers(0, 720), seed=st.integers(0, 2**31))
def test_batches_are_even_and_hold_every_image_once(count: int, seed: int) -> None:
    model = nn.BatchNorm2d(1, track_running_stats=False)
    images = toy_images([row % 4 for row in range(count)], seed=seed)
    preparation = toys.dataset().preparation
    sizes = [len(batch.labels) for batch in clean_batches(images, preparation, model)]
    assert sum(sizes) == count
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert min(sizes, default=100) >= min(count, 100)
    assert images.mixed_order.sort().values.tolist() == list(range(count))


def test_equal_images_of_two_classes_are_told_apart_by_their_label() -> None:
    """Which of them falls into which batch must not depend on which came first."""
    model = nn.BatchNorm2d(1, track_running_stats=False)
    pixels = torch.zeros(220, 8, 8, 1, dtype=torch.uint8)
    images = Images(pixels, torch.arange(220) % 2)
    preparation = toys.dataset().preparation

    def labels(images: Images) -> list[list[int]]:
        return [batch.labels.tolist() for batch in clean_batches(images, preparation, model)]

    assert labels(images) == labels(by_class(images)) == labels(shuffled(images))


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_other_models_are_judged_in_stored_order(norm: str) -> None:
    model = build_model(ModelSettings("cnn", norm=norm), 1, 8, 4, seed=0)  # type: ignore[arg-type]
    toy = toys.dataset(test=205)
    batches = list(clean_batches(toy.test, toy.preparation, model))
    assert [len(batch.labels) for batch in batches] == [100, 100, 5]
    assert torch.equal(torch.cat([batch.labels for batch in batches]), toy.test.labels)


def test_clients_are_scored_beside_each_other(tmp_path: Path) -> None:
    """Each has two classes: alone, its batches would be normalised by those."""
    digits = load_dataset(DataSettings()).train
    sites = [f"site{int(label) // 2}" for label in digits.labels]
    data = dcfl.Dataset.of(digits.pixels, digits.labels, sites=sites, test=0.3)
    model = {"norm": "batch-nostats", "width": 8}
    run = dcfl.run(dataset=data, model=model, federation={"rounds": 4}, out=tmp_path / "run")
    record = evaluation_of(run.folder, clients=True)
    together = sum(one.accuracy * one.images for one in record.clients) / len(data.test)
    assert together == pytest.approx(record.scores.accuracy, abs=1e-9)
    alone = [
        dcfl.evaluate(run.folder, replace(data, test=data.test.of(site))).accuracy
        for site in range(5)
    ]
    assert abs(sum(alone) / 5 - together) > 1
