"""Arguments, options and output that several verbs share."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcfl.errors import ConfigError
from dcfl.system.storage import strict_json

if TYPE_CHECKING:
    from dcfl.experiment import Experiment
    from dcfl.runs.model_file import Which

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG.toml] [KEY=VALUE]...",
        show_default=False,
        help="A config file, and settings on top such as data.alpha=0.1 method.name=moon; "
        "`dcfl settings` shows all keys with their values.",
    ),
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]
Folders = Annotated[list[Path], typer.Argument(metavar="DIR...", show_default=False)]
PictureFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="IMAGE|FOLDER|FILE.npz...",
        show_default=False,
        help="Pictures, or folders of them; or feature vectors, as `dcfl embed` writes them.",
    ),
]
Best = Annotated[
    bool,
    typer.Option("--best", help="The best model instead of the last (output.keep_best)."),
]
ClientNumber = Annotated[
    int | None,
    typer.Option(
        "--client",
        metavar="K",
        min=0,
        show_default=False,
        help="The model of client K, counted from 0 (federation.personal).",
    ),
]
FiguresFolder = Annotated[
    Path | None,
    typer.Option("--figures", metavar="DIR", help="Also write its charts for print (SVG, PDF)."),
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
MethodFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE.py", help="A method of your own; becomes the default method."),
]
MethodFiles = Annotated[
    list[Path] | None,
    typer.Option("--method-file", metavar="FILE.py", help="Own methods; may be repeated."),
]
ModelFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE.py", help="A network of your own; becomes the default model."),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Resume a run of others that names trackers, code or data."),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Where to write; must be new or empty.")
]

OutFolder = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Where the runs are kept; may hold some already."),
]
Parallel = Annotated[
    int,
    typer.Option(min=0, max=1024, help="Runs at the same time; 0: as many as there are cores for."),
]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Say what it would cost, and stop.")]


def experiment_of(
    settings: Sequence[str] | None,
    method_file: Path | Sequence[Path] | None = None,
    model_file: Path | None = None,
    out: Path | None = None,
    engine: str = "",
) -> Experiment:
    """The experiment that a command line asks for. `engine` overrides the config's own."""
    from dcfl.config import experiment_from, parse_settings

    before, after = [None, *(settings or ())], [*(settings or ()), None]
    for key, sign, value in zip(before, after, after[1:], strict=False):
        if sign == "=" and key and value:  # three words, pasted from a config file
            raise ConfigError(f"write {key}={value}, without spaces around the =")
    own_methods, own_model = run_own_files(method_file, model_file)
    files = [text for text in settings or () if "=" not in text]
    if len(files) > 1:
        raise ConfigError(f"one config file at a time, not {len(files)}: {', '.join(files)}")
    changes = parse_settings(text for text in settings or () if "=" in text)
    if len(own_methods) == 1:
        changes["method"] = {"name": own_methods[0], **changes.get("method", {})}
    if own_model:
        changes["model"] = {"name": own_model, **changes.get("model", {})}
    if out is not None:
        changes.setdefault("output", {})["dir"] = str(out)
    if engine:
        changes.setdefault("engine", {})["name"] = engine
    chosen = "name" in changes.get("method", {})
    if isinstance(method_file, Path) and len(own_methods) > 1 and not chosen:
        raise ConfigError(
            f"{method_file} defines {', '.join(own_methods)}: say which, "
            f"method.name={own_methods[0]}"
        )
    return experiment_from(files[0] if files else None, changes)


def run_own_files(
    method_file: Path | Sequence[Path] | None, model_file: Path | None
) -> tuple[list[str], str]:
    """Run the user's own files; returns the names of the methods and of the model in them, which
    this process now knows."""
    methods, model = list[str](), ""
    files = [method_file] if isinstance(method_file, Path) else method_file or ()
    for file in files:
        from dcfl.methods.loading import register_methods

        methods += register_methods(file)
    if model_file:
        from dcfl.models.own_models import register_model

        model = register_model(model_file)
    return methods, model


def which_model(folder: Path, best: bool, client: int | None = None) -> Which:
    """The model that was asked for; a note says so if nobody uses it as it is."""
    from dcfl.runs.folder import PERSONAL_ROWS

    if best and client is not None:
        raise ConfigError("--best and --client name two models: give one of them")
    if client is not None:
        return client
    if (folder / PERSONAL_ROWS).is_file():
        note = "the model without the clients' personal parts; --client K takes that of client K"
        print(f"note: {note}", file=sys.stderr)
    return "best" if best else "last"


def no_nan(value: float) -> float:
    """A bound of Typer's does not stop it: it is neither below nor above."""
    if isnan(value):
        raise typer.BadParameter("nan is no number.")
    return value


def comma_separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def whole_numbers(text: str, option: str = "--seeds") -> list[int]:
    if not re.fullmatch(r" *-?[0-9]{1,10} *(, *-?[0-9]{1,10} *)*", text):
        raise ConfigError(
            f"{option} takes whole numbers of up to ten digits, such as 0,1,2, not {text!r}"
        )
    return [int(part) for part in text.split(",")]


def print_json(value: Any) -> None:
    """Strictly JSON: NaN is null."""
    print(strict_json(value, indent=2))
