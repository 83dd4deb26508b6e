"""Networks from users' files: what counts as one, and every mistake in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dcfl.errors import ConfigError
from dcfl.models import ModelSettings, build_model
from dcfl.models.adapted import AdaptedModel
from dcfl.models.own_models import OWN_MODELS, model_in, register_model
from dcfl.system.own_files import run_file
from dcfl.tensors import sha256

FUNCTION = """
from torch import nn

def tiny(channels, size, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, 5), nn.ReLU(),
                         nn.Linear(5, classes))
"""
CLASS = """
import dcfl, torch

class Base(dcfl.FeatureModel):
    pass

class Tiny(Base):
    def __init__(self, channels, size, classes):
        super().__init__()
        self.classifier = torch.nn.Linear(channels * size * size, classes)

    def forward(self, images):
        pixels = images.flatten(1)
        return dcfl.Output(self.classifier(pixels), pixels, (pixels,))
"""
BOTH = CLASS + "\ndef make(channels, size, classes):\n    return Tiny(channels, size, classes)\n"


def written(folder: Path, text: str, name: str = "net.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "name"), [(FUNCTION, "tiny"), (CLASS, "Tiny"), (BOTH, "make")], ids=lambda t: t[-9:]
)
def test_a_function_or_a_class_is_a_network(text: str, name: str, tmp_path: Path) -> None:
    assert register_model(written(tmp_path, text)) == name
    model = build_model(ModelSettings(name), 1, 8, 10, seed=0)
    again = build_model(ModelSettings(name), 1, 8, 10, seed=0)
    other = build_model(ModelSettings(name), 1, 8, 10, seed=1)
    assert sha256(model.state_dict()) == sha256(again.state_dict()) != sha256(other.state_dict())
    assert model(torch.zeros(2, 1, 8, 8)).logits.shape == (2, 10)
    assert isinstance(model, AdaptedModel) == (name == "tiny")


def test_an_edited_file_replaces_the_network_and_keeps_what_was_run(tmp_path: Path) -> None:
    path = written(tmp_path, FUNCTION)
    first = OWN_MODELS[register_model(path)]
    written(tmp_path, FUNCTION.replace("5", "6"))
    second = OWN_MODELS[register_model(path)]
    assert first.file.source == FUNCTION.encode()
    assert first.file.sha256 != second.file.sha256
    assert first.build(1, 8, 10).state_dict()["1.weight"].shape == (5, 64)
    assert second.build(1, 8, 10).state_dict()["1.weight"].shape == (6, 64)


def test_a_file_with_methods_alone_has_no_network(tmp_path: Path) -> None:
    assert (
        model_in(run_file(written(tmp_path, "import dcfl\nclass A(dcfl.Method): pass\n"))) is None
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "defines no network: write a function of"),
        ("import dcfl\nx = dcfl.FeatureModel\n", "defines no network"),
        ("def net(size, channels, classes): pass\n", "defines no network"),
        ("def _net(channels, size, classes): pass\n", "defines no network"),
        (FUNCTION + "\ndef b(channels, size, classes): pass\n", "several networks, tiny, b"),
        ("def cnn(channels, size, classes): pass\n", "the name cnn is taken"),
        ("def é(channels, size, classes): pass\n", "no name for a network"),
        ("raise RuntimeError('two\\nlines')\n", "line 1: RuntimeError: two lines"),
    ],
)
def test_files_without_a_usable_network(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        register_model(written(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert not OWN_MODELS


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 3", r"net\(1, 8, 10\) is no torch.nn.Module but int"),
        ("raise ValueError('a\\nb')", r"net\(1, 8, 10\) raised ValueError: a b"),
        ("return nn.Conv2d(1, 1, 1)", "Conv2d has no linear layer"),
    ],
)
def test_networks_that_cannot_be_built(body: str, message: str, tmp_path: Path) -> None:
    text = f"from torch import nn\ndef net(channels, size, classes):\n    {body}\n"
    name = register_model(written(tmp_path, text))
    with pytest.raises(ConfigError, match=message) as caught:
        build_model(ModelSettings(name), 1, 8, 10, seed=0)
    assert "\n" not in str(caught.value)


def test_a_class_that_wants_other_arguments(tmp_path: Path) -> None:
    name = register_model(written(tmp_path, CLASS.replace("channels, size, classes)", "depth)", 1)))
    with pytest.raises(ConfigError, match=r"Tiny\(1, 8, 10\) raised TypeError"):
        build_model(ModelSettings(name), 1, 8, 10, seed=0)


def test_settings_of_dcfls_own_networks_do_not_apply(tmp_path: Path) -> None:
    tiny, own = (register_model(written(tmp_path, text)) for text in (FUNCTION, CLASS))
    with pytest.raises(ConfigError, match=r"model\.width = 8: tiny has layers of its own"):
        ModelSettings(tiny, width=8)
    with pytest.raises(ConfigError, match=r'model\.norm = "group": tiny says itself'):
        ModelSettings(tiny, norm="group")
    sided = build_model(ModelSettings(tiny, head="side4"), 1, 8, 10, seed=0)
    assert sided(torch.zeros(2, 1, 8, 8)).z().shape == (2, 4)
    with pytest.raises(ConfigError, match=r'model\.head = "side4": Tiny says itself'):
        build_model(ModelSettings(own, head="side4"), 1, 8, 10, seed=0)


def test_a_name_means_nothing_before_its_file_was_given() -> None:
    with pytest.raises(ConfigError, match=r"no network 'tiny'.* --model-file"):
        ModelSettings("tiny")
