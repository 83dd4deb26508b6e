"""`dcfl check`, `dcfl new method` and `dcfl doctor`: for one's own methods and one's machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dcfl.cli.options import AsJSON, print_json
from dcfl.system.printable import printable

new = typer.Typer(help="Start something of your own.", no_args_is_help=True)


def check(
    method: Annotated[str, typer.Argument(metavar="NAME|FILE.py", show_default=False)],
    as_json: AsJSON = False,
) -> None:
    """Does a method keep its promises? Yours too, by the path of its file."""
    from dcfl.config import method_named
    from dcfl.methods.loading import load_methods
    from dcfl.testing.contract import check_method

    path = Path(method)
    chosen = load_methods(path) if path.suffix == ".py" else {method: method_named(method)}
    verdicts = {name: check_method(method_class) for name, method_class in chosen.items()}
    if as_json:
        print_json({name: list(map(asdict, by_property)) for name, by_property in verdicts.items()})
    else:
        for name, by_property in verdicts.items():
            print(name)
            for verdict in by_property:
                detail = f": {verdict.detail}" if verdict.detail else ""
                print(printable(f"  {_mark(verdict.holds)} {verdict.property}{detail}"))
    if not all(verdict.holds for by_property in verdicts.values() for verdict in by_property):
        raise typer.Exit(1)


@new.command("method")
def new_method_verb(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
) -> None:
    """Write a small method that works, and its test, into the current folder."""
    from dcfl.cli.new_method import new_method

    method, test = new_method(name, Path())
    print(
        f"wrote  {method} and {test}\n"
        f"check  dcfl check {method}\n"
        f"run    dcfl run --method-file {method}"
    )


def doctor(as_json: AsJSON = False) -> None:
    """Check this machine: versions, devices, the built-in data, one real training step."""
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
