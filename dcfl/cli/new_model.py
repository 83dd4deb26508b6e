"""`dcfl new model NAME`: a small network that works, and its test, to start from."""

from __future__ import annotations

from pathlib import Path

from dcfl.cli.new_method import module_name, write_new
from dcfl.errors import ConfigError
from dcfl.models.own_models import BUILT_IN

MODEL = '''"""{title}: what it is for, in one sentence."""

from __future__ import annotations

import dcfl
from torch import nn


def {module}(channels: int, size: int, classes: int) -> nn.Module:
    """For square images of `size` pixels. The layers are an example: put yours in their place."""
    network = nn.Sequential(
        nn.Conv2d(channels, 16, kernel_size=3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )
    # What enters layer 8 is the embedding; what leaves 1 and 4 are the stages that FedRCL uses.
    return dcfl.adapt(network, embedding="8", stages=("1", "4"))
'''

TEST = '''"""{title} keeps the contract of a network."""

from pathlib import Path

from dcfl.models import ModelSettings
from dcfl.models.own_models import register_model
from dcfl.testing.contract import check_model
from dcfl.testing.model_properties import Network


def test_it_keeps_its_promises() -> None:
    name = register_model(Path(__file__).with_name("{module}.py"))
    network = Network(ModelSettings(name), channels=3, size=32, classes=10)
    assert [verdict for verdict in check_model(network) if not verdict.holds] == []
'''


def new_model(name: str, folder: Path) -> tuple[Path, Path]:
    """Write NAME.py and test_NAME.py into the folder, overwriting nothing."""
    module = module_name(name)
    if module in BUILT_IN:
        raise ConfigError(f"there is a network {name} already: choose another name")
    return write_new(folder, module, MODEL, TEST, title=module.replace("_", " ").capitalize())
