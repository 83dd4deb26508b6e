"""How well each class is recognised, as a section of a run page; and a caution where one is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from dcfl.data.settings import images_scored
from dcfl.report import text
from dcfl.report.document import Section, Table
from dcfl.runs.evaluations import scored_by_sites
from dcfl.runs.folder import RecordedRun
from dcfl.runs.groups import Group, scored_on
from dcfl.runs.rows import ClassRecall
from dcfl.system.printable import printable

SHOWN = 30  # classes; of more, those with the lowest recall
MOST_NAMED = 5
NOTE = (
    "Recall is the share of a class’s images that the model after the last round recognises, "
    "in percent; of several runs, the mean."
)


def class_section(groups: Sequence[Group]) -> Section | None:
    """A table for each set of classes; None if no run has ended."""
    tables = []
    scored = {_names(run): None for group in groups for run in group.counted}
    for names in scored:
        if names:
            told = [group for group in groups if any(_names(run) == names for run in group.counted)]
            tables.append(_table(names, told))
    return Section("Each class", [], tables) if tables else None


def class_cautions(runs: Sequence[RecordedRun], names: Mapping[RecordedRun, str]) -> list[str]:
    """Classes of which not one image is recognised: an accuracy hides them."""
    cautions = []
    for run in runs:
        image = images_scored(run.holdout).removesuffix("s")
        missed = [one for one in _recalls(run) if one.missed]
        if missed:
            shown = [
                f"{printable(one.name, 60)} ({text.plural(one.images, image)})"
                for one in missed[:MOST_NAMED]
            ]
            more = [f"{len(missed) - MOST_NAMED} more"] if len(missed) > MOST_NAMED else []
            subject = names[run] if len(runs) > 1 else "The model"
            whose = [one for one in _site_sentences([run]) if one.startswith("Without")]
            never = f"{subject} never recognises {text.listed([*shown, *more])}."
            cautions.append(" ".join([never, *whose]))
    rest = len(cautions) - MOST_NAMED
    others = [f"{text.plural(rest, 'more run')} never recognise some class."] if rest > 0 else []
    return [*cautions[:MOST_NAMED], *others]


def _table(names: tuple[str, ...], groups: Sequence[Group]) -> Table:
    found = [_means(names, group) for group in groups]
    runs = [run for group in groups for run in group.counted if _names(run) == names]
    images = [one.images for one in _recalls(runs[0])]
    order = list(range(len(names)))
    title = ""
    if len(names) > SHOWN:
        order = sorted(order, key=lambda row: min(means[row] or 0.0 for means in found))[:SHOWN]
        title = f"The {SHOWN} of {len(names):,} classes with the lowest recall"
    rows = [
        [
            printable(names[row], 60),
            text.number(images[row], 0),
            *("–" if means[row] is None else text.number(means[row] or 0.0) for means in found),
        ]
        for row in order
    ]
    columns = ["Class", scored_on(runs).capitalize(), *(_column(group, groups) for group in groups)]
    return Table(columns, rows, title, " ".join([NOTE, *_site_sentences(runs)]))


def _site_sentences(runs: Sequence[RecordedRun]) -> list[str]:
    """How the numbers of runs at sites are to be read."""
    records = filter(None, map(scored_by_sites, runs))
    notes = dict.fromkeys(note for record in records for note in record.site_notes)
    return [f"{note[0].upper()}{note[1:]}." for note in map(printable, notes)]


def _column(group: Group, groups: Sequence[Group]) -> str:
    return "Recall, %" if len(groups) == 1 else f"{group.label}, %"


def _means(names: tuple[str, ...], group: Group) -> list[float | None]:
    """Of each class, over the group's runs with these classes."""
    runs = [_recalls(run) for run in group.counted if _names(run) == names]
    by_class = [
        [one.recall for one in own if one.recall is not None] for own in zip(*runs, strict=True)
    ]
    return [fmean(recalls) if recalls else None for recalls in by_class]


def _recalls(run: RecordedRun) -> Sequence[ClassRecall]:
    return run.summary.recalls if run.summary else ()


def _names(run: RecordedRun) -> tuple[str, ...]:
    return tuple(one.name for one in _recalls(run))
