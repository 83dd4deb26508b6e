"""`dcfl data ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dcfl.cli.options import AsJSON, Settings, experiment_of, print_json
from dcfl.system.printable import printable

data = typer.Typer(help="Data sets: get them, look at them.", no_args_is_help=True)


@data.command("get")
def get(
    name: Annotated[
        str, typer.Argument(metavar="cifar10|cifar100|tiny-imagenet", show_default=False)
    ],
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where data sets are kept.")] = Path(
        "data"
    ),
) -> None:
    """Download a data set, verify and unpack it. One that is complete already is left alone."""
    from dcfl.cli.live_progress import download_progress
    from dcfl.data.sources import get_dataset

    with download_progress(name) as show:
        source = get_dataset(name, to, show)
    print(printable(f"{name}: {source} ({to})"))


@data.command("check")
def check(settings: Settings = None, as_json: AsJSON = False) -> None:
    """Read the data set that a config or data.dataset=... names, and say what is in it."""
    from dcfl.cli.cards import dataset_card
    from dcfl.data.catalogue import load_dataset
    from dcfl.data.dataset_summary import summarise_dataset

    data_settings = experiment_of(settings).seeded.data
    data_settings.require_here()
    summary = summarise_dataset(load_dataset(data_settings), data_settings)
    if as_json:
        print_json(summary.as_json())
    else:
        print(dataset_card(summary))
