"""`dcfl new method NAME`: a small method that works, and its test, to start from."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from dcfl.errors import ConfigError
from dcfl.methods import METHODS

METHOD = '''"""{title}: what it is for, in one sentence.

    L = L_CE + mu * mean_i ||z_i||^2

The term is an example: it keeps the embeddings z small. Put yours in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy

import dcfl
from dcfl.client import Batch, Client
from dcfl.methods import Objective


@dataclass(frozen=True)
class {class_name}(dcfl.Method):
    """Small embeddings."""

    mu: float = 0.01

    name: ClassVar = "{name}"
    equation: ClassVar = "L = L_CE + mu * mean_i ||z_i||^2"
    neutral: ClassVar = {{"mu": 0.0}}  # where it is FedAvg: `dcfl check` looks

    def objective(self, client: Client) -> Objective:
        def loss(batch: Batch) -> Tensor:
            output = client.model(batch.images)
            penalty = output.embedding.square().sum(dim=1).mean()
            return cross_entropy(output.logits, batch.labels) + self.mu * penalty

        return loss
'''

TEST = '''"""{title} keeps the contract of a method."""

from pathlib import Path

import pytest

from dcfl.testing.contract import check_method
from dcfl.methods.loading import load_methods

(METHOD,) = load_methods(Path(__file__).with_name("{module}.py")).values()


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_it_keeps_its_promises(norm: str) -> None:
    assert [verdict for verdict in check_method(METHOD, norm) if not verdict.holds] == []
'''


def new_method(name: str, folder: Path) -> tuple[Path, Path]:
    """Write NAME.py and test_NAME.py into the folder, overwriting nothing."""
    module = module_name(name)
    parts = module.split("_")
    if "-".join(parts) in METHODS:
        raise ConfigError(f"there is a method {name} already: choose another name")
    return write_new(
        folder,
        module,
        METHOD,
        TEST,
        name="-".join(parts),
        title=" ".join(parts).capitalize(),
        class_name="".join(part.capitalize() for part in parts),
    )


def module_name(name: str) -> str:
    """The name of something new as that of a Python module."""
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise ConfigError(f"{name!r} is not a name such as my-method: lower case, digits, hyphens")
    module = name.replace("-", "_")
    if keyword.iskeyword(module):
        raise ConfigError(f"{name} is a word of Python's own: choose another name")
    return module


def write_new(folder: Path, module: str, text: str, test: str, **blanks: str) -> tuple[Path, Path]:
    """Write a module and its test, with the blanks filled in."""
    texts = {folder / f"{module}.py": text, folder / f"test_{module}.py": test}
    for path in texts:
        if path.exists():
            raise ConfigError(f"{path} is there already")
    for path, content in texts.items():
        path.write_text(content.format(module=module, **blanks), encoding="utf-8")
    written, tested = texts
    return written, tested
