"""Compares recorded runs: means over seeds and paired differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import PurePath
from statistics import fmean, stdev
from typing import Any

from dcfl.data.settings import images_scored
from dcfl.evaluation import max_and_ema
from dcfl.runs.folder import RecordedRun
from dcfl.runs.identity import BUILT_IN, Settings, complete, differences, flat, of_kind
from dcfl.runs.rows import RoundRow
from dcfl.system.printable import printable


@dataclass(frozen=True)
class Outcome:
    """The result of a run so far. Accuracies are NaN before the end of the first round."""

    rounds: int
    max_accuracy: float
    ema_accuracy: float
    final_accuracy: float
    client_accuracy: float  # mean over clients, each on its own mix of classes
    max_client_accuracy: float
    ema_client_accuracy: float
    worst_decile_accuracy: float
    bytes_up: int
    bytes_down: int
    seconds: float

    @classmethod
    def of(cls, run: RecordedRun) -> Outcome:
        rows = run.rounds
        evaluated = [row for row in rows if row.accuracy is not None]
        last = evaluated[-1] if evaluated else None
        # Computed from the rounds, because older folders did not record these two.
        client_max, client_ema = max_and_ema(row.client_accuracy for row in evaluated)
        return cls(
            rounds=rows[-1].round if rows else 0,
            max_accuracy=_known(last, "max_accuracy"),
            ema_accuracy=_known(last, "ema_accuracy"),
            final_accuracy=_known(last, "accuracy"),
            client_accuracy=_known(last, "client_accuracy"),
            max_client_accuracy=math.nan if client_max is None else client_max,
            ema_client_accuracy=math.nan if client_ema is None else client_ema,
            worst_decile_accuracy=_known(last, "worst_decile_accuracy"),
            bytes_up=sum(row.bytes_up for row in rows),
            bytes_down=sum(row.bytes_down for row in rows),
            seconds=(run.summary and run.summary.seconds) or sum(row.seconds for row in rows),
        )


def _known(row: RoundRow | None, quantity: str) -> float:
    value: float | None = row[quantity] if row else None
    return math.nan if value is None else value


QUANTITIES = [field.name for field in fields(Outcome)]


@dataclass(frozen=True)
class Spread:
    """The mean of a few values and their sample standard deviation (None for a single value)."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        known = not any(map(math.isnan, values))  # stdev fails on NaN
        return cls(fmean(values), stdev(values) if len(values) > 1 and known else None, len(values))

    def __format__(self, sign: str) -> str:
        """Supports `f"{spread}"` and, with a sign in front, `f"{spread:+}"`."""
        deviation = "" if self.deviation is None else f" ± {self.deviation:.2f}"
        return f"{self.mean:{sign}.2f}{deviation}"


@dataclass(frozen=True)
class Group:
    """Runs of one method with the same settings, which differ only in their seeds."""

    label: str
    runs: tuple[RecordedRun, ...]

    @cached_property
    def counted(self) -> tuple[RecordedRun, ...]:
        """The finished runs, because partial ones would distort a mean; if none finished, all."""
        return tuple(run for run in self.runs if run.finished) or self.runs

    @cached_property
    def outcomes(self) -> dict[RecordedRun, Outcome]:
        return {run: Outcome.of(run) for run in self.counted}

    @property
    def seeds(self) -> int:
        return len(self._by_seed)

    @property
    def unfinished(self) -> bool:
        return not any(run.finished for run in self.runs)

    def spread(self, quantity: str) -> Spread:
        return Spread.of([getattr(outcome, quantity) for outcome in self.outcomes.values()])

    @cached_property
    def curve(self) -> list[float]:
        """Mean accuracy after each round that every counted run has reached."""
        curves = ([row.accuracy for row in run.rounds] for run in self.counted)
        means = []
        for values in zip(*curves, strict=False):
            known = [value for value in values if value is not None]
            if len(known) == len(values):
                means.append(fmean(known))
        return means

    def difference(self, reference: Group, quantity: str = "ema_accuracy") -> Spread | None:
        """This group minus the reference, seed by seed; None if they share no seed."""
        outcomes, references = self._by_seed, reference._by_seed
        differences = [
            getattr(outcomes[seed], quantity) - getattr(references[seed], quantity)
            for seed in outcomes
            if seed in references
        ]
        return Spread.of(differences) if differences else None

    def as_json(self, reference: Group) -> dict[str, Any]:
        """Plain values for programs; `gain` is the paired EMA difference to the reference."""
        spreads = {name: asdict(self.spread(name)) for name in QUANTITIES}
        gain = None if self is reference else self.difference(reference)
        return {"method": self.label, **spreads, "gain": gain and asdict(gain), "curve": self.curve}

    def _repr_html_(self) -> str:
        from dcfl.report.notebook_html import groups_html  # which knows groups itself

        return groups_html([self])

    @property
    def _by_seed(self) -> dict[tuple[Any, Any], Outcome]:
        return {_seeds(run): outcome for run, outcome in self.outcomes.items()}


