"""`dcfl new`: a method or a network that works, with its test, or a config, to start from."""

from __future__ import annotations

import keyword
import re
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_origin, get_type_hints

import dcfl
from dcfl.config import as_tables, describe_type, to_toml
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.methods import METHODS
from dcfl.models.own_models import BUILT_IN
from dcfl.settings import comments
from dcfl.system.storage import write_whole
from dcfl.system.wording import nearest

PACKAGE = Path(dcfl.__file__).parent
# A wheel has a copy of the clone's folder inside the package.
PLACES = (PACKAGE / "configs", PACKAGE.parent / "configs")
DEFAULTS = "digits"  # the config that is made of the declared settings
WIDTH = 100  # of a line in it


def config_names() -> list[str]:
    folder = next((place for place in PLACES if (place / "own-images.toml").is_file()), None)
    if folder is None:
        raise ConfigError("the configs that come with dcfl are missing: install it again")
    return sorted([DEFAULTS, *(path.stem for path in folder.glob("*.toml"))])


def new_config(name: str, folder: Path) -> tuple[Path, str]:
    """Write NAME.toml into the folder, overwriting nothing; and the verb that runs it."""
    known = config_names()
    if name not in known:
        raise ConfigError(f"there is no config {name!r} to start from{nearest(name, known)}")
    path = folder / f"{name}.toml"
    if path.exists():
        raise ConfigError(f"{path} is there already")
    if name == DEFAULTS:
        text = all_keys(Experiment())
    else:
        kept = next(place / path.name for place in PLACES if (place / path.name).is_file())
        text = kept.read_text(encoding="utf-8").replace(f"configs/{path.name}", path.name)
    write_whole(path, text)
    return path, "dcfl flower run" if 'dataset = "remote"' in text else "dcfl run"


def all_keys(experiment: Experiment) -> str:
    lines = ["# What `dcfl run` does without a config, written out: every key, at its default."]
    for section, table in as_tables(experiment).items():
        owner = type(getattr(experiment, section))
        types, meanings = get_type_hints(owner), comments(owner)
        if section == "method":
            meanings["name"] = "`dcfl methods` lists them all with their fields"
        lines += ["", f"[{section}]"]
        for key, value in table.items():
            line, meaning = f"{key} = {to_toml(value)}", meanings.get(key, "")
            if get_origin(types.get(key)) is Literal:
                meaning = f"{describe_type(types[key])}: {meaning}"
            beside = f"{line:35} # {meaning}"
            if len(beside) <= WIDTH:
                lines.append(beside.removesuffix(" # ").rstrip())
            else:
                lines += [*(f"# {part}" for part in textwrap.wrap(meaning, WIDTH - 2)), line]
    return "\n".join(lines) + "\n"


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
from dcfl import Batch, Client, Objective


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

TEST = '''"""{title} keeps its promises."""

from pathlib import Path

import dcfl

FILE = Path(__file__).with_name("{module}.py")


def test_it_keeps_its_promises() -> None:
    for verdicts in dcfl.check(FILE).values():
        assert [verdict for verdict in verdicts if not verdict.holds] == []
'''
GROUP_TEST = """

def test_with_group_normalisation() -> None:
    for verdicts in dcfl.check(FILE, norm="group").values():
        assert [verdict for verdict in verdicts if not verdict.holds] == []
"""


def new_method(name: str, folder: Path) -> tuple[Path, Path]:
    module = module_name(name)
    parts = module.split("_")
    if "-".join(parts) in METHODS:
        raise ConfigError(f"there is a method {name} already: choose another name")
    return write_new(
        folder,
        module,
        METHOD,
        TEST + GROUP_TEST,
        name="-".join(parts),
        title=" ".join(parts).capitalize(),
        class_name="".join(part.capitalize() for part in parts),
    )


def module_name(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise ConfigError(f"{name!r} is not a name such as my-method: lower case, digits, hyphens")
    module = name.replace("-", "_")
    if keyword.iskeyword(module):
        raise ConfigError(f"{name} is a word of Python's own: choose another name")
    if find_spec(module) and not (Path.cwd() / f"{module}.py").exists():  # which is said later
        raise ConfigError(f"{module}.py would hide the Python module {module}: choose another name")
    return module


def write_new(folder: Path, module: str, text: str, test: str, **blanks: str) -> tuple[Path, Path]:
    file, its_test = folder / f"{module}.py", folder / f"test_{module}.py"
    for path in (file, its_test):
        if path.exists():
            raise ConfigError(f"{path} is there already")
    write_whole(file, text.format(module=module, **blanks))
    write_whole(its_test, test.format(module=module, **blanks))
    return file, its_test


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


def new_model(name: str, folder: Path) -> tuple[Path, Path]:
    module = module_name(name)
    if module in BUILT_IN:
        raise ConfigError(f"there is a network {name} already: choose another name")
    return write_new(folder, module, MODEL, TEST, title=module.replace("_", " ").capitalize())
