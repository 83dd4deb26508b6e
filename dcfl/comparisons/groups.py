"""Recorded runs grouped by method and task, with means over their seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import PurePath
from statistics import fmean
from typing import Any

from dcfl.comparisons.pairs import Spread
from dcfl.comparisons.space import plain
from dcfl.data.settings import images_scored
from dcfl.errors import ConfigError
from dcfl.runs.evaluations import BASELINE, EvaluationRecord, read_evaluation
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
from dcfl.runs.rows import Row, Summary
from dcfl.system.wording import printable

Seeds = tuple[Any, ...]  # the values of all settings that are seeds
AUGMENTATION = ("data.crop", "data.flip", "data.rotation", "data.cutout")  # a choice, no task


MOST_FREQUENT, FINE_TUNED = "most frequent", "fine-tuned"  # beside those of federation.baseline
EPOCHS = 5  # for which clients train the model that they get further


@dataclass(frozen=True)
class Outcome:
    """The result of a run so far, or of a baseline. What is not known, or what a baseline has
    nothing of, is NaN: accuracies before the end of the first round."""

    rounds: int
    max_accuracy: float  # of the global model
    ema_accuracy: float
    final_accuracy: float
    # After the last round, mean over clients, each on its own images or mix of classes: its own
    # model where clients have such, else the global one.
    own_accuracy: float
    worst_decile_accuracy: float  # of the same
    bytes_up: float  # whole numbers, or NaN
    bytes_down: float
    seconds: float

    @classmethod
    def of(cls, run: RecordedRun, baseline: str = "") -> Outcome:
        rows, summary = run.rounds, run.summary
        last = next((row for row in reversed(rows) if row.accuracy is not None), None)
        own, worst = _own_accuracies(run, last, baseline)
        of_global = last if baseline in ("", "pooled") else None
        final = _known(of_global, "accuracy")
        seconds = (summary and summary.seconds) or sum(row.seconds for row in rows)
        return cls(
            rounds=rows[-1].round if rows else 0,
            max_accuracy=_known(of_global, "max_accuracy"),
            ema_accuracy=_known(of_global, "ema_accuracy"),
            final_accuracy=_known(summary, "most_frequent_accuracy")
            if baseline == MOST_FREQUENT
            else final,
            own_accuracy=own,
            worst_decile_accuracy=worst,
            bytes_up=math.nan if baseline else sum(row.bytes_up for row in rows),
            bytes_down=math.nan if baseline else sum(row.bytes_down for row in rows),
            seconds=math.nan if baseline in (MOST_FREQUENT, FINE_TUNED) else seconds,
        )


def _own_accuracies(run: RecordedRun, last: Row | None, baseline: str) -> tuple[float, float]:
    """The mean over clients, and over the worst tenth of them."""
    if baseline == FINE_TUNED:
        tuned = fine_tuned(run)
        mean, worst = tuned.fine_tuned_fairness if tuned else (None, None)
    elif baseline == MOST_FREQUENT:
        of = run.summary or Summary()
        mean = of.most_frequent_client_accuracy
        worst = of.worst_decile_most_frequent_accuracy
    elif run.own_models:
        of = run.summary or Summary()
        mean, worst = of.personal_accuracy, of.worst_decile_personal_accuracy
    else:
        return _known(last, "client_accuracy"), _known(last, "worst_decile_accuracy")
    return math.nan if mean is None else mean, math.nan if worst is None else worst


def _known(row: Row | None, quantity: str) -> float:
    value: float | None = row[quantity] if row else None
    return math.nan if value is None else value


def fine_tuned(run: RecordedRun) -> EvaluationRecord | None:
    """The last model, as clients have fared after training it on their own images; None if nobody
    has tried, or the run has been made longer since."""
    path = run.folder / BASELINE
    if run.summary is None or not path.is_file():
        return None
    one = read_evaluation(path)
    its_model = one.weights_sha256 == run.summary.weights_sha256
    return one if its_model and one.fine_tuned == EPOCHS else None


@dataclass(frozen=True)
class Yardstick:
    quantity: str  # of an Outcome
    name: str  # in a heading


BY = {
    "global": Yardstick("ema_accuracy", "EMA"),
    "clients": Yardstick("own_accuracy", "clients’ own accuracy"),
}
ABOUT_OWN = (
    "Clients’ own accuracy is taken after the last round and averaged over the clients: each has "
    "its own model, or the global one where it has none, on {}."
)


def yardstick(by: str, personal: bool) -> Yardstick:
    """`by`: as asked for. Unasked, personal models are compared by what they are worth to their
    clients: nobody uses the global model then."""
    if by and by not in BY:
        raise ConfigError(f"--by {by}: {' or '.join(BY)}")
    return BY[by or ("clients" if personal else "global")]


QUANTITIES = [field.name for field in fields(Outcome)]


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
        return {run: Outcome.of(run, self.baseline) for run in self.counted}

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
        return any(run.own_models for run in self.counted)

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
        spreads = {name: asdict(self.spread(name)) for name in QUANTITIES}
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
    return [*groups, *_untrained(groups)]


def _untrained(groups: Sequence[Group]) -> Iterator[Group]:
    """Baselines that follow from methods' runs: fine-tuned models, the most frequent class."""
    for task in dict.fromkeys(group.task for group in groups if group.baseline):
        there = [group for group in groups if group.task == task]
        for group in there:
            runs = tuple(run for run in group.runs if fine_tuned(run) is not None)
            if runs and not group.baseline and not group.has_personal:
                yield Group(f"baseline: {group.method}, fine-tuned", runs, task, FINE_TUNED)
        words = baseline_words(MOST_FREQUENT, there[0].runs[0])
        yield Group(words, there[0].runs, task, MOST_FREQUENT)


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
    keys = {key for group in groups for key, _, _ in differences(settings, group)}
    return {
        key: f"{key.removeprefix('method.')}={plain(value)}"
        for key, value in settings.items()
        if key in keys and wanted(key)
    }
