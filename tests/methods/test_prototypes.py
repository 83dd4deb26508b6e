"""The life of a prototype: sums and counts up, means down."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Client
from dcfl.errors import ConfigError
from dcfl.methods.dcfl import DCFLPrototypeWise
from dcfl.testing.toys import CLASSES, TRAINING, toy_client, toy_model, visit

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
    embeddings = network(data.preparation.clean(data.images.pixels)).embedding
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


# What a forger can do, and what a client keeps to itself

MEDIAN = DCFLPrototypeWise(prototype_merge="median")


def one_class(*votes: list[float], count: int = 1) -> list[dict[str, Tensor]]:
    """Uploads whose means for the only class are these."""
    return [upload([[count * v for v in vote]], [count]) for vote in votes]


def test_the_median_is_that_of_the_clients_means_whatever_their_counts() -> None:
    votes = one_class([1.0, 5.0], [2.0, 7.0]) + one_class([9.0, 6.0], count=2**30)
    shared = MEDIAN.merge({}, votes, 9)
    assert shared["prototypes"].tolist() == [[2.0, 6.0]]
    assert shared["known"].tolist() == [True]
    even = MEDIAN.merge({}, votes + one_class([4.0, 6.0]), 9)
    assert even["prototypes"].tolist() == [[3.0, 6.0]]


def test_only_clients_that_hold_a_class_vote_on_it() -> None:
    uploads = [upload([[k, k], [0.0, 0.0], [1.0, 0.0]], [1, 0, int(k < 3)]) for k in (1, 2, 3, 4)]
    uploads[2]["sums"][2] = uploads[3]["sums"][2] = 0
    shared = MEDIAN.merge({}, uploads, 9)
    assert shared["known"].tolist() == [True, False, False]  # four, none and two votes
    assert shared["prototypes"].tolist() == [[2.5, 2.5], [0.0, 0.0], [0.0, 0.0]]


def test_the_old_prototype_votes_too() -> None:
    old = {"prototypes": torch.tensor([[3.0, 3.0]]), "known": torch.tensor([True])}
    assert MEDIAN.merge(old, one_class([5.0, 1.0], [9.0, 2.0]), 9)["prototypes"].tolist() == [
        [5.0, 2.0]
    ]
    assert MEDIAN.merge(old, one_class([5.0, 1.0]), 9)["prototypes"].tolist() == [[3.0, 3.0]]
    unknown = {**old, "known": torch.tensor([False])}
    assert MEDIAN.merge(unknown, one_class([5.0, 1.0], [9.0, 2.0]), 9)["known"].tolist() == [False]
    slow = DCFLPrototypeWise(prototype_merge="median", prototype_momentum=0.5)
    assert slow.merge(old, one_class([5.0, 1.0], [9.0, 2.0]), 9)["prototypes"].tolist() == [
        [4.0, 2.5]
    ]


@pytest.mark.parametrize("holders", [1, 2, 5])
@pytest.mark.parametrize("forged", [-1.0, 1e14])
def test_one_forged_prototype_steers_nobody(holders: int, forged: float) -> None:
    """With a known prototype, whoever lies: the new one stays among the honest."""
    old = {"prototypes": torch.ones(1, 2), "known": torch.tensor([True])}
    honest = one_class(*([1.0 + k / 10] * 2 for k in range(holders - 1)))
    liar = [upload([[forged * 2**30] * 2], [2**30])]
    median = MEDIAN.merge(old, honest + liar, 9)["prototypes"]
    assert (median - 1.2).abs().max() <= 0.4
    mean = DCFLPrototypeWise().merge(old, honest + liar, 9)["prototypes"]
    assert (mean - 1.2).abs().max() > 2


def test_rare_classes_are_not_sent() -> None:
    method = DCFLPrototypeWise(min_class_count=2)
    everything, _ = visit(DCFLPrototypeWise(), toy_client(LABELS))
    update, _ = visit(method, toy_client(LABELS))
    assert update.upload["counts"].tolist() == [2, 0, 0, 3]
    assert not update.upload["sums"][1].any()
    for label in (0, 3):
        assert torch.equal(update.upload["sums"][label], everything.upload["sums"][label])
    method.check_upload(update, TRAINING)
    nothing, _ = visit(DCFLPrototypeWise(min_class_count=10), toy_client(LABELS))
    assert not nothing.upload["sums"].any()
    assert method.merge({}, [nothing.upload], 9)["known"].tolist() == [False] * CLASSES


def test_rare_classes_are_counted_by_images_and_not_by_steps() -> None:
    """Running sums meet each image once an epoch."""
    method = DCFLPrototypeWise(prototype_model="running", min_class_count=3)
    update, _ = visit(method, toy_client(LABELS))
    assert TRAINING.epochs > 1
    assert (update.upload["counts"] > 0).tolist() == [False, False, False, True]


def test_a_threshold_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="min_class_count"):
        DCFLPrototypeWise(min_class_count=0)
