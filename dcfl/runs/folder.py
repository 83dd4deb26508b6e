"""The run folder: its name, its files, and how to read them back.

config.toml        the resolved settings        partition.npz      who owned which sample
environment.json   versions and machine         model.safetensors  the final weights
rounds.jsonl       a row per round              summary.json       the result
clients.jsonl      a row per client and round   report.html        all of it as a page
method.py, model.py   copies of the user's own files, if the run was trained with such
evaluation*.json   what `dcfl evaluate` and `compare --baselines` found
export-*           what `dcfl export` wrote
round-*            with output.keep_every and output.keep_updates
best.safetensors   with output.keep_best        checkpoint-*       for `dcfl resume`, with memories/
NAME-HASH.npz      the data set, if it was given in memory
personal/, personal.jsonl   the clients' own parts and a row per client, with federation.personal
trained_on.digests   hashes of the pictures that the model has seen
.begun-by          a mark of who began it, if it names anything outside the folder
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from dcfl import config
from dcfl.data.datasets import SAVED
from dcfl.data.identical import TRAINED_ON
from dcfl.errors import ConfigError, RunFolderError, RunMissing, SettingsWarning
from dcfl.evaluation import OWN_IMAGES, OWN_MIX
from dcfl.experiment import Experiment
from dcfl.models.own_models import OWN_MODELS
from dcfl.runs.rows import (
    ClientRow,
    PersonalRow,
    RoundRow,
    Row,
    Summary,
    damaged,
    parsed,
    read_partition,
    validated,
)
from dcfl.system.json_types import Json, Text
from dcfl.system.locks import LOCK
from dcfl.system.own_files import OwnFile, own_file_of
from dcfl.system.storage import MOST_OF_CONFIG, PARTIAL, read_whole, require_no_way_out, storage

if TYPE_CHECKING:
    from torch import Tensor

    from dcfl.data import Images
    from dcfl.messages import ClientUpdate
    from dcfl.models.output import Embedding, FeatureModel
    from dcfl.runs.model_file import Which

METHOD_COPY, MODEL_COPY = "method.py", "model.py"
MARK = ".begun-by"  # tells this user's runs from others': see trust.py


def own_files(experiment: Experiment) -> dict[str, OwnFile]:
    own_model = OWN_MODELS.get(experiment.model.name)
    files = {
        METHOD_COPY: own_file_of(type(experiment.method)),
        MODEL_COPY: own_model.file if own_model else None,
    }
    return {name: file for name, file in files.items() if file is not None}


SUMMARY = "summary.json"
LOGS = ("rounds.jsonl", "clients.jsonl")
PERSONAL_ROWS = "personal.jsonl"
FILES = {
    *LOGS,
    PERSONAL_ROWS,
    "rounds.csv",
    "config.toml",
    "environment.json",
    "partition.npz",
    "method.py",
    "model.py",
    "model.safetensors",
    "best.safetensors",
    TRAINED_ON,
    SUMMARY,
    MARK,
}
MEMORIES = "memories"  # the subfolder of the clients' memories
LONGEST_LINE = 2**24  # characters of a row
LONGEST_FOLDER_NAME = 200  # bytes, without the time; file systems allow about 255

Plain = str | int | float | bool | None
Environment = dict[str, Plain | list[Plain] | dict[str, Plain]]
RowKind = TypeVar("RowKind", bound=Row)


def folder_for(experiment: Experiment, dataset: str) -> Path:
    if experiment.output.dir:
        return Path(experiment.output.dir)
    return new_folder(f"{dataset}-{experiment.method.name}")


def new_folder(name: str) -> Path:
    short = re.sub(r":.*[/\\]", "-", name)  # folder:/some/where would be nested folders
    plain = re.sub(r"[^\w.-]+", "-", short).encode()[-LONGEST_FOLDER_NAME:].decode(errors="ignore")
    stamped = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{plain}"
    numbered = (stamped.with_name(f"{stamped.name}-{count}") for count in range(2, 10_000))
    return next(path for path in chain([stamped], numbered) if not path.exists())


def require_unused(folder: Path, data: str = "") -> None:
    """Refuse a folder that exists and is not empty. `data`: the file of the run's data set, named
    after its content and written before config.toml: a run that was killed may have left it."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise RunFolderError(f"{nearest}: not a folder")
    with storage(folder):
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        if any(name not in (LOCK, data) and not name.endswith(PARTIAL) for name in names):
            raise RunFolderError(f"{folder} is not empty: choose another folder with --out")


def require_utf8(folder: Path) -> None:
    """Refuse other paths: safetensors could not open the model there."""
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        raise RunFolderError(f"{folder}: the name is not valid UTF-8, choose another") from error


