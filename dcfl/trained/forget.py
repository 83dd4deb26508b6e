"""Exact unlearning: the run as it would be if one of its clients had never taken part.

Nothing is approximated: the rounds from the client's first one on are trained again without it. The
result has the bits of a new run with the client in `federation.without`, because a cohort that the
client was not in is drawn the same without it (`federation.sample_cohort`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dcfl.clock.state import ClockState
from dcfl.config import apply
from dcfl.errors import CheckpointError, ConfigError, RunFolderError
from dcfl.experiment import Experiment
from dcfl.models import FeatureModel
from dcfl.models.own_models import OwnModel
from dcfl.runs.checkpoints import Checkpoint, Checkpoints
from dcfl.runs.folder import RecordedRun, new_folder
from dcfl.runs.identity import of_run
from dcfl.runs.model_file import round_file
from dcfl.runs.run import Run
from dcfl.runs.start import Begun, Resumption
from dcfl.runs.trust import require_trust
from dcfl.system.json_types import Json


@dataclass(frozen=True)
class Forgetting:
    run: RecordedRun
    client: int

    def __post_init__(self) -> None:
        federation, privacy = self.run.experiment.federation, self.run.experiment.privacy
        folder, clients = self.run.folder, len(self.run.partition_counts)
        if self.run.at_sites:
            raise ConfigError(
                f"{folder} was trained at SuperNodes: have them train a new run without the site"
            )
        if not self.run.finished:
            raise RunFolderError(f"{folder} has not finished, and has no model that knows a client")
        if not 0 <= self.client < clients or self.client in federation.without:
            raise ConfigError(
                f"--client {self.client}: {folder} was trained by clients 0 to {clients - 1}"
                + (f" without {list(federation.without)}" if federation.without else "")
            )
        if privacy.active and privacy.secret:
            raise ConfigError(
                f"{folder}: its noise was secret and cannot be drawn again: train a new run with "
                f"federation.without=[{self.client}]"
            )

    @cached_property
    def first(self) -> int:
        """The round in which it was first asked; 0: it never was."""
        own = (row for row in self.run.each_client() if row.client == self.client)
        asked = [row.round - row.staleness for row in own]
        if clock := self._newest and self._newest.state.clock:  # of visits no row tells of yet
            asked += [one.round for one in clock.flights if one.client == self.client]
        elif self.run.experiment.clock.takes_stale and not asked:
            return 1  # perhaps: the last visits left no trace
        return min(asked, default=0)

    @cached_property
    def obstacle(self) -> str:
        """Why no round before that can be gone on from; empty if one can."""
        if not self._newest:
            return "no checkpoint is left that tells what a round needs beside its model"
        state = self._newest.state
        moved = state.clock not in (None, ClockState())  # time, or visits that are not over
        if self._newest.progress.memories or state.shared or state.slots or state.kept or moved:
            return "rounds of this run go on from more than the model, and that was not kept"
        if self.run.experiment.output.keep_best:
            return "with output.keep_best it takes all rounds to find the best"
        if self._kept or self.first == 1:
            return ""
        return "output.keep_every has kept no model of an earlier round"

    @cached_property
    def _newest(self) -> Checkpoint | None:
        try:
            found = Checkpoints(self.run.folder).recover_newest()
        except CheckpointError:
            return None
        return found[0] if found else None

    @property
    def _kept(self) -> int:
        rounds = range(self.first - 1, 0, -1)
        return next((n for n in rounds if (self.run.folder / round_file(n)).is_file()), 0)

    @property
    def start(self) -> int:
        """The round whose model is gone on from; 0: the initial weights."""
        return 0 if self.obstacle else self._kept

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.run.each_round() if row.round > self.start)

    @property
    def cost(self) -> str:
        last = len(self.run.rounds)
        if not self.first:
            return (
                f"client {self.client} was asked in none of the {last} rounds: the model is as if "
                f"it had never been there, and nothing is trained"
            )
        origin = f"the model of round {self.start}" if self.start else "the start"
        if self.obstacle:
            origin += f": {self.obstacle}"
        return (
            f"client {self.client} was first asked in round {self.first} of {last}; rounds "
            f"{self.start + 1} to {last} are trained again (they took {self.seconds:.0f} s), from "
            f"{origin}"
        )

    def to_json(self) -> Json:
        return {
            "client": self.client,
            "first_round": self.first,
            "from_round": self.start,
            "rounds": len(self.run.rounds) - self.start if self.first else 0,
            "seconds": self.seconds if self.first else 0.0,
        }

    def experiment(self, out: Path | None) -> Experiment:
        whole = self.run.experiment
        folder = out or new_folder(f"{self.run.folder.name}-without-{self.client}")
        without = tuple(sorted((*whole.federation.without, self.client)))
        return apply(whole, {"federation": {"without": without}, "output": {"dir": str(folder)}})

    def begin(
        self, out: Path | None, model: FeatureModel | OwnModel | None = None, trust: bool = False
    ) -> Run:
        """`model`: the run's module from Python, or what builds that."""
        if not trust:
            require_trust(self.run.folder, self.run.experiment)
        known = self._newest.progress.begun_with if self.start and self._newest else {}
        begun = Begun(self.run, self.start, known or of_run(self.run))
        return Run(self.experiment(out), None, model, resumption=Resumption(begun=begun))
