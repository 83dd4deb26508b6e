"""FedPAC against its authors' code."""

from dataclasses import replace

import pytest
import torch

from benchmarks.oracles.problem import (
    CLASSES,
    LABELS,
    TRAINING,
    Tiny,
    in_the_middle,
    numbers,
    our_rounds,
)
from dcfl.errors import ConfigError, ProtocolError
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods.personal.fedpac import FedPAC, mixes, smallest
from dcfl.models.parts import personal_and_rest
from dcfl.server.server import ServerSettings
from tests.methods.zoo.oracle import SINGLE, error, oracle

THEIRS = oracle("fedpac")
LIKE_THEIRS = replace(
    TRAINING,
    lr=THEIRS["lr"],
    epochs=THEIRS["epochs"],
    momentum=THEIRS["momentum"],
    weight_decay=THEIRS["weight_decay"],
)


class Nameless(Tiny):
    def __init__(self) -> None:
        super().__init__()
        self.last = self.classifier
        del self.classifier


@pytest.mark.parametrize("case", range(len(THEIRS["mus"])))
def test_features_prototypes_and_classifiers_are_the_authors_after_each_round(case: int) -> None:
    theirs, memories, shared = THEIRS["runs"][case], dict[int, Tensors](), list[Tensors]()
    method, weighted = FedPAC(mu=THEIRS["mus"][case]), ServerSettings(aggregation="samples")
    ours = our_rounds(
        method, THEIRS["cohorts"], weighted, LIKE_THEIRS, memories=memories, shared=shared
    )
    for weights, told, others in zip(ours, shared, theirs["rounds"], strict=True):
        features = {name: tensor.flatten().tolist() for name, tensor in weights.items()}
        assert error({n: features[n] for n in others["features"]}, others["features"]) <= SINGLE
        found = {str(c): vector.tolist() for c, vector in enumerate(told["prototypes"])}
        assert error(found, others["prototypes"]) <= SINGLE  # prototypes are sent in float32
        for client, classifier in enumerate(others["classifiers"]):
            mine = method.shared_for(told, client)
            assert mine.keys() == {"prototypes", "known", *classifier}
            assert error(numbers({name: mine[name] for name in classifier}), classifier) <= SINGLE
    for client, others in enumerate(theirs["own"]):
        own = numbers(personal_and_rest(memories[client])[0])
        assert error(own, others) <= SINGLE
        assert error(numbers(Tiny().state_dict()), others) > 0.05
    shares = [share for mixes in theirs["mixes"] for mix in mixes for share in mix]
    assert sum(0.05 < share < 0.95 for share in shares) > len(shares) / 4  # they do mix


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_shares_are_the_best_there_are(count: int) -> None:
    """No share can be moved to another client for something smaller: also where some are 0."""
    drawn = torch.Generator().manual_seed(count)
    zeros = 0
    for size in (1e-6, 1.0, 1e6):
        root = torch.randn(count, count + 2, generator=drawn, dtype=torch.float64)
        matrix = size * (root @ root.T)
        shares = smallest(matrix)
        assert float(shares.sum()) == pytest.approx(1.0)
        slopes, value = matrix @ shares, shares @ matrix @ shares
        assert float(slopes.min()) == pytest.approx(float(value), rel=1e-6)
        zeros += int((shares == 0).sum())
        assert float(shares.min()) >= 0
    assert count < 5 or zeros > 0


def test_clients_with_the_same_features_share_a_classifier() -> None:
    means = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 9.0]], dtype=torch.float64)
    equal = mixes(means, torch.full((3,), 0.01, dtype=torch.float64))
    expected = torch.tensor([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]], dtype=torch.float64)
    torch.testing.assert_close(equal, expected, atol=2e-3, rtol=0)
    assert equal[0, 2] == 0  # a share that is next to nothing is none
    # Single images alone have no variance, and nothing speaks for one of the clients.
    assert mixes(means[:2], torch.zeros(2, dtype=torch.float64)).isfinite().all()


def test_what_is_withheld_is_withheld_twice() -> None:
    method = FedPAC(min_class_count=3)
    client = in_the_middle(0)
    method.start(client)
    before = client.tally["means"].clone()
    sent = method.upload(client)
    few = torch.tensor([LABELS[0].count(c) < 3 for c in range(CLASSES)])
    assert few.tolist() == [False, True, True, True]
    assert before[few].any()
    assert not sent["means"][few].any()
    assert sent["means"][~few].equal(before[~few])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"more than method\.classifier_epochs"):
        our_rounds(FedPAC(classifier_epochs=TRAINING.epochs), [[0]])
    with pytest.raises(ConfigError, match="needs a trained layer `classifier`"):
        FedPAC().start(replace(in_the_middle(), model=Nameless()))
    sent = {"sums": torch.zeros(4, 5), "counts": torch.zeros(4, dtype=torch.int64)}
    told = {**sent, "means": torch.zeros(4, 5), "variance": torch.tensor(-1.0)}
    with pytest.raises(ProtocolError, match="variance"):
        FedPAC().check_upload(ClientUpdate(0, {}, told, 1, 1, {}), TRAINING)
    with pytest.raises(Exception, match="needs the mean of all replies"):
        ServerSettings(aggregation="median").check_method(FedPAC())
