"""The life of a prototype: sums and counts up, means down."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.checking import CLASSES, TRAINING, toy_client, toy_model, visit
from dcfl.client import Client
from dcfl.errors import ConfigError
from dcfl.methods.dcfl import DCFLPrototypeWise

LABELS = [0, 0, 1, 3, 3, 3]


def upload(sums: list[list[float]], counts: list[int]) -> dict[str, Tensor]:
    return {"sums": torch.tensor(sums), "counts": torch.tensor(counts)}


A = upload([[2.0, 0.0], [0.0, 0.0], [3.0, 3.0]], [2, 0, 3])
B = upload([[0.0, 4.0], [0.0, 0.0], [0.0, 0.0]], [2, 0, 0])


def test_means_are_weighted_by_counts_and_absent_classes_are_masked() -> None:
    shared = DCFLPrototypeWise().merge({}, [A, B], population=9)
    assert shared["prototypes"].tolist() == [[0.5, 1.0], [0.0, 0.0], [1.0, 1.0]]
    assert shared["known"].tolist() == [True, False, True]


def test_uniform_weights_average_the_clients_means() -> None:
    b = upload([[0.0, 2.0], [0.0, 0.0], [0.0, 0.0]], [1, 0, 0])
    shared = DCFLPrototypeWise(prototype_weights="uniform").merge({}, [A, b], population=9)
    assert shared["prototypes"].tolist() == [[0.5, 1.0], [0.0, 0.0], [1.0, 1.0]]


def test_a_class_not_seen_this_round_keeps_its_prototype() -> None:
    method = DCFLPrototypeWise()
    shared = method.merge(method.merge({}, [A], 9), [B], 9)
    assert shared["prototypes"].tolist() == [[0.0, 2.0], [0.0, 0.0], [1.0, 1.0]]
    assert shared["known"].tolist() == [True, False, True]


def test_momentum_blends_known_classes_and_takes_new_ones_whole() -> None:
    method = DCFLPrototypeWise(prototype_momentum=0.75)
    c = upload([[0.0, 8.0], [5.0, 5.0], [0.0, 0.0]], [2, 1, 0])
    shared = method.merge(method.merge({}, [A], 9), [c], 9)
    assert shared["prototypes"].tolist() == [[0.75, 1.0], [5.0, 5.0], [1.0, 1.0]]


def class_sums(embeddings: Tensor, labels: list[int]) -> Tensor:
    sums = torch.zeros(CLASSES, embeddings.shape[1])
    for embedding, label in zip(embeddings, labels, strict=True):
        sums[label] += embedding
    return sums


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("source", ["trained", "received"])
@torch.no_grad()
def test_sums_are_of_clean_data_in_evaluation_mode(source: str, normalize: bool) -> None:
    method = DCFLPrototypeWise(prototype_model=source, prototype_normalize=normalize)  # type: ignore[arg-type]
    data = toy_client(LABELS)
    model, received = toy_model(seed=3), toy_model(seed=4)
    who = Client(0, 1, model, received.state_dict(), {}, {}, data, TRAINING)
    sent = method.upload(who)
    network = (model if source == "trained" else received).eval()
    embeddings = network(data.preparation.clean(data.own.pixels)).embedding
    if normalize:
        embeddings = F.normalize(embeddings, dim=1)
    torch.testing.assert_close(sent["sums"], class_sums(embeddings, LABELS))
    assert sent["counts"].tolist() == [2, 1, 0, 3]


def test_running_prototypes_count_every_training_step() -> None:
    method = DCFLPrototypeWise(prototype_model="running")
    update, _ = visit(method, toy_client(LABELS))
    counts = update.upload["counts"]
    assert counts.tolist() == [2 * TRAINING.epochs * n // 2 for n in (2, 1, 0, 3)]
    assert (update.upload["sums"].abs().sum(1) > 0).tolist() == [True, True, False, True]


def test_momentum_of_one_would_never_learn() -> None:
    with pytest.raises(ConfigError, match="prototype_momentum"):
        DCFLPrototypeWise(prototype_momentum=1.0)
