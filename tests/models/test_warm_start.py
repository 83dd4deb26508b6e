"""Initial weights from a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dcfl.errors import ConfigError
from dcfl.models.warm_start import warm_start, weights_path, weights_sha256
from dcfl.tensors import sha256, snapshot
from dcfl.testing.toys import toy_model


def stored(path: Path, seed: int = 1, **changes: torch.Tensor) -> str:
    tensors = {n: t.contiguous() for n, t in {**snapshot(toy_model(seed=seed)), **changes}.items()}
    save_file({name: tensor for name, tensor in tensors.items() if tensor.numel()}, path)
    return str(path)


def test_all_weights_are_those_of_the_file(tmp_path: Path) -> None:
    model = toy_model(seed=0)
    warm_start(model, stored(tmp_path / "a.safetensors"))
    assert sha256(model.state_dict()) == sha256(toy_model(seed=1).state_dict())


def test_skipped_parts_keep_their_own(tmp_path: Path) -> None:
    """Whatever the file has for them: another number of classes, or nothing."""
    for odd in (torch.zeros(7, 128), torch.empty(0)):
        model = toy_model(seed=0)
        path = stored(tmp_path / "a.safetensors", **{"classifier.weight": odd})
        warm_start(model, path, ["classifier"])
        for name, tensor in model.state_dict().items():
            origin = toy_model(seed=0 if name.startswith("classifier.") else 1)
            assert torch.equal(tensor, origin.state_dict()[name])


def test_half_precision_is_converted(tmp_path: Path) -> None:
    model = toy_model(seed=0)
    half = toy_model(seed=1).state_dict()["classifier.weight"].half()
    warm_start(model, stored(tmp_path / "a.safetensors", **{"classifier.weight": half}))
    assert torch.equal(model.state_dict()["classifier.weight"], half.float())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classifier.weight": torch.zeros(7, 128)}, r"classifier.weight is \[7, 128\] and not"),
        ({"classifier.bias": torch.empty(0)}, "it lacks classifier.bias"),
        ({"side.0.weight": torch.zeros(2)}, "the model has no side.0.weight"),
        ({f"x{n}": torch.zeros(2) for n in range(5)}, "has no x0, x1, x2 and 2 more"),
        ({"classifier.bias": torch.full((4,), torch.nan)}, "classifier.bias is not finite"),
        ({"classifier.bias": torch.zeros(4, dtype=torch.int64)}, "int64 and not torch.float32"),
    ],
)
def test_a_file_of_another_model_is_refused_in_one_line(
    changes: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    model = toy_model(seed=0)
    with pytest.raises(ConfigError, match=message) as error:
        warm_start(model, stored(tmp_path / "a.safetensors", **changes))
    assert "\n" not in str(error.value)
    assert sha256(model.state_dict()) == sha256(toy_model(seed=0).state_dict())


def test_a_part_of_the_file_alone_can_be_skipped(tmp_path: Path) -> None:
    model = toy_model(seed=0)
    path = stored(tmp_path / "a.safetensors", **{"side.0.weight": torch.zeros(3)})
    with pytest.raises(ConfigError, match=r"the model has no side\.0\.weight"):
        warm_start(model, path)
    warm_start(model, path, ["side"])
    assert sha256(model.state_dict()) == sha256(toy_model(seed=1).state_dict())


def test_a_part_to_skip_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='weights_skip: the model has no part "fc"'):
        warm_start(toy_model(), stored(tmp_path / "a.safetensors"), ["fc"])


def test_torchs_own_file_gets_the_line_that_converts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors.torch

    monkeypatch.chdir(tmp_path)
    torch.save(toy_model(seed=1).state_dict(), "mine.pth")
    model = toy_model()
    with pytest.raises(ConfigError, match="not a safetensors file; in Python, ") as caught:
        warm_start(model, "mine.pth")
    line = str(caught.value).split("in Python, ")[1].removesuffix(" makes one of it")
    exec(line, {"torch": torch, "safetensors": safetensors})
    warm_start(model, "mine.safetensors")
    assert sha256(model.state_dict()) == sha256(toy_model(seed=1).state_dict())


def test_what_is_no_file_of_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no weights")
    with pytest.raises(ConfigError, match="not a safetensors file"):
        warm_start(toy_model(), str(tmp_path / "text"))
    with pytest.raises(ConfigError, match="no such file"):
        weights_path(str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="has the run finished"):
        weights_path(str(tmp_path))


def test_a_run_folder_stands_for_its_model(tmp_path: Path) -> None:
    stored(tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    assert weights_path(str(tmp_path)) == tmp_path / "model.safetensors"
    assert weights_sha256(str(tmp_path)) == hashlib.sha256(content).hexdigest()
