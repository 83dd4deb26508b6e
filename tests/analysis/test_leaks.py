"""Attacks on models of which it is known what they give away."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from dcfl.analysis.leaks import (
    PrototypeLeak,
    above_shadows,
    confidence,
    gradient,
    halves,
    invert,
    nearest,
    psnr,
    shadow_training,
    threshold_attack,
    told_by,
)
from dcfl.analysis.leaks_page import picture_url
from dcfl.methods import METHODS
from dcfl.models import Output
from dcfl.runs.folder import RecordedRun
from dcfl.testing.toys import toy_client, toy_model, visit
from dcfl.trained.subject import open_subject
from tests.analysis.trained import train
from tests.command_line import Call


class MLP(nn.Module):
    def __init__(self, pixels: int = 36) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(pixels, 32), nn.Linear(32, 4)

    def forward(self, images: Tensor) -> Output:
        hidden = torch.sigmoid(self.first(images.flatten(1)))
        return Output(self.last(hidden), hidden, (hidden,))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return train(tmp_path_factory.mktemp("leaks") / "run", **{"method.name": "fedavg"})


def test_a_gradient_gives_back_the_image_that_its_first_layer_has_in_closed_form() -> None:
    """Of a layer with a bias, dL/dW = dL/db x': any row, divided, is the image."""
    model, image, label = MLP(), torch.rand(1, 1, 6, 6), torch.tensor([2])
    seen = gradient(model, image, label)
    weight, bias = seen[0], seen[1]
    row = int(bias.abs().argmax())
    closed = (weight[row] / bias[row]).view_as(image)
    assert torch.allclose(closed, image, atol=1e-4)
    bounds = torch.zeros_like(image), torch.ones_like(image)
    found = invert(model, seen, label, bounds, 150, torch.Generator().manual_seed(0))
    assert psnr(found.numpy(), closed.numpy()) > 25
    # What is found depends on the gradient: from that of another image it is another one.
    other = gradient(model, torch.rand(1, 1, 6, 6), label)
    wrong = invert(model, other, label, bounds, 150, torch.Generator().manual_seed(0))
    assert psnr(wrong.numpy(), closed.numpy()) < 15


def test_the_rates_are_those_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.integers(0, 6, 50).astype(float), rng.integers(2, 9, 200).astype(float)
    pairs = [(m < o) + 0.5 * (m == o) for m in members for o in others]
    found = threshold_attack(members, others)
    assert found.auc == pytest.approx(np.mean(pairs))
    assert found.found == np.mean(members < np.sort(others)[2])  # two of 200 may be below


def drawn_images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(300, 1, 6, 6, generator=generator), torch.arange(300) % 4


def trained_on(images: Tensor, labels: Tensor) -> MLP:
    model = MLP()
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(400):
        adam.zero_grad()
        F.cross_entropy(model(images).logits, labels).backward()
        adam.step()
    return model


def test_an_overfitted_model_knows_its_images_and_no_others() -> None:
    """Labels are drawn, so that there is nothing to learn but the images."""
    images, labels = drawn_images()
    model = trained_on(images[:100], labels[:100])
    with torch.no_grad():
        logits = model(images).logits
    losses = F.cross_entropy(logits, labels, reduction="none").double().numpy()
    learnt = threshold_attack(losses[:100], losses[100:])
    assert learnt.auc > 0.85  # one in four of the others is right by chance, and surely so
    assert abs(threshold_attack(losses[100:200], losses[200:]).auc - 0.5) < 0.1


