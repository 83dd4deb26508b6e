"""`dcfl check`, `dcfl new` and `dcfl doctor`: for one's own methods, networks and machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dcfl.cli.options import AsJSON, print_json
from dcfl.errors import ConfigError, require
from dcfl.system.wording import printable, whole_number

new = typer.Typer(help="Start a config, method or network of your own.", no_args_is_help=True)


def check(
    what: Annotated[str, typer.Argument(metavar="NAME|FILE.py", show_default=False)],
    images: Annotated[
        str, typer.Option(metavar="CxNxN", help="The images that a network is tried on.")
    ] = "3x32x32",
    classes: Annotated[
        int, typer.Option(min=2, max=10_000, help="How many classes it tells apart.")
    ] = 10,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE.py", help="Does a method in this file compute what NAME does?"),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Test a method or a network, yours too, for the usual mistakes.

    ✓ kept, ✗ broken, – not offered.
    """
    from dcfl.testing import contract

    channels, size = _channels_and_size(images)
    if against is not None:
        verdicts = contract.check_against(what, against)
    else:
        verdicts = contract.check(what, channels=channels, size=size, classes=classes)
    if as_json:
        print_json({name: list(map(asdict, by_property)) for name, by_property in verdicts.items()})
    else:
        for name, by_property in verdicts.items():
            print(name)
            for verdict in by_property:
                detail = f": {verdict.detail}" if verdict.detail else ""
                mark = _mark(verdict.holds) if verdict.offered else "–"
                print(printable(f"  {mark} {verdict.property}{detail}"))
            if by_property[-1].crashed:
                print("  stopped there: mend that first, then check again")
    if not all(verdict.holds for by_property in verdicts.values() for verdict in by_property):
        raise typer.Exit(1)


def _channels_and_size(images: str) -> tuple[int, int]:
    parts = images.split("x")
    channels, size, _ = [whole_number(part) for part in parts] if len(parts) == 3 else [None] * 3
    if channels is None or size is None or parts[1] != parts[2]:
        raise ConfigError(f"--images {images}: give channels and size of square images, 3x32x32")
    require(1 <= channels <= 64, f"--images {images}: 1 to 64 channels")
    require(1 <= size <= 1024, f"--images {images}: 1 to 1024 pixels")
    return channels, size


@new.command("method")
def new_method_verb(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
) -> None:
    """Write a small method that works, and its test, into the current folder."""
    from dcfl.cli.new import new_method

    _print_new("method", *new_method(name, Path()))


def _print_new(kind: str, file: Path, test: Path) -> None:
    print(f"wrote  {file} and {test}")
    print(f"check  dcfl check {file}")
    print(f"run    dcfl run --{kind}-file {file}")


@new.command("config")
def new_config_verb(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
) -> None:
    """Write a config with a comment at every key into the current folder, to start from.

    NAME: digits, own-images, hospitals, cifar10, cifar100 or tiny-imagenet.
    """
    from dcfl.cli.new import new_config

    path, command = new_config(name, Path())
    print(f"wrote  {path}\nrun    {command} {path}")


@new.command("model")
def new_model_verb(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
) -> None:
    """Write a small network that works, and its test, into the current folder."""
    from dcfl.cli.new import new_model

    _print_new("model", *new_model(name, Path()))


def doctor(as_json: AsJSON = False) -> None:
    """Check this machine: versions, devices, a moment of training."""
    from dcfl.cli.doctor import examine

    findings = examine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            print(printable(f"{_mark(finding.fine)} {finding.what}: {finding.detail}"))
    if not all(finding.fine for finding in findings):
        raise typer.Exit(2)


def _mark(good: bool) -> str:
    return "✓" if good else "✗"