def scored_on(groups: Iterable[Group]) -> str:
    """The images that the accuracies of these groups are about."""
    kinds = {images_scored(run.holdout) for group in groups for run in group.runs}
    return " or ".join(sorted(kinds))


def setting(run: RecordedRun, key: str) -> Any:
    """The setting with this dotted name; None if the run has no such setting."""
    section, _, name = key.partition(".")
    return run.config.get(section, {}).get(name)


def group_runs(runs: Sequence[RecordedRun]) -> list[Group]:
    """One group per method and settings, in order of first appearance.

    The label is the method's name plus the settings that tell its groups apart, as in a sweep.
    """
    members: list[tuple[Settings, list[RecordedRun]]] = []
    for run in runs:
        settings = _results(run)
        similar = (alike for first, alike in members if not differences(first, settings, "result"))
        same = next(similar, None)
        if same is None:
            members.append((settings, [run]))
        else:
            same.append(run)
    firsts = [first for first, _ in members]
    return [Group(_label(first, firsts), tuple(alike)) for first, alike in members]


def runs_by_partition(runs: Iterable[RecordedRun]) -> dict[str, list[RecordedRun]]:
    by_partition: dict[str, list[RecordedRun]] = {}
    for run in runs:
        if run.partition_sha256:
            by_partition.setdefault(run.partition_sha256, []).append(run)
    return by_partition


def each_seed_has_one_partition(runs: Iterable[RecordedRun]) -> bool:
    pairs = {(_seeds(run), run.partition_sha256) for run in runs}
    return len(pairs) == len({seeds for seeds, _ in pairs})


def _seeds(run: RecordedRun) -> tuple[Any, ...]:
    return tuple(of_kind(complete(flat(run.config)), "seed").values())


def _results(run: RecordedRun) -> Settings:
    """The settings that change numbers. If the run recorded it, the content of the user's own
    images replaces their path, and the source of the user's own code and the hash of the initial
    weights are added."""
    settings = of_kind(complete(flat(run.config)), "result")
    kind, colon, path = str(settings["data.dataset"]).partition(":")
    content = run.environment.get("data")
    if colon and content and not settings["data.holdout"]:  # a holdout differs with every seed
        settings["data.dataset"] = f"{kind}:{PurePath(path).name} ({content})"
    for code in ("method", "model"):
        source = run.environment.get(code, BUILT_IN)
        if source != BUILT_IN:
            settings[f"{code}.source"] = source
    if weights := run.environment.get("weights"):
        settings["model.weights.sha256"] = str(weights)[:16]
    return settings


def _label(settings: Settings, groups: Sequence[Settings]) -> str:
    """Compares the method's fields with groups of that method, other settings with all groups."""
    name = settings.get("method.name")
    different = {
        key
        for group in groups
        for key, _, _ in differences(settings, group, "result")
        if not key.startswith("method.") or group.get("method.name") == name
    }
    distinguishing = [
        f"{key.removeprefix('method.')}={_plain(value)}"
        for key, value in settings.items()
        if key in different
    ]
    return printable(" ".join([str(name), *distinguishing]))


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
