"""What `dcfl methods` says a method costs, measured."""

from collections import Counter
from typing import Any

import pytest
import torch

from dcfl.client import Client
from dcfl.messages import num_bytes
from dcfl.methods import METHODS, fedsol
from dcfl.methods.personal import per_fedavg
from dcfl.methods.zoo import fedsam
from dcfl.models import CNN
from dcfl.report.comparison_section import models_of
from dcfl.testing.toys import CLASSES, MIXED, TRAINING, toy_client, toy_model, two_rounds, visit


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often models run forward, gradients backward, and copies of the model are made."""
    counted: Counter[str] = Counter()

    def counting(owner: Any, name: str, what: str) -> None:
        original = getattr(owner, name)

        def counter(*args: Any, **kwargs: Any) -> Any:
            counted[what] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counter)

    counting(CNN, "forward", "forwards")
    counting(torch.Tensor, "backward", "backwards")
    counting(torch.autograd, "grad", "backwards")
    counting(Client, "frozen", "frozen")
    for module in (fedsol, fedsam, per_fedavg):
        counting(module, "perturbed", "perturbed")
    return counted


@pytest.mark.parametrize("name", METHODS)
def test_steps_cost_what_is_said(name: str, calls: Counter[str]) -> None:
    method, cost = METHODS[name](), METHODS[name].cost
    rounds = two_rounds(method, "batch", MIXED)
    calls.clear()
    update, memory = visit(
        method,
        toy_client(MIXED),
        received=rounds.received,
        memory=rounds.second[0].memory,  # FedALA's first mixture takes as long as it takes
    )
    # It tries mixtures on training's batches, the others take all images at once.
    tuned = cost.tuned * (3 if name == "fedala" else 1)
    assert update.num_steps == TRAINING.epochs * 3
    assert calls["forwards"] == cost.forwards * update.num_steps + cost.passes + tuned
    assert calls["backwards"] == cost.backwards * update.num_steps + tuned
    # A perturbed model needs its own weights beside the perturbed ones: one copy, step after step.
    assert calls["frozen"] + bool(calls["perturbed"]) == cost.copies

    model = toy_model()
    sizes = {
        "weights": num_bytes(model.state_dict()),
        "parameters": num_bytes(dict(model.named_parameters())),
        "classes": CLASSES,
        "d": 128,
        "cohort": 1,
    }
    assert num_bytes(update.upload) == eval(cost.up, sizes)
    assert num_bytes(rounds.shared) == eval(cost.down, sizes)
    assert num_bytes(memory) == eval(cost.kept, sizes)
    assert round(num_bytes(memory) / sizes["parameters"]) == cost.models[1]


@pytest.mark.parametrize(
    ("name", "held"),
    [("fedavg", "2"), ("moon", "4 + 1"), ("feddc", "2 + 2"), ("fedper", "2 + part")],
)
def test_the_memory_of_a_client_is_told_in_models(name: str, held: str) -> None:
    assert models_of(METHODS[name]) == held