# The part of config.toml that reports show: settings and names, which may be of one's own methods
# and models. Resuming checks the whole file.
SHOWN = {
    "data": ("dataset", "clients", "partition", "alpha", "seed", "holdout"),
    "federation": ("rounds", "participation", "seed"),
}
NAMES = (("data", "dataset"), ("data", "partition"), ("method", "name"), ("model", "name"))
TEXTS: TypeAdapter[dict[str, Text]] = TypeAdapter(dict[str, Text])
ENVIRONMENT: TypeAdapter[Environment] = TypeAdapter(Environment)


def open_run(folder: str | Path) -> RecordedRun:
    """A run folder to read from, of a run that has finished or is still training.

    Args:
        folder: The run's.

    Returns:
        What is in it, each read when it is asked for: `rounds` and `clients`, the rows of
        rounds.jsonl and clients.jsonl; `summary`, or None; `config`, by table; `class_names` and
        `partition_counts`, samples per client and class; `model(which, round=...)`, as from
        `load_model`; `kept_rounds`, those with a model (`output.keep_every`), and
        `updates(round)`, what clients sent in one (`output.keep_updates`); `test_images`, with
        `pixels` and `labels`; `embeddings(layer, round=...)`.

    Raises:
        RunMissing: It is no run folder.

    Example:
        >>> import dcfl
        >>> settings = {"federation.rounds": 4, "output.keep_every": 2}
        >>> run = dcfl.open_run(dcfl.run(**settings).folder)
        >>> len(run.rounds), run.rounds[-1].sampled, len(run.clients)
        (4, 5, 20)
        >>> run.model(round=2).class_names[:3]
        ('0', '1', '2')
        >>> features, labels = run.embeddings()
        >>> features.shape, len(run.test_images)
        (torch.Size([355, 128]), 355)
    """
    return RecordedRun.open(Path(folder))


