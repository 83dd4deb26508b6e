"""Writes a run folder: whole files atomically, rows as rounds end."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dcfl import config
from dcfl.data.identical import write_digests
from dcfl.errors import CheckpointError
from dcfl.messages import ClientUpdate, Tensors
from dcfl.runs.folder import (
    FILES,
    LOGS,
    MEMORIES,
    PERSONAL_ROWS,
    SUMMARY,
    RecordedRun,
    require_unused,
    require_utf8,
)
from dcfl.runs.model_file import MODEL_FILES, Kept, round_file, write_model
from dcfl.runs.prepare import Prepared
from dcfl.runs.rows import ClientRow, PersonalRow, RoundRow, Row, Summary
from dcfl.runs.trust import mark
from dcfl.system.locks import LOCK, lock, sign
from dcfl.system.storage import (
    open_to_append,
    remove_partial,
    replacing,
    storage,
    strict_json,
    write_whole,
)
from dcfl.system.tensor_files import write_tensors
from dcfl.tensors import together


class Recorder:
    """Writes one run folder and holds its lock until closed."""

    def __init__(self, folder: Path, resumed: bool = False, data: str = "") -> None:
        """`resumed`: the folder already holds the run; otherwise it must be unused, but for the
        file `data`."""
        require_utf8(folder)
        self._is_new = not folder.exists()
        self._found = folder / data if (folder / data).is_file() else None
        if not resumed and not (folder / LOCK).exists():  # otherwise find out first who holds it
            require_unused(folder, data)
            with storage(folder):
                folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.resumed = folder, resumed
        self._lock = lock(folder)
        try:
            if not resumed:
                require_unused(folder, data)  # another process may have used it meanwhile
            sign(self._lock)
            remove_partial(folder)
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        self._lock.close()

    def start(self, prepared: Prepared, run: str) -> None:
        """Write the files that are known before the first round. `run`: its id at remote nodes."""
        text = config.to_toml(config.as_tables(prepared.experiment)) + "\n"
        write_whole(self.folder / "config.toml", text)
        self._write_json("environment.json", _environment(prepared, run))
        self._copy_own_files(prepared)
        dataset, partition = prepared.data.dataset, prepared.data.partition
        counts = partition.counts(dataset.train.labels.cpu().numpy(), dataset.classes)
        with replacing(self.folder / "partition.npz") as partial:
            partition.save(partial, counts, dataset.class_names)
        if len(dataset.train):
            write_digests(self.folder, dataset.train, prepared.experiment.model.weights)
        mark(self.folder, prepared.experiment)

    def withdraw(self) -> None:
        """Remove what `start` has written, for a run that never began: a folder that was not there
        before, and from one that was the run's files."""
        if self.resumed:
            return
        with suppress(OSError):  # what is left does not matter as much as why the run did not begin
            for path in (*map(self.folder.joinpath, FILES), *self.folder.glob("*.npz")):
                if path != self._found:
                    path.unlink(missing_ok=True)
            if self._is_new:
                if (self.folder / MEMORIES).is_dir():
                    (self.folder / MEMORIES).rmdir()
                (self.folder / LOCK).unlink()
                self.folder.rmdir()

    def renew_own_code(self, prepared: Prepared) -> None:
        """A run that is resumed with other files (`--allow`) has those in its folder from then on,
        and says which it had before."""
        before = RecordedRun(self.folder).environment
        old, new = before.get("own_files", {}), prepared.own_hashes
        if not isinstance(old, dict) or old == new:
            return
        earlier = before.get("own_files_before", [])
        history = [*(earlier if isinstance(earlier, list) else []), *map(str, old.values())]
        renewed = {**prepared.own, "own_files": new, "own_files_before": history}
        self._write_json("environment.json", {**before, **renewed})
        self._copy_own_files(prepared)

    def _copy_own_files(self, prepared: Prepared) -> None:
        for name, file in prepared.own_files.items():
            with replacing(self.folder / name) as partial:
                partial.write_bytes(file.source)

    def plan_rounds(self, rounds: int) -> None:
        """Record another number of rounds. Until the new config is there, the run is as it was; a
        finished run has not finished any more."""
        tables = RecordedRun.open(self.folder).config
        summary = self.folder / SUMMARY
        if tables["federation"].get("rounds") == rounds and not summary.exists():
            return
        text = config.to_toml(config.merge(tables, {"federation": {"rounds": rounds}})) + "\n"
        with replacing(self.folder / "config.toml", durable=True) as partial:
            partial.write_text(text, encoding="utf-8", errors="surrogateescape")
            # A run that is killed here goes on from its checkpoint to the end that it had.
            summary.unlink(missing_ok=True)

    def round(self, row: RoundRow, clients: Sequence[ClientRow]) -> None:
        self._append("rounds.jsonl", [row])
        self._append("clients.jsonl", clients)

    def keep_update(self, round: int, update: ClientUpdate) -> None:
        tensors = together(weights=update.weights, upload=update.upload)
        path = self.folder / round_file(round, update.client)
        write_tensors(path, tensors, f"client {update.client}, round {round}")

    def finish(
        self,
        prepared: Prepared,
        models: Mapping[Kept, Tensors],
        summary: Summary,
        personal: Sequence[PersonalRow] = (),
    ) -> None:
        for which, weights in models.items():
            write_model(self.folder / MODEL_FILES[which], prepared, weights)
        if personal:
            write_whole(self.folder / PERSONAL_ROWS, _lines(personal))
        self._write_json(SUMMARY, summary.to_json())

    def synced_log_lengths(self) -> dict[str, int]:
        lengths = {}
        for name in LOGS:
            path = self.folder / name
            with storage(path), open_to_append(path, "ab") as stream:
                os.fsync(stream.fileno())
                lengths[name] = stream.tell()
        return lengths

    def truncate_logs(self, lengths: Mapping[str, int]) -> None:
        """Cut the logs back to these lengths; the rounds after that will be repeated."""
        for name in LOGS:
            path = self.folder / name
            wanted = lengths.get(name, 0)
            with storage(path), open_to_append(path, "ab") as stream:
                if stream.tell() < wanted:
                    raise CheckpointError(f"{path}: shorter than at the checkpoint")
                stream.truncate(wanted)

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        write_whole(self.folder / name, strict_json(value, indent=2) + "\n")

    def _append(self, name: str, rows: Iterable[Row]) -> None:
        path = self.folder / name
        with storage(path), open_to_append(path, "a") as stream:
            stream.write(_lines(rows))


def _lines(rows: Iterable[Row]) -> str:
    return "".join(strict_json(row.to_json()) + "\n" for row in rows)


def _environment(prepared: Prepared, run: str) -> dict[str, Any]:
    packages = ("dcfl", "torch", "numpy", "pydantic", "safetensors")
    placement, dataset = prepared.placement, prepared.data.dataset
    environment = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "device": placement.name,
        "gpus": torch.cuda.device_count(),
        "threads": prepared.experiment.engine.threads,
        "packages": {name: version(name) for name in packages},
        **prepared.own,
    }
    if prepared.experiment.engine.at_sites:
        environment["run"] = run  # by which a site finds what it has kept
    else:
        environment |= {"workers": len(placement.devices), "workers_because": placement.reason}
    if prepared.own_hashes:
        environment["own_files"] = prepared.own_hashes
    if dataset.users_own and len(dataset.train):  # identified by content
        environment["data"] = dataset.fingerprint[:16]
    if (groups := dataset.group_count) is not None:
        environment["groups"] = groups
    if dataset.broken:
        environment["broken_images"] = dataset.broken
    return environment
