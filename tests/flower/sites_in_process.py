"""Whole runs at sites with pictures and node configs of their own, without a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from PIL import Image

from dcfl.config import as_tables, experiment_from, to_toml
from dcfl.engines.engine import Session
from dcfl.experiment import Experiment
from dcfl.flower.audit_log import AuditLog, History
from dcfl.flower.client_app import app
from dcfl.flower.engine import GridEngine
from dcfl.flower.roster import Roster
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run
from tests.flower.in_process import InProcessGrid

SHADES = ("dark", "light")
RUN = "a" * 32


def pictures(folder: Path, dark: int, light: int) -> Path:
    """Noise in two shades; every fifth of each is a test picture."""
    rng = np.random.default_rng(0)
    for shade, count in zip(SHADES, (dark, light), strict=True):
        (folder / shade).mkdir(parents=True)
        for number in range(count):
            noise = rng.integers(0, 128, (8, 8, 3)) + 127 * (shade == "light")
            Image.fromarray(noise.astype(np.uint8)).save(folder / shade / f"{number:03d}.png")
    return folder


def remote_experiment(out: Path, **changes: Any) -> Experiment:
    tables = {
        "data.dataset": "remote",
        "data.clients": 2,
        "data.class_names": list(SHADES),
        "data.image_size": 8,
        "model.name": "cnn",
        "model.norm": "group",
        "method.name": "fedavg",
        "training.epochs": 1,
        "training.batch_size": 8,
        "federation.rounds": 2,
        "federation.participation": 1.0,
        "engine.name": "flower",
        "output.dir": str(out),
        "output.report": False,
    }
    nested: dict[str, dict[str, Any]] = {}
    for key, value in {**tables, **{k.replace("__", "."): v for k, v in changes.items()}}.items():
        table, _, name = key.partition(".")
        nested.setdefault(table, {})[name] = value
    return experiment_from(None, nested)


@dataclass
class Sites:
    """Two, each with a folder of pictures and rules."""

    folders: Sequence[Path]
    rules: Sequence[dict[str, Any]] = ({}, {})
    replies: list[Message] = field(default_factory=list)

    def node(self, place: int) -> dict[str, Any]:
        folder = self.folders[place]
        own = {"data": f"folder:{folder}", "memories": str(folder.parent / f"kept-{folder.name}")}
        number = {"partition-id": place, "num-partitions": len(self.folders)}
        return {**number, **own, **self.rules[place]}

    def train(self, experiment: Experiment) -> RecordedRun:
        run = Run(experiment, connect=self._connect)
        for _ in run.rounds():
            pass
        return RecordedRun.open(run.folder)

    @contextmanager
    def _connect(self, session: Session) -> Iterator[GridEngine]:
        text = to_toml(as_tables(session.experiment))
        grid = InProcessGrid(app, len(self.folders), {"experiment": text})
        for place, context in enumerate(grid.contexts.values()):
            context.node_config.update(self.node(place))
        grid.tamper = self._seen
        self.grid(grid)
        yield GridEngine(session, grid, Roster(len(self.folders)))

    def grid(self, grid: InProcessGrid) -> None:
        """Change it before it is used."""

    def _seen(self, reply: Message) -> Message:
        self.replies.append(reply)
        return reply

    def history(self, place: int) -> History:
        return AuditLog(Path(self.node(place)["memories"]) / "audit.jsonl").read()
