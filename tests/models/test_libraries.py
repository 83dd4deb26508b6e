"""timm and torchvision by name: stand-ins that have their interface and layout, and themselves
where they are installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dcfl.errors import ConfigError
from dcfl.models import ModelSettings, build_model, own_models
from dcfl.testing.contract import check_model
from dcfl.testing.model_properties import Network


class ResNet(nn.Module):
    """Children and order as in torchvision's and timm's: conv1, bn1, ..., layer4, fc."""

    def __init__(self, classes: int, channels: int = 3) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.layer4 = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(True))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer4(self.relu(self.bn1(self.conv1(x))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How the libraries were called."""
    seen: list[dict[str, Any]] = []

    def create_model(name: str, **options: Any) -> nn.Module:
        seen.append({"name": name, **options})
        if name == "vit" and options["img_size"] % 16:
            raise AssertionError("Patches\ndo not fit")
        return ResNet(options["num_classes"], options["in_chans"])

    def get_model(name: str, **options: Any) -> nn.Module:
        seen.append({"name": name, **options})
        return ResNet(options["num_classes"])

    def list_models(module: object) -> list[str]:
        """Of one module: all of them would include networks that fetch weights."""
        return ["resnet18"] if module is torchvision.models else ["fcn_resnet50"]

    timm, torchvision = ModuleType("timm"), ModuleType("torchvision")
    timm.create_model, timm.list_models = create_model, lambda: ["resnet18", "vit"]  # type: ignore[attr-defined]
    timm.get_pretrained_cfg = lambda name: SimpleNamespace(fixed_input_size=name == "vit")  # type: ignore[attr-defined]
    torchvision.models = SimpleNamespace(get_model=get_model, list_models=list_models)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    return seen


def test_timm_builds_for_any_number_of_channels(calls: list[dict[str, Any]]) -> None:
    model = build_model(ModelSettings("timm:resnet18.a1_in1k"), 1, 16, 7, seed=0)
    wanted = {"pretrained": False, "num_classes": 7, "in_chans": 1}
    assert calls == [{"name": "resnet18.a1_in1k", **wanted}]
    output = model(torch.zeros(2, 1, 16, 16))
    assert (output.logits.shape, output.embedding.shape) == ((2, 7), (2, 16))
    assert "layer4.0.weight" in model.state_dict()


def test_a_network_for_one_size_is_told_the_size(calls: list[dict[str, Any]]) -> None:
    for name in ("vit", "resnet18"):
        build_model(ModelSettings(f"timm:{name}"), 3, 32, 7, seed=0)
    assert [call.get("img_size") for call in calls] == [32, None]


def test_torchvision_builds_without_weights(calls: list[dict[str, Any]]) -> None:
    build_model(ModelSettings("torchvision:resnet18", head="side8"), 3, 16, 7, seed=0)
    assert calls == [{"name": "resnet18", "weights": None, "num_classes": 7}]


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_their_networks_keep_the_contract(library: str, calls: list[dict[str, Any]]) -> None:
    network = Network(ModelSettings(f"{library}:resnet18"), channels=3, size=16, classes=5)
    assert [verdict for verdict in check_model(network) if not verdict.holds] == []


@pytest.mark.parametrize(
    ("name", "channels", "message"),
    [
        ("torchvision:resnet18", 1, "takes three channels, and the images have 1"),
        ("timm:resnet81", 3, "no such network: did you mean timm:resnet18"),
        ("torchvision:xyz", 3, "no such network"),
        ("timm:vit", 3, "cannot be built: AssertionError: Patches do not fit"),
    ],
)
def test_what_a_library_does_not_offer(
    name: str, channels: int, message: str, calls: list[dict[str, Any]]
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_model(ModelSettings(name), channels, 24, 7, seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["timm:hf-hub:a/b", "timm:", "timm:../x", "os:system", "keras:x"])
def test_other_addresses_are_no_names(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no network"):
        ModelSettings(name)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_library_that_is_not_there(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"needs {library}, .*pip install .*'dcfl\[{library}\]'"):
        build_model(ModelSettings(f"{library}:resnet18"), 3, 16, 7, seed=0)


def test_a_torchvision_that_was_built_for_another_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It describes operators that its library would have brought, as torchvision does."""
    if find_spec("torchvision"):
        pytest.skip("the real one may have declared them")
    (tmp_path / "torchvision.py").write_text(
        "import torch\n"
        "for name in ('nms', 'qnms'):\n"
        "    torch.library.register_fake(f'torchvision::{name}', lambda *given: given[0])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert own_models._import_torchvision().__file__ == str(tmp_path / "torchvision.py")
    del sys.modules["torchvision"]


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("timm:vit_tiny_patch16_224", 192),
        ("timm:resnet18", 512),
        ("torchvision:resnet18", 512),
        ("torchvision:swin_t", 768),
    ],
)
def test_the_libraries_themselves(name: str, width: int) -> None:
    if find_spec(name.partition(":")[0]) is None:
        pytest.skip("not installed")
    model = build_model(ModelSettings(name), 3, 32, 7, seed=0).eval()
    output = model(torch.zeros(2, 3, 32, 32))
    assert (output.logits.shape, output.embedding.shape) == ((2, 7), (2, width))


@pytest.mark.parametrize(
    "error",
    [
        ImportError("undefined symbol: _ZN3c10"),
        OSError("libcudart.so.13: cannot open shared object file"),
        RuntimeError("Couldn't load custom C++ ops"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_torchvision_for_another_torch_is_one_line_with_a_way_out(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "torchvision":
                raise error

    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ConfigError) as caught:
        own_models.library_model("torchvision:resnet18", 3, 32, 2)
    said = str(caught.value)
    assert f"cannot be imported beside torch {torch.__version__} ({error})" in said
    assert f"torch=={torch.__version__}" in said
