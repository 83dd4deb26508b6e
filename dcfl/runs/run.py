"""One experiment from beginning to end: prepare, federate, evaluate, record."""

from __future__ import annotations

import re
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints
from uuid import uuid4

import torch
from torch import Tensor

from dcfl import tensors as named
from dcfl.config import CHOICES, Tables, apply, load_experiment
from dcfl.data import Dataset, DataSettings, load_dataset
from dcfl.engines.engine import Connect, Engine, Session
from dcfl.engines.memories import Index
from dcfl.engines.placement import Placement, place
from dcfl.engines.runner import client_runner, expected_upload, reproducible, two_images
from dcfl.errors import (
    CheckpointError,
    ClientFailure,
    ClientLost,
    ConfigError,
    DCFLError,
    Interrupted,
    RunFolderError,
    TooFewClients,
    require,
)
from dcfl.evaluation import Evaluation, ema, fairness, max_and_ema, own_mix_accuracies
from dcfl.experiment import Experiment
from dcfl.federation import Round, cohort_size, federate
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.models import FeatureModel, ModelSettings
from dcfl.report import write_report
from dcfl.runs.checkpoints import Checkpoint, Checkpoints, Facts
from dcfl.runs.connect import connect
from dcfl.runs.fingerprint import fingerprint, own_code, require_same
from dcfl.runs.folder import RecordedRun, Row, require_own, used
from dcfl.runs.prepare import privacy_spent, resolved
from dcfl.runs.recorder import Recorder
from dcfl.server import ClientReport, Server, ServerState

TOTALS = ("bytes_up", "bytes_down", "sampled", "ok", "failed", "late", "rejected", "dropped")
OWN_MIXES = (
    *("client_accuracy", "max_client_accuracy", "ema_client_accuracy"),
    "worst_decile_accuracy",
)
MEMORIES = "memories"  # of clients: a folder in the run's
CHECKPOINT_SECONDS = 10.0  # between two checkpoints, if it is for us to choose
LONGEST_NAME = 200  # bytes of a folder's name beside the time; file systems allow some 255
EMPTY_ROUNDS = 3  # so many in a row without one usable reply end a run


@dataclass(frozen=True)
class Result:
    """What a run ends with."""

    folder: Path
    summary: Row  # as in summary.json
    rounds: list[Row]  # as in rounds.jsonl
    weights: Tensors
    model: FeatureModel  # with these weights, in evaluation mode


class Trained(NamedTuple):
    """A round whose clients are done, and whose evaluation may not be."""

    round: Round
    seconds: float
    kept: Index | None  # by clients, if the round gets a checkpoint


class RoundAbandoned(Exception):
    """The run is being stopped, and its clients' processes are going with it."""