def test_lira_ranks_by_what_shadows_without_the_image_say() -> None:
    inside = halves(5, 40, seed=0)
    assert (inside.sum(dim=0) == 2).all()
    assert len({tuple(row.tolist()) for row in inside}) == 5
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(6, 40, 3, generator=generator).double(), torch.arange(40) % 3
    phi = []
    for one in logits:
        p = one.softmax(dim=1)[torch.arange(40), labels]
        phi.append((p / (1 - p)).log())
    sure = torch.stack([confidence(one, labels) for one in logits])
    assert torch.allclose(sure, torch.stack(phi))
    ranks = above_shadows(sure[0], sure[1:], ~inside)
    for image in range(40):
        out = [float(phi[1 + shadow][image]) for shadow in range(5) if not inside[shadow, image]]
        assert float(ranks[image]) == pytest.approx(float(phi[0][image]) - sum(out) / 3)
    sure = confidence(torch.tensor([[60.0, 0.0, 0.0]]).double(), torch.tensor([0]))
    assert float(sure[0]) == pytest.approx(60 - np.log(2))  # where 1 - p is no longer seen


def test_lira_finds_images_that_are_hard_by_nature_and_takes_no_other_for_one() -> None:
    """Half of the images show their label, so that a low loss tells little of them."""
    images, labels = drawn_images()
    easy = torch.arange(300) % 8 < 4
    images[easy, 0, 0, :4] += 3 * F.one_hot(labels[easy], 4)
    inside = halves(4, 300, seed=0)
    members = torch.arange(300) < 100
    models = [trained_on(images[own], labels[own]) for own in (members, *(inside & members))]
    with torch.no_grad():
        sure = torch.stack([confidence(one(images).logits.double(), labels) for one in models])
    ranks = -above_shadows(sure[0], sure[1:], ~inside).numpy()
    lira = threshold_attack(ranks[:100], ranks[100:]).auc
    assert lira > threshold_attack(-sure[0, :100].numpy(), -sure[0, 100:].numpy()).auc + 0.1
    assert abs(threshold_attack(ranks[100:200], ranks[200:]).auc - 0.5) < 0.1


def test_shadows_are_trained_as_long_as_the_run(
    run: RecordedRun, cli: Call, tmp_path: Path
) -> None:
    code, out, _ = cli(
        "attack", run.folder, "--steps", 1, "--shadows", 2, "--json", "--out", tmp_path
    )
    by_loss, lira = json.loads(out)["membership"]
    assert (code, lira["attack"], lira["shadows"]) == (0, "LiRA, offline", 2)
    assert lira["members"] == by_loss["members"]
    assert abs(lira["auc"] - 0.5) < 0.1  # nothing is learnt by heart in two rounds
    assert "2 shadow models" in (tmp_path / "attack.html").read_text()
    code, _, said = cli("attack", run.folder, "--shadows", 1)
    assert (code, said.count("\n")) == (2, 1)
    assert "use at least 2" in said
    training = shadow_training(open_subject(run))
    assert (training.epochs, training.lr_in(1, 1)) == (1, pytest.approx(0.01 * 0.998**2))


def test_a_picture_is_looked_for_among_all_of_its_class() -> None:
    originals = np.random.default_rng(0).random((3, 2, 2, 1))
    shuffled = originals[[2, 1, 0]]
    found = nearest(shuffled, np.array([4, 4, 4]), originals)
    assert np.array_equal(found, originals)
    found = nearest(shuffled, np.array([4, 5, 4]), originals[:1])
    assert np.array_equal(found, originals[:1])
    found = nearest(shuffled, np.array([4, 5, 5]), originals[:1])  # the others are another class
    assert np.array_equal(found, originals[2:])


@pytest.mark.parametrize("name", ["fedavg", "dcfl-pw", "fedproc", "fedproto", "fedpcl"])
def test_what_a_method_sums_is_what_it_uploads(name: str) -> None:
    changes = {} if name == "fedavg" else {"prototype_model": "trained"}
    method, data, model = METHODS[name](**changes), toy_client((0, 0, 0, 2)), toy_model("group")
    upload = visit(method, data, model=model).update.upload
    with torch.no_grad():  # the visit has trained it
        summed = method.summed(model.eval()(data.preparation.clean(data.images.pixels)))
    if name == "fedavg":
        assert summed is None
        return
    assert summed is not None
    for label in range(data.classes):
        own = summed[data.images.labels == label].sum(dim=0)
        assert torch.allclose(upload["sums"][label], own, atol=1e-5)


