"""IFCA against its authors' code."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from benchmarks.oracles.problem import LABELS, Tiny, numbers, our_rounds
from dcfl.errors import ConfigError, ProtocolError
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods import Method
from dcfl.methods.personal.fedproto import FedProto
from dcfl.methods.personal.ifca import IFCA, begun
from dcfl.models.parts import personal_and_rest
from dcfl.server.aggregation import Aggregation
from dcfl.server.optimizers import OPTIMIZERS
from dcfl.server.server import ServerSettings
from dcfl.tensors import apart, snapshot
from tests.methods.zoo.oracle import DOUBLE, error, oracle

THEIRS = oracle("ifca")
NAMES = [str(number) for number in range(THEIRS["clusters"])]


def test_all_clusters_are_the_authors_after_each_round() -> None:
    memories, shared = dict[int, Tensors](), list[Tensors]()
    everybody = [list(range(len(LABELS)))] * len(THEIRS["rounds"])
    our_rounds(IFCA(len(NAMES)), everybody, memories=memories, shared=shared)
    for models, others in zip(shared, THEIRS["rounds"], strict=True):
        for model, other in zip(apart(models, *NAMES), others, strict=True):
            assert error(numbers(model), other) <= DOUBLE
    first, last = snapshot(Tiny()), apart(shared[-1], *NAMES)
    for number in {number for chosen in THEIRS["chosen"] for number in chosen}:
        assert error(numbers(last[number]), numbers(begun(first, number))) > 0.05
    # A client that is alone in its cluster made the cluster's model.
    chosen = THEIRS["chosen"][-1]
    assert len(set(chosen)) == len(NAMES) < len(chosen)
    for client, number in enumerate(chosen):
        own = personal_and_rest(memories[client])[0]
        alone = Counter(chosen)[number] == 1
        assert (error(numbers(own), numbers(last[number])) <= DOUBLE) == alone


@pytest.mark.parametrize("rule", ["uniform", "samples"])
def test_a_cluster_of_everybody_is_the_servers_mean(rule: Aggregation) -> None:
    shared = list[Tensors]()
    everybody = [list(range(len(LABELS)))] * 2
    weights = our_rounds(IFCA(1), everybody, ServerSettings(rule), shared=shared)
    first, second = (numbers(apart(models, "0")[0]) for models in shared)
    assert error(first, numbers(weights[0])) <= DOUBLE
    # Nobody trains from the server's own weights; the clients' models are in its mean all the same.
    assert error(second, numbers(weights[1])) <= DOUBLE
    assert len({len(labels) for labels in LABELS}) > 1


@pytest.mark.parametrize("method", [IFCA(), FedProto()])
def test_an_optimiser_that_moves_what_nobody_begins_with_is_refused(method: Method) -> None:
    with pytest.raises(ConfigError, match='use "fedavg"'):
        ServerSettings(optimizer=OPTIMIZERS["fedadam"]()).check_method(method)


def test_a_cluster_that_is_not_there_is_refused() -> None:
    update = ClientUpdate(0, {}, {"cluster": torch.tensor(2)}, 1, 1, {})
    with pytest.raises(ProtocolError, match="not there"):
        IFCA(2).check_upload(update, None)  # type: ignore[arg-type]
    IFCA(2).check_upload(replace(update, upload={"cluster": torch.tensor(1)}), None)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="needs the mean of all replies"):
        ServerSettings(aggregation="median").check_method(IFCA())
