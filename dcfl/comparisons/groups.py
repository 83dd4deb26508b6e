"""Recorded runs grouped by method and task, with means over their seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, partial
from pathlib import PurePath
from statistics import fmean
from typing import Any

from dcfl.comparisons.pairs import Spread
from dcfl.comparisons.space import plain
from dcfl.data.settings import images_scored
from dcfl.runs.folder import RecordedRun
from dcfl.runs.identity import (
    BUILT_IN,
    CONTENTS,
    Identity,
    across_seeds,
    complete,
    differences,
    flat,
    of_kind,
)
from dcfl.runs.rows import Row
from dcfl.system.wording import printable

Seeds = tuple[Any, ...]  # the values of all settings that are seeds
AUGMENTATION = ("data.crop", "data.flip", "data.rotation", "data.cutout")  # a choice, no task


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
    personal_accuracy: float  # mean over the clients' own models; NaN if there are none
    bytes_up: float  # whole numbers, or NaN
    bytes_down: float
    seconds: float

    @classmethod
    def of(cls, run: RecordedRun) -> Outcome:
        rows = run.rounds
        last = next((row for row in reversed(rows) if row.accuracy is not None), None)
        return cls(
            rounds=rows[-1].round if rows else 0,
            max_accuracy=_known(last, "max_accuracy"),
            ema_accuracy=_known(last, "ema_accuracy"),
            final_accuracy=_known(last, "accuracy"),
            client_accuracy=_known(last, "client_accuracy"),
            max_client_accuracy=_known(last, "max_client_accuracy"),
            ema_client_accuracy=_known(last, "ema_client_accuracy"),
            worst_decile_accuracy=_known(last, "worst_decile_accuracy"),
            personal_accuracy=_known(run.summary, "personal_accuracy"),
            bytes_up=sum(row.bytes_up for row in rows),
            bytes_down=sum(row.bytes_down for row in rows),
            seconds=(run.summary and run.summary.seconds) or sum(row.seconds for row in rows),
        )


def _known(row: Row | None, quantity: str) -> float:
    value: float | None = row[quantity] if row else None
    return math.nan if value is None else value


QUANTITIES = [field.name for field in fields(Outcome)]
MOST_FREQUENT = "most frequent"  # beside those of federation.baseline
OF_A_GLOBAL_MODEL = [
    f"{kind}_{what}" for kind in ("max", "ema") for what in ("accuracy", "client_accuracy")
]


def baseline_of(run: RecordedRun) -> str:
    """What the run is there to be compared with; empty: it is a method's."""
    kind = setting(run, "federation.baseline")
    return "" if kind in (None, "none") else str(kind)


def baseline_words(kind: str, run: RecordedRun) -> str:
    client = "site" if setting(run, "data.partition") == "given" else "client"
    return {
        "alone": f"baseline: each {client} alone",
        "pooled": "baseline: all data in one place",
        MOST_FREQUENT: "baseline: the most frequent class",
    }.get(kind, f"baseline: {kind}")


def baseline_outcome(kind: str, run: RecordedRun) -> Outcome:
    """What a baseline has of an outcome; NaN is the rest, such as what it would send."""
    outcome, summary = replace(Outcome.of(run), bytes_up=math.nan, bytes_down=math.nan), run.summary
    if kind == "pooled":
        return outcome
    nothing: dict[str, Any] = dict.fromkeys(OF_A_GLOBAL_MODEL, math.nan)
    outcome = replace(outcome, **nothing)
    if kind == "alone":  # what is each client's own is its model too
        return replace(
            outcome,
            final_accuracy=math.nan,
            client_accuracy=_known(summary, "personal_accuracy"),
            worst_decile_accuracy=_known(summary, "worst_decile_personal_accuracy"),
        )
    return replace(
        outcome,
        final_accuracy=_known(summary, "most_frequent_accuracy"),
        client_accuracy=_known(summary, "most_frequent_client_accuracy"),
        worst_decile_accuracy=_known(summary, "worst_decile_most_frequent_accuracy"),
        personal_accuracy=math.nan,
        seconds=math.nan,
    )


