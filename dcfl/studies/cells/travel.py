"""Experiments in another process: as a config, with the user's own files that it needs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dcfl.config import as_tables, from_toml, to_toml
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.methods.loading import register_methods
from dcfl.models.own_models import register_model
from dcfl.runs.own_code import METHOD_COPY, own_files
from dcfl.system.own_files import own_file_of, run_file


class SentFile(NamedTuple):
    """A file that a person has named to this process, and that another one is to run too."""

    defines: str  # "method" or "model"
    path: str
    sha256: str  # as it was when it ran here: it may have been edited since


def can_travel(experiment: Experiment) -> bool:
    """Whether another process can build it. Not so if its method is an object of a class that is
    in no file: of a notebook, or of a script."""
    for choice in (experiment.method, experiment.server.optimizer):
        kind = type(choice)
        if not kind.__module__.startswith("dcfl.") and own_file_of(kind) is None:
            return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return from_toml(as_text(experiment)) == experiment
        except (ConfigError, TypeError):  # TypeError: a field that no config file can hold
            return False


def as_text(experiment: Experiment) -> str:
    return to_toml(as_tables(experiment))


def files_to_send(experiment: Experiment) -> list[SentFile]:
    return [
        SentFile("method" if copy == METHOD_COPY else "model", str(file.path), file.sha256)
        for copy, file in own_files(experiment).items()
    ]


def register_sent(files: Sequence[SentFile]) -> None:
    for defines, path, sha256 in files:
        if run_file(Path(path)).sha256 != sha256:
            raise ConfigError(f"{path} has been edited since the command began: start it again")
        if defines == "method":
            register_methods(Path(path))
        else:
            register_model(Path(path))
