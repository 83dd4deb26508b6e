"""What `compare --tune N` does first: N trials of every method, on training images kept back.

All methods have the same number of trials and the same two seeds, which are none of the
comparison's. The trial with the highest score is what a method is compared with, whatever it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import count, islice
from math import inf, isnan
from pathlib import Path
from typing import Any, get_type_hints

from dcfl.comparisons.cells import CellFolder, PlainCell, Shelf
from dcfl.comparisons.crew import Guard, Show, train
from dcfl.comparisons.groups import Yardstick
from dcfl.comparisons.searches import Axis, Exponents, NeighbourSearch, best_of, edges
from dcfl.comparisons.space import Point, plain, short_names, tables_of
from dcfl.comparisons.trials import Trial, Trials, with_images_kept_back
from dcfl.config import apply
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.methods import Method
from dcfl.report.document import Section, Table
from dcfl.report.text import counted, listed, number, plural

FIRST_SEED, SEEDS = 100, 2  # of trials: few people name such seeds for a comparison
LR = "training.lr"
FEWEST, MOST = 3, 12  # trials: those that all begin with; more are closer than seeds can tell apart
ABOUT = (
    "Every method had the same number of trials on training images that were kept back, with seeds "
    "of their own; the test images were not looked at. The settings with the highest {} are the "
    "ones that are compared. At the edge: nothing was tried on one side of the chosen value."
)


@dataclass(frozen=True)
class TunedMethod:
    """What was tried for a method."""

    label: str
    keys: Sequence[str]  # that were varied
    tried: Mapping[Exponents, Trial]  # in their order

    @cached_property
    def best(self) -> Exponents | None:
        """None before a trial has finished."""
        scores = {point: trial.score for point, trial in self.tried.items()}
        known = {point: score for point, score in scores.items() if not isnan(score)}
        return best_of(known) if known else None

    @property
    def remarks(self) -> list[str]:
        """What a reader must know before trusting the choice, about this method alone."""
        if self.best is None or not self.keys:
            return []
        remarks, most = [], len(self.tried)
        best = self.tried[self.best].score
        ties = sum(trial.score == best for trial in self.tried.values()) - 1
        if ties:
            remarks.append(
                f"{self.label}: {counted(ties, 'other trial')} scored as high; the values nearest "
                f"to its own are compared."
            )
        if self.at_edge:
            more = f"; --tune {min(most + 3, MOST)} goes on from here" if most < MOST else ""
            remarks.append(
                f"{self.label}: at the edge of what was tried: "
                f"{listed(short_names(self.at_edge))}. A value beyond it may be better{more}."
            )
        return remarks

    @property
    def chosen(self) -> Point:
        """The settings of the best trial; none if nothing was varied, or nothing finished."""
        point = self.tried[self.best].point if self.best else {}
        return {key: point[key] for key in self.keys if point}

    @property
    def at_edge(self) -> list[str]:
        return [self.keys[axis] for axis in edges(self.best, self.tried)] if self.best else []

    @property
    def why(self) -> str:
        """Why no trial has finished; empty if one has, or none was needed."""
        reasons = [trial.why for trial in self.tried.values() if trial.why]
        return reasons[0] if reasons and not self.best else ""

    @property
    def cells(self) -> list[CellFolder[PlainCell]]:
        return [cell for trial in self.tried.values() for cell in trial.cells]

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.label,
            "varied": list(self.keys),
            "chosen": self.chosen,
            "at_edge": self.at_edge,
            "trials": [
                {
                    "settings": {key: trial.point[key] for key in self.keys},
                    "scores": trial.scores,
                    "why": trial.why,
                }
                for trial in self.tried.values()
            ],
        }


@dataclass(frozen=True)
class MethodSearch:
    """The search for a method of a comparison."""

    experiment: Experiment  # the method as the comparison names it
    own: Point  # what it is named with, which stays as it is
    axes: Sequence[Axis]
    trials: int
    makes: Trials

    @property
    def label(self) -> str:
        own = ", ".join(f"{key.removeprefix('method.')}={plain(v)}" for key, v in self.own.items())
        return f"{self.experiment.method.name}({own})" if own else self.experiment.method.name

    def so_far(
        self, lost: Mapping[str, str] | None = None, otherwise: float | None = None
    ) -> TunedMethod:
        """The trials that follow from what is finished. `lost`: why runs have lost their clients
        just now; `otherwise`: the score of trials that have none yet."""
        numbers = count()

        def trial_of(settings: Point) -> Trial:
            trial = self.makes.trial(next(numbers), {**self.own, **settings})
            whys = [(lost or {}).get(cell.name, "") for cell in trial.cells]
            return replace(trial, lost=next(filter(None, whys), ""))

        def score(trial: Trial) -> float | None:
            if trial.state == "finished":
                return trial.score
            return -inf if trial.why else otherwise

        search = NeighbourSearch(self.axes, self._possible)
        tried = search.tried(self.trials if self.axes else 0, trial_of, score)
        return TunedMethod(self.label, [axis.key for axis in self.axes], tried)

    def _possible(self, settings: Point) -> bool:
        """A field may have bounds, beyond which no grid grows."""
        try:
            apply(self.experiment, tables_of(settings))
        except ConfigError:
            return False
        return True


def method_search(
    experiment: Experiment,
    own: Point,
    trials: int,
    taken: Collection[int],
    lr: bool,
    folder: Path,
    measure: Yardstick,
) -> MethodSearch:
    """`taken`: the seeds of the comparison. `measure`: what trials are judged by."""
    if not FEWEST <= trials <= MOST:
        raise ConfigError(f"--tune {trials}: every method has {FEWEST} to {MOST} trials")
    seeds = list(islice((seed for seed in count(FIRST_SEED) if seed not in taken), SEEDS))
    makes = Trials(with_images_kept_back(experiment), seeds, folder, Shelf(), measure)
    return MethodSearch(experiment, own, list(axes_of(experiment, own, lr)), trials, makes)


def axes_of(experiment: Experiment, own: Collection[str], lr: bool) -> Iterator[Axis]:
    """What is varied: numbers of the method, and the learning rate. The first begins with three
    values, the others with the one that they have."""
    method = experiment.method
    values = {f"method.{name}": getattr(method, name) for name in knobs(method)}
    rate = {LR: experiment.training.lr} if lr else {}
    varied = {key: value for key, value in (values | rate).items() if key not in own}
    for place, (key, value) in enumerate(varied.items()):
        start = value if value > 0 else type(value)(1)  # of which a factor makes something
        first = (0,) if place else (-1, 0, 1)
        by_two = key == LR or isinstance(value, int)
        yield Axis(key, start, 2.0 if by_two else 10.0, first)


def knobs(method: Method) -> list[str]:
    """The fields that a search varies: those that `searched` or `neutral` names, or the first, of
    whole numbers only where there is no other."""
    types = get_type_hints(type(method))
    names = [one.name for one in fields(method)]
    numbers = [name for kind in (float, int) for name in names if types[name] is kind]
    named = method.searched or method.neutral or ()
    return [name for name in numbers if name in named] or numbers[:1]


def tuned_methods(
    searches: Sequence[MethodSearch], parallel: int, show: Show, guard: Guard, again: str
) -> list[TunedMethod]:
    """Train what is left of all trials."""
    lost: dict[str, str] = {}
    while True:
        tuned = [search.so_far(lost) for search in searches]
        cells = [cell for one in tuned for cell in one.cells if cell.name not in lost]
        if all(cell.ended for cell in cells):
            return tuned
        lost |= train(cells, parallel, show, guard, again)


def remarks_on(tuned: Sequence[TunedMethod]) -> list[str]:
    """What a reader must know before trusting what was chosen."""
    return [*(remark for one in tuned for remark in one.remarks), *_far_rates(tuned)]


def _far_rates(tuned: Sequence[TunedMethod]) -> Iterator[str]:
    """A method with terms of its own spends its trials on those first. Where the learning rate that
    all begin with is far off, only the first method may have found a better one."""
    first = tuned[0]
    rate = first.chosen.get(LR)
    rates = {
        one.label: [t.point[LR] for t in one.tried.values()] for one in tuned if LR in one.keys
    }
    far = [label for label, tried in rates.items() if not min(tried) <= (rate or 0) <= max(tried)]
    if rate is not None and far:
        yield (
            f"{first.label} won with {LR} = {plain(rate)}, and no trial of {listed(far)} went as "
            f"far: they may have lost by it. Begin with {LR}={plain(rate)}."
        )


def tuning_section(tuned: Sequence[TunedMethod]) -> Section:
    rows = [
        (one.label, ", ".join(f"{key} = {plain(trial.point[key])}" for key in one.keys), *scores)
        for one in tuned
        for trial in one.tried.values()
        for scores in [(number(trial.score), trial.why or trial.state)]
    ]
    columns = ("method", "settings", f"kept back, {_measure(tuned)} %", "state")
    trials = Table(columns, rows, "All trials")
    return Section(
        "How settings were chosen",
        [ABOUT.format(_measure(tuned)), *remarks_on(tuned)],
        [tuning_table(tuned), trials],
    )


def _measure(tuned: Sequence[TunedMethod]) -> str:
    return next((t.yardstick.name for one in tuned for t in one.tried.values()), "EMA")


def tuning_table(tuned: Sequence[TunedMethod]) -> Table:
    rows = []
    for one in tuned:
        best = one.tried[one.best] if one.best else None
        chosen = [plain(value) for value in one.chosen.values()]
        names = short_names(one.keys)
        rows.append(
            (
                one.label,
                str(len(one.tried)),
                ", ".join(map(" = ".join, zip(names, chosen, strict=False))) or "–",
                f"{best.spread}" if best else "–",
                ", ".join(short_names(one.at_edge)) or "–",
            )
        )
    kept_back = f"kept back, {_measure(tuned)} %"
    columns = ("method", "trials", "chosen", kept_back, "at the edge")
    return Table(columns, rows, f"{plural(SEEDS, 'seed')} for each trial")
