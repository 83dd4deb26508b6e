"""q-FedAvg against its authors' code, and what it is for."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from benchmarks.oracles.problem import Tiny, our_rounds, tensors_of
from dcfl.errors import ProtocolError
from dcfl.methods.zoo.q_fedavg import QFedAvg
from dcfl.testing.toys import TRAINING, toy_client, visit
from tests.methods.zoo.oracle import oracle, require_rounds

THEIRS = oracle("q-fedavg")


@pytest.mark.parametrize("case", range(len(THEIRS["qs"])))
def test_four_rounds_with_partial_participation_end_where_the_authors_do(case: int) -> None:
    ours = our_rounds(QFedAvg(q=THEIRS["qs"][case]), THEIRS["cohorts"])
    require_rounds(ours, THEIRS["runs"][case])


def test_a_larger_q_makes_losses_more_equal() -> None:
    def spread(q: float) -> float:
        model = Tiny()
        model.load_state_dict(our_rounds(QFedAvg(q=q), [[0, 1, 2, 3]] * 40)[-1])
        losses = [F.cross_entropy(model(x).logits, y).item() for x, y in map(tensors_of, range(4))]
        return max(losses) - min(losses)

    assert spread(5.0) < 0.8 * spread(0.0)


def test_the_loss_is_of_the_received_model_in_evaluation_mode() -> None:
    """Its running statistics move with training alone, and no augmentation is drawn for it."""
    first, again = (visit(QFedAvg(), toy_client([0, 1, 2] * 4)).update for _ in range(2))
    assert torch.equal(first.upload["loss"], again.upload["loss"])
    assert int(first.weights["norms.0.num_batches_tracked"]) == first.num_steps


def test_a_negative_loss_is_refused() -> None:
    update = visit(QFedAvg(), toy_client([0, 1])).update
    QFedAvg().check_upload(update, TRAINING)
    forged = replace(update, upload={"loss": torch.tensor(-1.0, dtype=torch.float64)})
    with pytest.raises(ProtocolError, match="below 0"):
        QFedAvg().check_upload(forged, TRAINING)