@dataclass(frozen=True)
class RecordedRun:
    """A run folder, as `open_run` returns it."""

    folder: Path  # where its files are

    def model(self, which: Which = "last", *, round: int | None = None) -> FeatureModel:
        """A trained model, as `dcfl.load_model` returns it; `round`: with output.keep_every."""
        from dcfl.runs.model_file import load_model

        return load_model(self.folder, which, round=round)

    @property
    def kept_rounds(self) -> list[int]:
        """Those whose model is kept: see output.keep_every."""
        names = (path.stem for path in self.folder.glob("round-*.safetensors"))
        return sorted(int(name[6:]) for name in names if re.fullmatch(r"round-[0-9]{6,9}", name))

    def updates(self, round: int) -> dict[int, ClientUpdate]:
        """What the server got in a round, by client, with `weights` and `upload`: see
        output.keep_updates."""
        from dcfl.runs.model_file import read_updates

        return read_updates(self, round)

    @property
    def test_images(self) -> Images:
        """What the run was scored on: `pixels`, `labels` and, of sites, `owners`."""
        from dcfl.trained.subject import load_own_data

        return load_own_data(self, self.model()).test

    def embeddings(
        self, layer: Embedding = "features", *, round: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Of the test images, [n, d], and their labels [n]. `layer`: "projection" for what a side
        head gives; `round`: by the model of that round."""
        from dcfl.trained.subject import embed, load_own_data

        model = self.model(round=round)
        dataset = load_own_data(self, model)
        return embed(model, dataset.test, dataset.preparation, layer)[0], dataset.test.labels

    @classmethod
    def open(cls, folder: Path) -> RecordedRun:
        if not (folder / "config.toml").is_file():
            raise RunMissing(f"{folder} is not a run folder: there is no config.toml in it")
        require_no_way_out(folder)
        return cls(folder)

    @cached_property
    def config_text(self) -> str:
        content = read_whole(self.folder / "config.toml", MOST_OF_CONFIG)
        return content.decode("utf-8", "surrogateescape")

    @cached_property
    def config(self) -> config.Tables:
        """Its config.toml, by table and key."""
        path = self.folder / "config.toml"
        tables = config.read_toml(path, "surrogateescape")
        if "data" in tables:
            tables["data"] = self._with_data(tables["data"])
        for name in ("data", "method", "federation"):
            if name not in tables:
                raise RunFolderError(f"{path} has no [{name}]")
        names = {f"{table}.{key}": tables.get(table, {}).get(key, "") for table, key in NAMES}
        validated(TEXTS, names, path)
        shown = {
            name: {key: value for key, value in tables[name].items() if key in keys}
            for name, keys in SHOWN.items()
        }
        try:
            config.apply(config.DEFAULT, shown)
        except ConfigError as error:
            raise damaged(path, str(error)) from error
        return tables

    def _with_data(self, table: dict[str, Any]) -> dict[str, Any]:
        """Data that was saved with the run, or beside it, may have been copied or moved with it."""
        name = str(table.get("dataset", ""))
        places = (self.folder.resolve(), *self.folder.resolve().parents[:2])
        files = [place / Path(name).name for place in places if SAVED.fullmatch(name)]
        file = next((file for file in files if file.is_file()), None)
        return table if file is None else {**table, "dataset": f"npz:{file}"}

    @property
    def experiment(self) -> Experiment:
        """The recorded experiment, with the folder's current path."""
        tables = config.merge(self.config, {"output": {"dir": str(self.folder.resolve())}})
        return config.experiment_from(None, tables)

    @cached_property
    def own_models(self) -> bool:
        """Whether its clients end with models of their own; the summary knows it of a method that
        is not known here."""
        # Who trained it was told what its settings mean.
        quiet = warnings.catch_warnings(action="ignore", category=SettingsWarning)
        with suppress(ConfigError), quiet:
            return self.experiment.own_models
        return bool(self.summary and self.summary.personal_models)

    @property
    def holdout(self) -> float:
        """The share of the training images that the run was scored on; 0: on test images."""
        return float(self.config["data"].get("holdout", 0.0))

    @cached_property
    def clients_on(self) -> str:
        """What the numbers of single clients are taken on."""
        return OWN_IMAGES if any(row.sites for row in self.rounds) else OWN_MIX

    @cached_property
    def rounds(self) -> list[RoundRow]:
        """The row of each round, in order."""
        return list(self.each_round())

    def each_round(self) -> Iterator[RoundRow]:
        """Read the rows one by one and keep none. Each round has one, in order."""
        path = self.folder / "rounds.jsonl"
        for number, row in enumerate(self._rows(path.name, RoundRow), 1):
            if row.round != number:
                raise damaged(path, f"round {row.round} where round {number} should be")
            yield row

    @cached_property
    def clients(self) -> list[ClientRow]:
        """A row for each client and round."""
        return list(self.each_client())

    def each_client(self) -> Iterator[ClientRow]:
        """Read the rows one by one and keep none."""
        return self._rows("clients.jsonl", ClientRow)

    @cached_property
    def site_names(self) -> dict[int, str]:
        """The name of each client's site; empty where sites have no names."""
        return {row.client: row.site for row in self.clients if row.site}

    @cached_property
    def personal(self) -> list[PersonalRow]:
        """The rows of the clients' own models; empty without such models or before the end."""
        rows = list(self._rows(PERSONAL_ROWS, PersonalRow))
        crossed = {len(row.on_sites) for row in rows}
        in_order = [row.client for row in rows] == [*range(len(rows))]
        if rows and not (in_order and crossed in ({0}, {len(rows)})):
            raise damaged(self.folder / PERSONAL_ROWS, "rows that do not go together")
        return rows

    @cached_property
    def environment(self) -> Environment:
        """Versions, machine, and hashes of what the user brought along."""
        path = self.folder / "environment.json"
        return validated(ENVIRONMENT, self._json(path), path, strict=True)

    @cached_property
    def summary(self) -> Summary | None:
        """The result; None until the run has finished."""
        path = self.folder / SUMMARY
        content = self._json(path)
        return Summary.from_json(content, path) if content else None

    @property
    def finished(self) -> bool:
        """Whether it has come to its end."""
        return self.summary is not None

    @cached_property
    def partition_counts(self) -> NDArray[np.int64]:
        """Samples per client and class."""
        return self._of_partition("counts")

    @property
    def samples_known(self) -> bool:
        """Whether the run knew its clients' samples: those at sites elsewhere are theirs alone."""
        return bool(self._partition) and bool(self.partition_counts.any())

    @property
    def at_sites(self) -> bool:
        """Whether its clients' samples were at sites elsewhere."""
        return bool(self._partition) and not self.samples_known

    @cached_property
    def class_names(self) -> list[str]:
        """In the order of labels."""
        return [str(name) for name in self._of_partition("class_names")]

    @property
    def partition_sha256(self) -> str:
        """Identifies the split the run was trained on; empty if it was not recorded."""
        return str(self._partition.get("sha256", ""))

    def _of_partition(self, key: str) -> NDArray[Any]:
        if not self._partition:
            raise RunFolderError(f"{self.folder} has no partition.npz")
        return self._partition[key]

    @cached_property
    def _partition(self) -> dict[str, NDArray[Any]]:
        path = self.folder / "partition.npz"
        return read_partition(path) if path.is_file() else {}

    def _rows(self, name: str, kind: type[RowKind]) -> Iterator[RowKind]:
        path = self.folder / name
        if not path.is_file():
            return
        with path.open(encoding="utf-8", errors="replace") as lines:
            # A running or killed run may leave half a line at the end.
            while (line := lines.readline(LONGEST_LINE)).endswith("\n"):
                yield kind.from_json(parsed(line, path), path)
        if len(line) == LONGEST_LINE:
            raise damaged(path, f"a line of more than {LONGEST_LINE:,} characters")

    def _json(self, path: Path) -> Json:
        return parsed(read_whole(path), path) if path.is_file() else {}