def test_prototypes_tell_classes_exactly_and_single_images_by_themselves() -> None:
    vectors = torch.randn(7, 64, generator=torch.Generator().manual_seed(0))
    labels, owned = torch.tensor([0, 0, 1, 0, 2, 2, 2]), [torch.arange(3), torch.arange(3, 7)]

    def told(least: int, noise: float) -> PrototypeLeak:
        return told_by(vectors, labels, 3, owned, least, noise, seed=0)

    bare = told(1, 0.0)  # image 2 is the only one of class 1, image 3 of class 0 at its client
    assert (bare.presence, bare.singles, bare.found) == (1.0, 2, 1.0)
    assert bare.cosine == pytest.approx(1)
    # Of 4 classes that are there, 2 are withheld: they tie with the 2 that are not.
    assert told(2, 0.0) == PrototypeLeak(2, 0.0, 0.75, 0, None, None)
    assert told(4, 0.0).presence == 0.5
    noisy = told(1, 1.0)
    assert noisy.cosine is not None
    assert abs(noisy.cosine) < 0.5


def test_the_verb_says_what_prototypes_tell(cli: Call, tmp_path: Path) -> None:
    run = train(tmp_path / "run", **{"method.name": "dcfl-pw", "federation.rounds": 1})
    code, out, _ = cli("attack", run.folder, "--steps", 1, "--json")
    first, second, *_ = json.loads(out)["prototypes"]
    assert (code, first["presence"], first["found"]) == (0, 1.0, 1.0)
    assert first["singles"] > 5
    assert second["singles"] == 0
    assert "What prototypes tell" in (run.folder / "attack" / "attack.html").read_text()


def test_the_verb_writes_a_page_with_pictures(run: RecordedRun, cli: Call, tmp_path: Path) -> None:
    code, out, _ = cli("attack", run.folder, "--steps", 30, "--out", tmp_path / "page", "--json")
    said = json.loads(out)
    assert code == 0
    page = Path(said["page"]).read_text()
    assert page.count("data:image/png") == 8  # the original, and seven views
    assert "Who was in the training set" in page
    views = {
        (one["protection"], one["reader"], one["noise"]): one["psnr"][0]
        for one in said["inversion"]
    }
    bare, clipped = views["no protection", "the server", 0.0], views["clipping", "the server", 0.0]
    assert bare > views["noise at each client", "the server", 1.0] + 5
    assert clipped > bare - 5  # the direction stays
    assert (
        views["noise at the server", "the server", 0.0] == clipped
    )  # which it sees before its noise
    assert bare > views["noise at the server", "whoever gets the models", 1.0] + 5
    shared = views["noise in shares", "the server", 1.0]
    assert shared == views["noise at the server", "whoever gets the models", 1.0]
    assert bare > views["secure aggregation", "the server", 0.0]
    assert [one["attack"] for one in said["membership"]] == ["loss threshold"]
    assert said["membership"][0]["members"] == 1442
    assert json.loads((tmp_path / "page" / "attack.json").read_text())["client"] == 0
    code, out, _ = cli("attack", run.folder, "--steps", 1)
    assert "AUC" in out
    assert (run.folder / "attack" / "attack.html").is_file()


def test_a_client_or_images_that_are_not_there_get_one_line(run: RecordedRun, cli: Call) -> None:
    code, _, said = cli("attack", run.folder, "--client", 20)
    assert (code, said.count("\n")) == (2, 1)
    assert "no client 20 with 1 image: it has 20 clients, counted from 0" in said


def test_a_picture_on_the_page_has_the_pixels() -> None:
    pictures = np.random.default_rng(0).random((2, 64, 64, 3))
    data = base64.b64decode(picture_url(pictures).partition(",")[2])
    strip = np.asarray(Image.open(io.BytesIO(data)))
    assert strip.shape == (128, 2 * 2 * 65, 3)
    assert np.array_equal(strip[::2, 0:128:2], (pictures[0] * 255).round())
    assert np.array_equal(strip[::2, 130:258:2], (pictures[1] * 255).round())
