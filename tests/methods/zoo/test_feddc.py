"""FedDC against its authors' code, and against SCAFFOLD."""

import torch

from benchmarks.oracles.feddc import ALPHA
from benchmarks.oracles.problem import batch_of, in_the_middle, our_rounds, value_and_gradient
from dcfl import tensors as named
from dcfl.methods.scaffold import Scaffold
from dcfl.methods.zoo.drift import FedDC
from dcfl.tensors import snapshot
from dcfl.testing.toys import two_rounds
from tests.methods.zoo.oracle import SINGLE, oracle, require_loss, require_rounds

THEIRS = oracle("feddc")


def test_four_rounds_with_partial_participation_end_where_the_authors_do() -> None:
    ours = our_rounds(FedDC(alpha=ALPHA), THEIRS["cohorts"])
    require_rounds(ours, THEIRS["rounds"], precision=SINGLE)  # they keep weights in float32


def test_value_and_gradient_are_as_in_the_equation() -> None:
    def drawn(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        like = snapshot(in_the_middle().model)
        return {
            n: torch.randn(t.shape, generator=generator, dtype=t.dtype) for n, t in like.items()
        }

    c, c_i, h = drawn(1), drawn(2), drawn(3)
    client = in_the_middle(shared=c, memory=named.together(drift=h, variate=c_i))
    live = dict(client.model.named_parameters())
    ours = value_and_gradient(FedDC(alpha=ALPHA).objective(client)(batch_of(0)), live)
    logits = client.model(batch_of(0).images).logits
    loss = torch.nn.functional.cross_entropy(logits, batch_of(0).labels)
    for name, w in live.items():
        for index in range(w.numel()):
            one = w.flatten()[index]
            far = one - client.received[name].flatten()[index] + h[name].flatten()[index]
            loss = loss + ALPHA / 2 * far**2
            loss = loss + one * (c[name].flatten()[index] - c_i[name].flatten()[index])
    require_loss(ours, value_and_gradient(loss, live))


def test_variates_are_those_of_scaffold_on_the_same_way() -> None:
    """Without the pull a client's first round is SCAFFOLD's, and so is what it sends of it."""
    ours, theirs = two_rounds(FedDC(alpha=1e-30), "batch"), two_rounds(Scaffold(), "batch")
    for own, other in zip(ours.first, theirs.first, strict=True):
        torch.testing.assert_close(own.update.upload, other.update.upload, rtol=0, atol=0)
        variate = named.apart(own.memory, "drift", "variate")[1]
        torch.testing.assert_close(variate, dict(other.memory), rtol=0, atol=0)
