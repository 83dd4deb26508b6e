"""Whose run it is. A run folder may come from anybody, and can name what lies outside of it: a run
that this user has begun carries a mark that nobody else can make, any other needs trust."""

from __future__ import annotations

import hmac
import secrets
from contextlib import suppress
from pathlib import Path

from dcfl.config import DEFAULT
from dcfl.data import DataSettings
from dcfl.data.splits.grouping import is_table
from dcfl.errors import RunFolderError
from dcfl.experiment import Experiment
from dcfl.runs.folder import MARK, METHOD_COPY, MODEL_COPY
from dcfl.system.storage import private_folder, read_whole, user_folder, write_once, write_whole


def named_outside(experiment: Experiment, folder: Path) -> list[str]:
    data, weights = experiment.data, experiment.model.weights
    copies = [name for name in (METHOD_COPY, MODEL_COPY) if (folder / name).exists()]
    named = [f"the tracker {name}" for name in experiment.output.trackers]
    named += [f"the code {name}" for name in copies]
    named += [f"the data {name}" for name in (_data(data, folder), data.partition) if ":" in name]
    clock = (experiment.clock.devices, experiment.clock.availability)
    named += [f"the file {name[5:]}" for name in clock if ":" in name]
    named += [f"the data in {data.path}"] if data.path != DEFAULT.data.path else []
    named += [f"the table {data.group}"] if is_table(data.group) else []
    return named + ([f"the weights {weights}"] if weights else [])


def _data(data: DataSettings, folder: Path) -> str:
    """What lies beside the folder, as the data of a comparison do, counts wherever both are."""
    file = Path(data.dataset.removeprefix("npz:"))
    if file.parent == folder.resolve():
        return ""
    beside = file.parent in folder.resolve().parents[:2]
    return f"npz:{file.name}" if beside else data.dataset


def mark(folder: Path, experiment: Experiment) -> None:
    """Mark the run as this user's, if it names anything outside its folder."""
    if text := _mark_of(named_outside(experiment, folder)):
        write_whole(folder / MARK, text)


def require_trust(folder: Path, experiment: Experiment) -> None:
    """Refuse a run that names anything outside its folder, unless this user has begun it so. It may
    have been moved or copied since."""
    named, path = named_outside(experiment, folder), folder / MARK
    found = read_whole(path) if path.is_file() else b""
    if named and (not found or not hmac.compare_digest(found, _mark_of(named).encode())):
        raise RunFolderError(
            f"{folder} names {', '.join(named)}, and you have not begun it so on this machine: "
            f"resume it with --trust if you know who made it"
        )


def _mark_of(named: list[str]) -> str:
    """Empty where there is nothing to mark, or no home to keep this user's secret in."""
    folder = user_folder("XDG_STATE_HOME", "~/.local/state")
    if named and folder is not None:
        with suppress(OSError):
            private_folder(folder)
            write_once(folder / "secret", secrets.token_hex())
            text = "\0".join(named).encode("utf-8", "surrogateescape")
            return hmac.digest(read_whole(folder / "secret"), text, "sha256").hex()
    return ""