@dataclass(frozen=True)
class Stoppable:
    """An engine's clients, who may be lost to a signal that reached all processes of a run: a round
    without them would be another one than that of a run that nobody stops."""

    engine: Engine
    stopping: Callable[[], bool]

    def run(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        for reply in self.engine.run(broadcast, cohort):
            if isinstance(reply, ClientLost) and self.stopping():
                raise RoundAbandoned
            yield reply

    def settle(self, accepted: Collection[int]) -> None:
        self.engine.settle(accepted)


class Run:
    """An experiment made ready: `for row in run.rounds()` trains it, `run.result()` is the outcome.

    Nothing is written before everything that can be refused has been looked at.
    """

    def __init__(
        self,
        experiment: Experiment,
        dataset: Dataset | None = None,
        model: FeatureModel | None = None,
        connect: Connect = connect,
        again: Recorder | None = None,
        allow: Collection[str] = (),
    ) -> None:
        """`connect` to clients: by default to the engine that the config names. `again` and
        `allow`: see `resume`."""
        experiment = experiment.seeded
        dataset = dataset or load_dataset(experiment.data)
        partition = experiment.data.split(dataset)
        if experiment.data.clients not in (len(partition), DataSettings().clients):
            warnings.warn(
                f"data.clients = {experiment.data.clients} is not used: "
                f"the data comes as {len(partition)} sites",
                stacklevel=2,
            )
        self.experiment = resolved(experiment, dataset, partition)
        self._own_model = model is not None
        self._runner = client_runner(self.experiment, dataset, partition, model)
        self.model, self.data = self._runner.model, self._runner.data
        self._placement = self._placed()
        self._connect = connect
        self.id = uuid4().hex
        self.rows: list[Row] = []
        self._summary: Row = {}
        self._stopping, self._dropped = False, 0
        self._again = 0  # rounds that were done a second time
        # Now: a file may be edited while the run goes on.
        self._code = own_code(self.experiment.method, model)
        self._state = ServerState(0, named.snapshot(self.model), {}, {})
        self._index: Index = {}
        self._seconds = 0.0  # before this process took it up
        self._recorder = again or Recorder(folder_for(experiment, dataset.name))
        self._recorder.site_names = dataset.site_names
        self._checkpoints = Checkpoints(self.folder)
        try:
            if not (again and self._take_up(allow)):
                self._recorder.start(
                    self.experiment, dataset, partition, self._placement, self._code
                )
        except BaseException:
            self._recorder.close()
            raise

    @classmethod
    def resume(
        cls,
        folder: Path,
        dataset: Dataset | None = None,
        model: FeatureModel | None = None,
        connect: Connect = connect,
        allow: Collection[str] = (),
    ) -> Run:
        """A run that did not end, from its newest checkpoint. `allow` keys in which it may differ
        from how it was begun."""
        recorded = RecordedRun.open(folder)
        require_own(folder / MEMORIES)
        recorder = Recorder(folder, again=True)
        try:
            if recorded.summary:
                _tidy(folder)  # it may have been killed right before it did
                raise RunFolderError(f"{folder}: the run has ended, there is nothing to resume")
            return cls(recorded.experiment, dataset, model, connect, recorder, allow)
        except BaseException:
            recorder.close()
            raise

    def _take_up(self, allow: Collection[str]) -> bool:
        """From the newest checkpoint; False: there is none yet, so from the beginning."""
        found = self._checkpoints.newest()
        if found is None:
            self._recorder.cut({})
            return False
        (state, facts), damaged = found
        require_same(facts.begun_with, self._begun_with, allow)
        rounds = self.experiment.federation.rounds
        require(
            facts.round <= rounds,
            f"federation.rounds = {rounds}, and the run has done {facts.round} already",
        )
        for what in damaged:
            warnings.warn(f"{what}; going on from round {facts.round}", stacklevel=3)
        self._checkpoints.drop_after(facts.round)
        # Done twice: the rounds that have a row, and perhaps two that were under way.
        lost = len(RecordedRun.open(self.folder).rounds) - facts.round
        self._again = facts.again + lost + 2
        self._recorder.cut(facts.lengths)
        self.rows = RecordedRun.open(self.folder).rounds
        if [row["round"] for row in self.rows if row["accuracy"] is not None] != [
            *range(1, facts.round + 1)
        ]:
            raise CheckpointError(f"{self.folder / 'rounds.jsonl'}: a row is not as it was written")
        self.id, self._state, self._index = facts.run, state, facts.index
        self._seconds = facts.seconds
        return True

    def stop(self) -> None:
        """Finish the round, write a checkpoint, and end with Interrupted."""
        self._stopping = True

    def _placed(self) -> Placement:
        """Choose the processes and devices."""
        engine, federation = self.experiment.engine, self.experiment.federation
        return place(
            engine.workers,
            engine.threads,
            engine.device,
            cohort_size(self.experiment.data.clients, federation.participation),
            self.model,
            two_images(self.data.dataset),
            self.experiment.training.batch_size,
        )

    @cached_property
    def _begun_with(self) -> dict[str, Any]:
        """Hashes all images, so not before there is a checkpoint to write or to compare with."""
        device = self._placement.devices[0]
        return fingerprint(self.experiment, self.data, self._code, device)

    @property
    def workers(self) -> str:
        """How many processes train, and why so many."""
        count, name = len(self._placement.devices), self.experiment.engine.name
        if name == "flower":
            return "SuperNodes"
        if name == "flower-simulation":
            return f"Flower's simulation, {count} Ray actors ({self._placement.reason})"
        where = "clients train in this process" if count == 1 else f"{count} worker processes"
        return f"{where} ({self._placement.reason})"

    @property
    def folder(self) -> Path:
        return self._recorder.folder

    def rounds(self) -> Generator[Row]:
        """Train, evaluate and record, one row of rounds.jsonl at a time."""
        try:
            yield from self._rounds()
        finally:
            self._recorder.close()

    def _rounds(self) -> Generator[Row]:
        experiment, self._began = self.experiment, time.perf_counter()
        self._mixes = self.data.label_mixes()
        self._server = Server(
            experiment.method,
            experiment.data.clients,
            frozenset(name for name, _ in self.model.named_parameters()),
            experiment.training,
            experiment.server,
            experiment.federation.minimum_replies,
            expected_upload(self._runner),
        )
        federation = experiment.federation
        session = Session(
            self.id,
            experiment,
            self._runner,
            self._placement,
            self.folder / MEMORIES,
            self._index,
            self._checkpoints.indexes,
        )
        with reproducible(experiment.engine.threads), self._connect(session) as engine:
            mark = self._saved_at = time.perf_counter()
            last: Trained | None = None  # and perhaps still being evaluated
            rounds = federate(
                self._server,
                Stoppable(engine, lambda: self._stopping),
                self._state,
                federation.rounds,
                federation.participation,
                federation.seed,
            )
            while (round := self._next(rounds, engine, last)) is not None:
                seconds = time.perf_counter() - mark
                if last is not None:
                    yield self._record(engine, last)
                last = Trained(round, seconds, self._save(engine, round))
                self._state = round.state
                engine.begin_evaluation(round.state.weights)
                if not engine.overlaps:
                    yield self._record(engine, last)
                    last = None
                mark = time.perf_counter()
            if last is not None:
                yield self._record(engine, last)
            if self._state.round < federation.rounds:
                self._end_early(engine)
        self._finish(self._state)

    def _save(self, engine: Engine, round: Round) -> Index | None:
        """Begin a checkpoint, if one is due: what clients keep is written while the next round
        runs. With "auto" a run that is killed loses some seconds, and none is slowed down by it."""
        every = self.experiment.output.checkpoint
        now = time.perf_counter()
        if every == "auto":
            due = now - self._saved_at > CHECKPOINT_SECONDS
        else:
            due = every > 0 and round.state.round % every == 0
        if not (due or (self._stopping and every)):
            return None
        self._saved_at = now
        return engine.memories.save()

    def _commit(self, engine: Engine, state: ServerState, index: Index) -> None:
        """Write the checkpoint: everything that it names is on the disk before it is."""
        engine.memories.saved()
        facts = Facts(
            run=self.id,
            round=state.round,
            seconds=self._elapsed(),
            accuracy=self.rows[-1]["accuracy"],
            memories={str(client): round for client, round in index.items()},
            lengths=self._recorder.lengths(),
            begun_with=self._begun_with,
            again=self._again,
        )
        engine.memories.keep_only(self._checkpoints.write(Checkpoint(state, facts)))

    def _elapsed(self) -> float:
        return self._seconds + time.perf_counter() - self._began

    def _end_early(self, engine: Engine) -> None:
        """Somebody has asked for it."""
        where = f"after round {self._state.round} of {self.experiment.federation.rounds}"
        if not self.experiment.output.checkpoint or not self.rows:
            raise Interrupted(f"stopped {where}")
        self._commit(engine, self._state, engine.memories.save())
        raise Interrupted(f"stopped {where}; `dcfl resume {self.folder}` goes on")

    def _next(self, rounds: Iterator[Round], engine: Engine, last: Trained | None) -> Round | None:
        """Train a round. If that fails, the one before, which may not be evaluated yet, is still
        worth its row."""
        if self._stopping:
            return None
        try:
            return next(rounds, None)
        except RoundAbandoned:
            engine.settle(())  # as before the round
            return None
        except Exception:
            if last is not None:
                with suppress(DCFLError):
                    self._record(engine, last)
            raise

    def _record(self, engine: Engine, trained: Trained) -> Row:
        """End the round's evaluation, write its row, and its checkpoint if it gets one."""
        round, seconds, kept = trained
        began = time.perf_counter()
        result = engine.end_evaluation()
        waited = time.perf_counter() - began
        row, own = self._row(round, result, engine.own_accuracies, seconds, waited)
        row["dropped"] = engine.dropped - self._dropped
        self._dropped = engine.dropped
        row |= engine.remarks()
        self.rows.append(row)
        self._recorder.round(row, round.clients, own)
        if kept is not None:
            self._commit(engine, round.state, kept)
        self._give_up_if_alone(round)
        return row

    def _row(
        self,
        round: Round,
        result: Evaluation,
        own: Tensor | None,
        training: float,
        evaluating: float,
    ) -> tuple[Row, list[float | None]]:
        """The row, and the model's accuracy on each sampled client's own images, or if those are
        not known on its own mix of classes."""
        accuracy, loss, by_class = result
        if own is None:
            own = own_mix_accuracies(by_class, self._mixes)
        mean, worst = fairness(own)
        ok = [client for client in round.clients if client.outcome == "ok"]
        steps = sum(client.num_steps for client in ok)
        total = sum(client.metrics.get("loss", 0.0) * client.num_steps for client in ok)
        before = self.rows[-1:]
        own_max, own_ema = max_and_ema([*(row.get("client_accuracy") for row in self.rows), mean])
        row = {
            "round": round.state.round,
            "accuracy": accuracy,
            "max_accuracy": max([accuracy, *(row["max_accuracy"] for row in before)]),
            "ema_accuracy": ema([*(row["ema_accuracy"] for row in before), accuracy]),
            "client_accuracy": mean,
            "max_client_accuracy": own_max,
            "ema_client_accuracy": own_ema,
            "worst_decile_accuracy": worst,
            "loss": loss,
            "train_loss": total / steps if steps else None,
            "seconds": training + evaluating,
            "evaluation_seconds": evaluating,  # that were waited for
            **_replies(round.clients),
        }
        sampled = own[[client.client for client in round.clients]].tolist()
        return row, [value if isfinite(value) else None for value in sampled]

    def _give_up_if_alone(self, round: Round) -> None:
        last = self.rows[-EMPTY_ROUNDS:]
        if len(last) == EMPTY_ROUNDS and not any(map(used, last)):
            wanted = self._server.wanted(last[-1]["ok"])
            lost = next(client for client in reversed(round.clients) if client.outcome != "ok")
            few = (
                "no client has given" if wanted == 1 else f"fewer than {wanted} clients have given"
            )
            raise TooFewClients(
                f"{few} a usable reply for {EMPTY_ROUNDS} rounds "
                f"(client {lost.client}: {lost.reason}); "
                f"the rounds so far are in {self.folder}"
            )

    def _finish(self, state: ServerState) -> None:
        experiment, dataset, last = self.experiment, self.data.dataset, self.rows[-1]
        # Rows of a run that goes on need not have all keys: see formats.RoundRow.
        totals = {key: sum(row.get(key, 0) for row in self.rows) for key in TOTALS}
        if not any(map(used, self.rows)):
            raise TooFewClients(
                f"no round had enough usable replies; the rounds are in {self.folder}"
            )
        self._summary = {
            "method": experiment.method.name,
            "dataset": dataset.name,
            "rounds": last["round"],
            "max_accuracy": last["max_accuracy"],
            "ema_accuracy": last["ema_accuracy"],
            "final_accuracy": last["accuracy"],
            **{key: last.get(key) for key in OWN_MIXES},
            "seconds": self._elapsed(),
            **totals,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "clients": experiment.data.clients,
            "seed": experiment.federation.seed,
            "partition_sha256": self.data.partition.sha256,
            "weights_sha256": named.sha256(state.weights),
            **privacy_spent(experiment, last["round"], self._again),
        }
        shape: Row = {
            "channels": dataset.channels,
            "size": dataset.size,
            "classes": dataset.classes,
            "class_names": dataset.class_names,
            "mean": dataset.preparation.mean,
            "std": dataset.preparation.std,
        }
        if not self._own_model:
            shape["settings"] = asdict(experiment.model)
        self._recorder.finish(state.weights, shape, self._summary)
        _tidy(self.folder)
        self._weights = state.weights
        self.model.load_state_dict(state.weights)

    def result(self) -> Result:
        """After the last round."""
        return Result(self.folder, self._summary, self.rows, self._weights, self.model.eval())


def _replies(clients: Sequence[ClientReport]) -> Row:
    """What was sent, and what became of it."""
    outcomes = ("ok", "failed", "late", "rejected")
    return {
        "bytes_up": sum(client.bytes_up for client in clients),
        "bytes_down": sum(client.bytes_down for client in clients),
        "sampled": len(clients),
        **{name: sum(client.outcome == name for client in clients) for name in outcomes},
        "used": sum(client.used for client in clients),  # 0: the model stayed as it was
    }


def run(
    experiment_or_path: Experiment | str | Path | None = None,
    *,
    out: str | Path | None = None,
    dataset: Dataset | None = None,
    model: FeatureModel | ModelSettings | Mapping[str, Any] | str | None = None,
    **overrides: Any,
) -> Result:
    """Train one federation and write its run folder, as `dcfl run` does.

    `experiment_or_path` is an Experiment, a config file or nothing: the built-in digits, DCFL-PW.
    Overrides name tables or dotted keys:

        dcfl.run("configs/digits.toml", method="fedavg", federation={"rounds": 20})
        dcfl.run(method=MyMethod(mu=0.5), model="resnet18", **{"training.lr": 0.05})

    `model` may also be a module of your own; a copy of it is trained.
    """
    own = model if isinstance(model, torch.nn.Module) else None
    if model is not None and own is None:
        overrides["model"] = model
    if out is not None:
        overrides["output.dir"] = str(out)
    run = Run(with_overrides(experiment_or_path, overrides), dataset, own)
    for _ in run.rounds():
        pass
    write_report(run.folder)
    return run.result()


def with_overrides(
    source: Experiment | str | Path | None, overrides: Mapping[str, Any]
) -> Experiment:
    """Overrides as `run` takes them: whole settings objects first, then single values on top."""
    tables: Tables = {}
    whole: dict[str, Any] = {}
    kinds = get_type_hints(Experiment)
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        if name:
            tables.setdefault(section, {})[name] = value
        elif isinstance(value, Mapping):
            tables.setdefault(section, {}).update(value)
        elif isinstance(value, str):
            chooser, _ = CHOICES.get(section, ("name", ""))
            tables.setdefault(section, {})[chooser] = value
        elif section in kinds and isinstance(value, kinds[section]):
            whole[section] = value
        else:
            raise ConfigError(
                f"{section} = {value!r}: give the settings of a table of the config, as a dict, "
                f"a name or a settings object ({', '.join(kinds)})"
            )
    on_top = {name: tables.pop(name) for name in whole if name in tables}
    return apply(replace(load_experiment(source, tables), **whole), on_top)


def _tidy(folder: Path) -> None:
    """The run has ended: nothing goes on from what is left of its rounds."""
    Checkpoints(folder).clear()
    shutil.rmtree(folder / MEMORIES, ignore_errors=True)


def folder_for(experiment: Experiment, dataset: str) -> Path:
    if experiment.output.dir:
        return Path(experiment.output.dir)
    return new_folder(f"{dataset}-{experiment.method.name}")


def new_folder(name: str) -> Path:
    """A folder below runs/ that does not exist yet, named after the time and `name`."""
    short = re.sub(r":.*[/\\]", "-", name)  # folder:/some/where would be several folders
    plain = re.sub(r"[^\w.-]+", "-", short).encode()[-LONGEST_NAME:].decode(errors="ignore")
    stamped = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{plain}"
    numbered = (stamped.with_name(f"{stamped.name}-{count}") for count in range(2, 10_000))
    return next(path for path in chain([stamped], numbered) if not path.exists())
