import hashlib

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dcfl.tensors import RunningMean, add, cast_like, load, sha256, snapshot, split, subtract
from dcfl.testing.toys import toy_model


def test_sha256_is_over_sorted_names_and_bytes() -> None:
    tensors = {"b": torch.tensor([1.0, 2.0]), "a": torch.tensor(3)}
    expected = hashlib.sha256(
        b"a" + (3).to_bytes(8, "little") + b"b" + torch.tensor([1.0, 2.0]).numpy().tobytes()
    )
    assert sha256(tensors) == expected.hexdigest()
    assert sha256(dict(reversed(tensors.items()))) == expected.hexdigest()


def test_sha256_sees_values_not_layout() -> None:
    w = torch.randn(2, 3, 4, 4)
    assert sha256({"w": w}) == sha256({"w": w.to(memory_format=torch.channels_last)})
    assert sha256({"w": w}) != sha256({"w": w.nextafter(w + 1)})


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0.1, 100)), min_size=1, max_size=8))
def test_the_running_mean_is_the_weighted_mean(pairs: list[tuple[float, float]]) -> None:
    fold = RunningMean()
    for value, weight in pairs:
        fold.add({"w": torch.tensor([value])}, weight)
    values, weights = (
        torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True)
    )
    expected = (values.float().double() * weights).sum() / weights.sum()
    torch.testing.assert_close(fold.mean()["w"], expected.reshape(1))


def test_the_running_mean_does_not_keep_what_it_was_given() -> None:
    given = {"w": torch.ones(2), "n": torch.tensor(1)}
    fold = RunningMean()
    fold.add(given, 1.0)
    given["w"].zero_(), given["n"].zero_()
    assert fold.mean()["w"].tolist() == [1.0, 1.0]
    assert fold.mean()["n"].item() == 1


def test_small_arithmetic() -> None:
    a, b = (
        {"x": torch.tensor([3.0]), "y": torch.tensor([1.0])},
        {"x": torch.tensor([1.0]), "y": torch.tensor([5.0])},
    )
    assert add(a, b)["x"].item() == 4
    assert subtract(a, b)["y"].item() == -4
    chosen, others = split(a, {"y"})
    assert (list(chosen), list(others)) == (["y"], ["x"])
    assert cast_like({"x": torch.tensor([1.5]).double()}, a)["x"].dtype == torch.float32


def test_a_snapshot_is_not_moved_by_training() -> None:
    model = toy_model()
    kept = snapshot(model)
    before = sha256(kept)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert sha256(kept) == before


class Counting(nn.Module):
    """With a state that is no tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.steps = nn.Linear(2, 2), 0

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor(self.steps)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.steps = int(state)


def test_loading_restores_whatever_a_module_keeps() -> None:
    one, other = Counting(), Counting()
    one.steps = 7
    load(other, snapshot(one))
    assert other.steps == 7
    assert sha256(one.layer.state_dict()) == sha256(other.layer.state_dict())


def test_loading_copies_and_keeps_the_parameters() -> None:
    """Also where two layers share one."""
    one, other = (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(2))
    for model in (one, other):
        model.append(model[0])
    live = list(other.parameters())
    load(other, snapshot(one))
    assert sha256(one.state_dict()) == sha256(other.state_dict())
    assert all(a is b for a, b in zip(live, other.parameters(), strict=True))
    assert not any(a is b for a, b in zip(one.parameters(), other.parameters(), strict=True))
