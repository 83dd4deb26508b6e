"""`dcfl settings`, `methods`, `partition`, `data` and `watch`: look at things without training."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dcfl.cli.options import (
    AsJSON,
    MethodFile,
    ModelFile,
    Settings,
    experiment_of,
    no_nan,
    print_json,
)
from dcfl.errors import BrokenPicture, ConfigError, DatasetCorrupt
from dcfl.system.processes import handlers_put_back, stop_when_signalled
from dcfl.system.wording import printable, printable_lines

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dcfl.data import Dataset, DataSettings, Partition


MOST_DRAWS = 2 * 10**8  # rounds times clients

SplitFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Also write it (.json or .csv), for data.partition=file:FILE."
    ),
]
PictureFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also draw it (.svg, .png or .pdf).")
]


def settings(
    settings: Settings = None,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    as_json: AsJSON = False,
) -> None:
    """Show every setting of a run with its value, as a config file."""
    from dcfl.config import as_tables, to_toml

    tables = as_tables(experiment_of(settings, method_file, model_file))
    if as_json:
        print_json(tables)
    else:
        print(printable_lines(to_toml(tables)))


def privacy(
    target_epsilon: Annotated[
        float, typer.Option(min=0.1, max=500, callback=no_nan, help="What a client may spend.")
    ] = 8.0,
    delta: Annotated[
        float, typer.Option(min=1e-12, max=0.5, callback=no_nan, help="Far below 1/clients.")
    ] = 1e-5,
    rounds: Annotated[
        int, typer.Option(min=1, max=100_000, help="How many, of the whole run.")
    ] = 80,
    participation: Annotated[
        float,
        typer.Option(min=1e-6, max=1, callback=no_nan, help="Share of the clients in a round."),
    ] = 0.05,
    clients: Annotated[int, typer.Option(min=1, max=10**6, help="In the federation.")] = 1000,
    parameters: Annotated[
        int, typer.Option(min=1, max=10**12, help="Numbers in the model.")
    ] = 100_000,
    where: Annotated[
        Literal["client", "server", "sum"] | None,
        typer.Option(show_default=False, help="For this privacy.where alone."),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Which noise a privacy budget needs, where it is added, and with how many clients it is small.

    See docs/privacy.md. No run is needed: the answer depends on nothing but these numbers.
    """
    from dcfl.cli.tables import CORRELATED, CORRELATED_WORDS, NOISE_WORDS, noise_table
    from dcfl.cli.terminal import stdout
    from dcfl.privacy import Schedule, noise_needed

    if rounds * clients > MOST_DRAWS:
        raise ConfigError(
            f"rounds times clients are {rounds * clients:.2g}, and every round is drawn from all "
            f"clients: at most {MOST_DRAWS:.0e}, take fewer of either"
        )
    schedule = Schedule(clients, participation, 0, rounds)
    found = noise_needed(target_epsilon, delta, schedule, parameters, where or "")
    if not found:
        raise ConfigError("privacy: a sum by server.secure is of two clients a round or more")
    if as_json:
        print_json([one.to_json() for one in found])
        return
    print(
        f"epsilon {target_epsilon:g} at delta {delta:g}, and {rounds:,} rounds with "
        f"{100 * participation:.3g} % of {clients:,} clients\n"
    )
    stdout.print(noise_table(found))
    print(NOISE_WORDS)
    if any(CORRELATED in one.where for one in found):
        print(CORRELATED_WORDS)


def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", show_default=False)] = None,
    as_json: AsJSON = False,
) -> None:
    """What each method optimises, its settings, its cost, what it sends."""
    from dcfl.cli.cards import method_card
    from dcfl.config import describe_method, method_named
    from dcfl.methods import METHODS

    chosen = [method_named(name)] if name else list(METHODS.values())
    descriptions = [describe_method(method) for method in chosen]
    if as_json:
        print_json(descriptions)
        return
    print("\n\n".join(method_card(description) for description in descriptions))


def partition(
    settings: Settings = None,
    save: SplitFile = None,
    picture: PictureFile = None,
    as_json: AsJSON = False,
) -> None:
    """Show who would own what: samples per client and class."""
    from dcfl.data import load_dataset

    data = experiment_of(settings).seeded_data
    data.require_here()
    dataset = load_dataset(data)
    split = data.split(dataset)
    counts = split.counts(dataset.train.labels.numpy(), dataset.classes)
    if picture is not None:
        _draw_partition(counts, dataset.class_names, picture)
    if save is not None:
        _save_split(data, dataset, split, save)
    if as_json:
        told = {"dataset": dataset.name, "class_names": dataset.class_names}
        print_json({**told, "counts": counts.tolist(), "sha256": split.sha256})
        return
    _print_partition(data, dataset, split, counts)
    if picture is not None:
        print(printable(f"picture  {picture}"))
    if save is not None:
        print(printable(f"saved    {save}; data.partition=file:{save} uses it"))


