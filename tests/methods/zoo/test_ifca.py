"""IFCA against its authors' code."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from benchmarks.oracles.problem import LABELS, Tiny, numbers, our_rounds
from dcfl.errors import ProtocolError
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods.personal.ifca import IFCA, begun
from dcfl.models.parts import personal_and_rest
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


def test_a_cluster_that_is_not_there_is_refused() -> None:
    update = ClientUpdate(0, {}, {"cluster": torch.tensor(2)}, 1, 1, {})
    with pytest.raises(ProtocolError, match="not there"):
        IFCA(2).check_upload(update, None)  # type: ignore[arg-type]
    IFCA(2).check_upload(replace(update, upload={"cluster": torch.tensor(1)}), None)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="needs the mean of all replies"):
        ServerSettings(aggregation="median").check_method(IFCA())