@dataclass(frozen=True)
class Group:
    """Runs of one method with the same settings, which differ only in their seeds."""

    method: str  # its name, and the settings that tell its groups apart
    runs: tuple[RecordedRun, ...]
    task: str = ""  # the data and its split, if there are several
    baseline: str = ""  # what kind of one it is; empty: a method

    @property
    def label(self) -> str:
        return " ".join(filter(None, (self.method, self.task)))

    @cached_property
    def counted(self) -> tuple[RecordedRun, ...]:
        """The finished runs, because partial ones would distort a mean; if none finished, all. A
        run that two folders hold, copied or trained twice to the same end, counts once."""
        firsts: dict[object, RecordedRun] = {}
        for run in [run for run in self.runs if run.finished] or self.runs:
            firsts.setdefault(_end_of(run), run)
        return tuple(firsts.values())

    @cached_property
    def outcomes(self) -> dict[RecordedRun, Outcome]:
        of = partial(baseline_outcome, self.baseline) if self.baseline else Outcome.of
        return {run: of(run) for run in self.counted}

    @property
    def seeds(self) -> int:
        return len({seeds_of(run) for run in self.counted})

    @property
    def copies(self) -> bool:
        """Whether several folders hold the same run."""
        return len({_end_of(run) for run in self.runs}) < len(self.runs)

    @property
    def unfinished(self) -> bool:
        return not any(run.finished for run in self.runs)

    @property
    def has_personal(self) -> bool:
        """Whether clients have models of their own."""
        return any(not math.isnan(one.personal_accuracy) for one in self.outcomes.values())

    def spread(self, quantity: str) -> Spread:
        return Spread.of([getattr(outcome, quantity) for outcome in self.outcomes.values()])

    @cached_property
    def curve(self) -> list[float]:
        """Mean accuracy after each round that every counted run has reached; empty where there is
        no global model."""
        if self.baseline not in ("", "pooled"):
            return []
        curves = ([row.accuracy for row in run.rounds] for run in self.counted)
        means = []
        for values in zip(*curves, strict=False):
            known = [value for value in values if value is not None]
            if len(known) == len(values):
                means.append(fmean(known))
        return means

    def scores(self, quantity: str) -> dict[Seeds, float]:
        """The quantity by seed, to compare groups. Runs that repeat a seed count once."""
        return {seeds_of(run): getattr(out, quantity) for run, out in self.outcomes.items()}

    def to_json(self) -> dict[str, Any]:
        """Plain values for programs."""
        absent = () if self.has_personal else ("personal_accuracy",)
        names = [name for name in QUANTITIES if name not in absent]
        spreads = {name: asdict(self.spread(name)) for name in names}
        return {"method": self.label, **spreads, "curve": self.curve}

    def _repr_html_(self) -> str:
        from dcfl.report.notebook_html import groups_html  # which knows groups itself

        return groups_html([self])


def setting(run: RecordedRun, key: str) -> Any:
    """The setting with this dotted name; None if the run has no such setting."""
    section, _, name = key.partition(".")
    return run.config.get(section, {}).get(name)


def scored_on(runs: Iterable[RecordedRun]) -> str:
    """The images that the accuracies are about: nobody takes kept-back images for test images."""
    kinds = sorted({images_scored(run.holdout) for run in runs}, reverse=True)
    return " or ".join(kinds)


def clients_scored_on(runs: Iterable[RecordedRun]) -> str:
    """What the numbers of single clients are about."""
    return " or ".join(dict.fromkeys(run.clients_on for run in runs))