def _print_partition(
    data: DataSettings, dataset: Dataset, split: Partition, counts: NDArray[np.int64]
) -> None:
    from dcfl.cli.tables import partition_table
    from dcfl.cli.terminal import stdout
    from dcfl.data.splits.partition import split_words

    names = data.own_split.names if data.own_split else dataset.site_names
    stdout.print(partition_table(counts, dataset.class_names, names))
    scheme = split_words(data.partition, data.alpha)
    if dataset.partition is not None:
        scheme = "as it came"
    elif not data.split_file:
        scheme += f", seed {data.seed}"
    left = len(dataset.train) - len(split.indices)
    unowned = f", {left:,} images without an owner" if left else ""
    print(printable(f"{dataset.name}, {scheme}{unowned}, SHA-256 {split.sha256[:16]}"))


def _save_split(data: DataSettings, dataset: Dataset, split: Partition, path: Path) -> None:
    from dcfl.data import load_dataset
    from dcfl.data.splits.own_split import own_split_of, split_text
    from dcfl.system.storage import write_whole

    if path.exists():
        raise ConfigError(f"--save {path}: there is such a file already; choose another name")
    _require_folder("--save", path)
    whole = load_dataset(replace(data, classes=0, holdout=0.0, train_images=0))
    write_whole(path, split_text(own_split_of(split, dataset, whole, path, data.own_split)))


def _draw_partition(counts: NDArray[np.int64], class_names: Sequence[str], path: Path) -> None:
    from dcfl.report.charts import partition_chart
    from dcfl.report.figures import figure, save

    if path.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"--picture {path}: the name must end in .svg, .png or .pdf")
    _require_folder("--picture", path)
    save(figure(partition_chart(counts, class_names)), path)


def _require_folder(option: str, path: Path) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}")


data = typer.Typer(help="Download data sets, and look into them.", no_args_is_help=True)


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
    from dcfl.cli.terminal import download_progress
    from dcfl.data.downloads import get_dataset

    with download_progress(name) as show:
        source = get_dataset(name, to, show)
    print(printable(f"{name}: {source} ({to})"))


@data.command("check")
def check(settings: Settings = None, as_json: AsJSON = False) -> None:
    """Read the data set that a config or data.dataset=... names, and say what is in it."""
    from dcfl.cli.cards import dataset_card
    from dcfl.data.catalogue import load_dataset
    from dcfl.data.dataset_summary import summarise_dataset

    data_settings = experiment_of(settings).seeded_data
    data_settings.require_here()
    try:
        summary = summarise_dataset(load_dataset(data_settings), data_settings)
    except BrokenPicture:
        _tell_all_broken(data_settings)
        raise
    if as_json:
        print_json(summary.as_json())
    else:
        print(dataset_card(summary))


def _tell_all_broken(settings: DataSettings) -> None:
    """Every picture that stands in the way, instead of one at a time."""
    from dcfl.data.readers.folders import broken_pictures, folder_files

    files = folder_files(Path(os.path.expanduser(settings.dataset.partition(":")[2])))
    broken = broken_pictures(files, settings.window)
    for path, why in broken.items():
        print(printable(f"broken  {path} ({why})"), flush=True)
    raise DatasetCorrupt(
        f"{len(broken):,} of {len(files):,} pictures are broken: mend or remove them, or leave "
        f"them out with data.broken=skip"
    )


Watched = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR...",
        show_default=False,
        help="Run folders, or folders of them; they need not exist yet.",
    ),
]
Port = Annotated[int, typer.Option(metavar="N", help="On this port; by default any free one.")]
Open = Annotated[bool, typer.Option("--open", help="Open it in a browser.")]


def watch(folders: Watched, port: Port = 0, open_browser: Open = False) -> None:
    """Follow runs live, on a page of this machine. Ctrl-C ends it.

    It may begin before the runs do, and it goes on when they end, stop or are resumed.
    """
    from dcfl.report.watch import watching

    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder")
    ended = threading.Event()
    with handlers_put_back(), watching(folders, port) as server:
        stop_when_signalled(ended.set)
        print(printable(f"watching  {server.address}  (Ctrl-C ends it)"), flush=True)
        if open_browser:
            import webbrowser

            webbrowser.open(server.address)
        ended.wait()


def demo() -> None:
    """Open the page of a finished comparison. Nothing is trained."""
    page = Path(str(files("dcfl.report") / "demo.html"))
    print("the page of `make run`: FedAvg, DCFL and SCAFFOLD on handwritten digits, five seeds")
    print(printable(f"demo  {page}"))
    if sys.stdout.isatty():  # in a pipe nobody looks
        import webbrowser

        webbrowser.open(page.as_uri())
