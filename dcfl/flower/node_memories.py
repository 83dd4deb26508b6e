"""What a node keeps on its disk: what its clients remember, the weights that no message of a round
has and, while a round lasts, the secrets of its secure aggregation.

Memories are keyed by run, client and round: a resumed round asks for the memory from before it.
Older ones are removed.
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from torch import Tensor

from dcfl.data.datasets import Images
from dcfl.data.identical import TRAINED_ON, write_digests
from dcfl.engines.memories import read_memory
from dcfl.errors import CheckpointError, ProtocolError
from dcfl.flower.codec import Task
from dcfl.messages import Tensors
from dcfl.system.storage import private_folder, read_data, storage, sync_folder, write_whole
from dcfl.system.tensor_files import write_tensors

KEPT_RUNS = 3  # beside the one that begins: a killed run never says that it has ended
KEPT_PERSONAL = 16  # runs that have left a personal part here, which the site may still want
UNSENT = "unsent.safetensors"
RUN_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class NodeMemories:
    folder: Path

    def load(self, task: Task) -> dict[str, Tensor] | None:
        """What the client kept in the round that the task names; None if that is lost."""
        if not task.memory_round:
            return {}
        try:
            path = self._path(task, task.memory_round)
            return read_memory(path, _owner(task, task.memory_round))
        except CheckpointError:
            return None

    def save(self, task: Task, memory: Tensors) -> None:
        """The client's memory after the task's round; removes those that nobody will ask for."""
        if not memory:
            return
        path = self._path(task, task.round)
        with storage(path):
            self._make_folder(task.run)
            path.parent.mkdir(exist_ok=True)
            write_tensors(path, memory, _owner(task, task.round), private=True)
            # Not newer ones: a late message may be handled after a newer one.
            for old in path.parent.glob("round-*.safetensors"):
                number = old.stem.removeprefix("round-")
                if number.isdecimal() and int(number) < task.oldest_round:
                    with suppress(OSError):
                        old.unlink()

    def keep_digests(self, task: Task, images: Images) -> None:
        """Of what the client is trained on, beside its memory, for `dcfl flower personal`."""
        folder = self._path(task, task.round).parent
        if folder.is_dir() and not (folder / TRAINED_ON).is_file():
            with storage(folder):
                write_digests(folder, images, "")

    def save_unsent(self, run: str, weights: Tensors) -> None:
        path = self._run(run) / UNSENT
        with storage(path):
            self._make_folder(run)
            write_tensors(path, weights, run, private=True)

    def load_unsent(self, run: str) -> dict[str, Tensor]:
        """What came when the node joined the run; CheckpointError if it is lost."""
        return read_memory(self._run(run) / UNSENT, run)

    def keep_secrets(self, task: Task, text: str) -> None:
        """What the client needs for its next step of secure aggregation."""
        path = self._secrets(task)
        with storage(path):
            self._make_folder(task.run)
            write_whole(path, text, durable=True, private=True)

    def take_secrets(self, task: Task) -> bytes:
        """And nobody takes them again; empty if somebody has."""
        path = self._secrets(task)
        taken = path.with_name(f"{path.name}.{token_hex(8)}")
        with suppress(FileNotFoundError):
            path.rename(taken)
            sync_folder(path.parent)
            with storage(taken):
                text = read_data(taken)
                taken.unlink()
            return text
        return b""

    def _secrets(self, task: Task) -> Path:
        return self._run(task.run) / f"secrets-{task.client:06d}.json"

    def _make_folder(self, run: str) -> None:
        if not self._run(run).is_dir():
            self._make_room()
            self.folder.mkdir(parents=True, exist_ok=True)
            private_folder(self._run(run))  # memories may reveal something of the images

    def _path(self, task: Task, round: int) -> Path:
        return self._run(task.run) / f"client-{task.client:06d}" / f"round-{round:06d}.safetensors"

    def _run(self, run: str) -> Path:
        if not RUN_NAME.fullmatch(run):  # it becomes a path on this disk
            raise ProtocolError("a run without a proper name")
        return self.folder / run

    def forget(self, run: str) -> None:
        """Remove what is kept of a run that has ended."""
        shutil.rmtree(self._run(run), ignore_errors=True)

    def _make_room(self) -> None:
        runs = [path for path in self.folder.glob("*") if RUN_NAME.fullmatch(path.name)]
        runs.sort(key=lambda path: path.stat().st_mtime)
        personal = [run for run in runs if any(run.glob(f"*/{TRAINED_ON}"))]
        others = [run for run in runs if run not in personal]
        for own, most in ((personal, KEPT_PERSONAL), (others, KEPT_RUNS)):
            for old in own[: max(0, len(own) - most)]:
                shutil.rmtree(old, ignore_errors=True)


def _owner(task: Task, round: int) -> str:
    return f"{task.run}, client {task.client}, round {round}"
