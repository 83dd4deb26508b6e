"""What the verbs of the command line have in common: their words, options and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcfl.errors import ConfigError
from dcfl.system.storage import strict_json

if TYPE_CHECKING:
    from dcfl.experiment import Experiment

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG.toml] [KEY=VALUE]...",
        show_default=False,
        help="A config file, and settings on top such as data.alpha=0.1 method.name=moon; "
        "`dcfl settings` shows all keys with their values.",
    ),
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
MethodFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE.py", help="A method of your own; becomes the default method."),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Where to write; must be new or empty.")
]


def experiment_of(
    words: Sequence[str] | None,
    method_file: Path | None = None,
    out: Path | None = None,
    engine: str = "",
) -> Experiment:
    """`engine` is the one to use whatever the config says."""
    from dcfl.config import experiment_from, parse_words

    own = register(method_file) if method_file else []
    files = [word for word in words or () if "=" not in word]
    if len(files) > 1:
        raise ConfigError(f"one config file at a time, not {len(files)}: {', '.join(files)}")
    changes = parse_words(word for word in words or () if "=" in word)
    if len(own) == 1:
        changes["method"] = {"name": own[0], **changes.get("method", {})}
    if out is not None:
        changes.setdefault("output", {})["dir"] = str(out)
    if engine:
        changes.setdefault("engine", {})["name"] = engine
    return experiment_from(files[0] if files else None, changes)


def register(path: Path) -> list[str]:
    """Make the methods of a user's file known by name, for this process."""
    from dcfl.methods import METHODS
    from dcfl.methods.loading import load_methods

    found = load_methods(path)
    taken = sorted(found.keys() & METHODS.keys())
    if taken:
        raise ConfigError(f'{path}: the name {taken[0]} is taken: set name = "..." in the class')
    METHODS.update(found)
    return list(found)


def whole_numbers(text: str, option: str = "--seeds") -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{option} takes whole numbers such as 0,1,2, not {text!r}") from error


def print_json(value: Any) -> None:
    """Strictly JSON: NaN is null."""
    print(strict_json(value, indent=2))