def group_runs(runs: Sequence[RecordedRun], over: Collection[str] = ()) -> list[Group]:
    """One group per method and settings, in order of first appearance, then the baselines.

    Labels have the settings that tell the groups of a method apart, as in a sweep; those of the
    data are the task: accuracies on different data are not compared. `over`: other settings that
    are a task's.
    """
    members: list[tuple[Identity, list[RecordedRun]]] = []
    for run in runs:
        settings = across_seeds(run)
        same = next((alike for first, alike in members if first == settings), None)
        if same is None:
            members.append((settings, [run]))
        else:
            same.append(run)
    shown = [(_shown(settings, alike[0]), alike) for settings, alike in members]
    tasks = [_task(one, [other for other, _ in shown], over) for one, _ in shown]
    kinds = [baseline_of(alike[0]) for _, alike in shown]
    groups = []
    for (one, alike), task, kind in zip(shown, tasks, kinds, strict=True):
        peers = [
            other
            for (other, _), others_task, other_kind in zip(shown, tasks, kinds, strict=True)
            if others_task == task and other_kind == kind
        ]
        name = baseline_words(kind, alike[0]) if kind else str(one.get("method.name"))
        groups.append(Group(_label(name, one, peers), tuple(alike), task, kind))
    groups.sort(key=lambda group: group.baseline != "")
    return [*groups, *_most_frequent(groups)]


def _most_frequent(groups: Sequence[Group]) -> Iterator[Group]:
    """The baseline that needs no training, where there are others: of the first method's runs."""
    for task in dict.fromkeys(group.task for group in groups if group.baseline):
        first = next(group for group in groups if group.task == task)
        words = baseline_words(MOST_FREQUENT, first.runs[0])
        yield Group(words, first.runs, task, MOST_FREQUENT)


def runs_by_partition(runs: Iterable[RecordedRun]) -> dict[str, list[RecordedRun]]:
    by_partition: dict[str, list[RecordedRun]] = {}
    for run in runs:
        if run.partition_sha256:
            by_partition.setdefault(run.partition_sha256, []).append(run)
    return by_partition


def each_seed_has_one_partition(runs: Iterable[RecordedRun]) -> bool:
    pairs = {(seeds_of(run), run.partition_sha256) for run in runs}
    return len(pairs) == len({seeds for seeds, _ in pairs})


def seeds_of(run: RecordedRun) -> Seeds:
    return tuple(of_kind(complete(flat(run.config)), "seed").values())


def _end_of(run: RecordedRun) -> tuple[object, ...]:
    """Tells runs of a group apart: their seeds, what they ended with, and the way there."""
    weights = run.summary.weights_sha256 if run.summary else ""
    return seeds_of(run), weights, tuple((row.round, row.accuracy, row.loss) for row in run.rounds)


def _shown(identity: Identity, run: RecordedRun) -> Identity:
    """The settings of a group as its label has them: with names and hashes of the user's own."""
    shown = {key: value for key, value in identity.items() if key not in CONTENTS}
    kind, colon, path = str(setting(run, "data.dataset")).partition(":")
    texts = {
        "data": f"{kind}{colon}{PurePath(path).name} ({identity.get('data')})",
        "split": f"file ({str(identity.get('split'))[:16]})",
        "weights": str(identity.get("weights"))[:16],
    }
    for fact, key in CONTENTS.items():
        if identity.get(fact, BUILT_IN) != BUILT_IN:
            shown[key] = texts.get(fact, identity[fact])
    return shown


def _task(settings: Identity, groups: Sequence[Identity], over: Collection[str]) -> str:
    """The settings of the data, and those of `over`, that differ between groups."""

    def is_task(key: str) -> bool:
        return key in over or (key.startswith("data.") and key not in AUGMENTATION)

    return printable(" ".join(_different(settings, groups, is_task).values()))


def _label(name: str, settings: Identity, peers: Sequence[Identity]) -> str:
    """The name, and the settings that differ between groups of the task. A method's own fields are
    compared with groups of that method, other settings with all groups."""
    method = settings.get("method.name")
    same_method = [other for other in peers if other.get("method.name") == method]
    others = {
        **_different(settings, peers, lambda key: not key.startswith("method.")),
        **_different(settings, same_method, lambda key: key.startswith("method.")),
    }
    return printable(" ".join([name, *(others[key] for key in settings if key in others)]))


def _different(
    settings: Identity, groups: Sequence[Identity], wanted: Callable[[str], bool]
) -> dict[str, str]:
    """The settings in which some of the groups differ, as text."""
    keys = {key for group in groups for key, _, _ in differences(settings, group)}
    return {
        key: f"{key.removeprefix('method.')}={plain(value)}"
        for key, value in settings.items()
        if key in keys and wanted(key)
    }
