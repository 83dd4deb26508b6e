"""What a run page says of each client, each class and each site."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray

from dcfl.comparisons.groups import Group, clients_scored_on, scored_on, setting
from dcfl.data.dataset_summary import Overview
from dcfl.data.settings import images_scored
from dcfl.evaluation import own_mix_accuracies
from dcfl.report import charts, text
from dcfl.report.charts import LONGEST_CLASS
from dcfl.report.document import Picture, Section, Table
from dcfl.runs.evaluations import read_evaluations, scored_by_sites
from dcfl.runs.folder import PERSONAL_ROWS, RecordedRun
from dcfl.runs.rows import ClassRecall, PersonalRow
from dcfl.system.wording import printable

MOST_DOTS = 1500  # of all methods together
NAMED_CLASSES = 3  # of a client, in the text beside the pointer


@dataclass(frozen=True)
class Dot:
    """A client, after the last scored round."""

    share: float  # of its largest class, percent
    accuracy: float  # of the global model on its images or its mix of classes, percent
    note: str


def client_mix_picture(groups: Sequence[Group]) -> Picture | None:
    """None if no run has scored its clients."""
    found = {
        group.label: [dot for run in group.counted for dot in _dots_of(run, len(group.counted) > 1)]
        for group in groups
    }
    total = sum(map(len, found.values()))
    if not total:
        return None
    step = -(-total // MOST_DOTS)
    shown = {label: dots[::step] for label, dots in found.items()}
    fewer = f" Shown is every {step}th." if step > 1 else ""
    kinds = clients_scored_on(run for one in groups for run in one.counted)
    return Picture(
        "Clients, over their mix of classes",
        f"Dots of {text.plural(total, 'client')}: accuracy over the share of the largest class.",
        f"Each dot is a client of a run: the accuracy on {kinds} of the last global model that was "
        "scored, whether or not it took part in that round. To the right are clients with little "
        f"more than one class.{fewer}",
        _chart(shown),
    )


def _dots_of(run: RecordedRun, several: bool) -> list[Dot]:
    if not run.samples_known:
        return []
    counts, names, sites = run.partition_counts, run.class_names, run.site_names
    shares = 100 * Overview(counts).largest_shares
    where = f" of {run.folder.resolve().name}" if several else ""
    dots = []
    for client, accuracy in sorted(final_accuracies(run).items()):
        if client < len(counts) and math.isfinite(accuracy):
            note = (
                f"{printable(sites.get(client, f'client {client}'))}{where}\n"
                f"{text.number(accuracy)} %\n{_mix(counts[client], names)}"
            )
            dots.append(Dot(float(shares[client]), accuracy, note))
    return dots


def final_accuracies(run: RecordedRun) -> dict[int, float]:
    """Of the last model that was scored, by client: all on own test images; all in their mix of
    classes, once the run has ended; until then those who took part in that round."""
    last = next((row for row in reversed(run.rounds) if row.accuracy is not None), None)
    if last is None:
        return {}
    if last.sites:
        return {site.client: site.accuracy for site in last.sites}
    recalls = _recalls(run)
    if recalls and len(recalls) == run.partition_counts.shape[1]:  # both files are of this run
        by_class = [math.nan if one.recall is None else one.recall for one in recalls]
        mixes = torch.from_numpy(run.partition_counts).double()
        found = own_mix_accuracies(torch.tensor(by_class, dtype=torch.float64), mixes)
        return dict(enumerate(found.tolist()))
    rows = [row for row in run.clients if row.round == last.round]
    return {row.client: row.own_accuracy for row in rows if row.own_accuracy is not None}


def _mix(counts: NDArray[np.int64], names: Sequence[str]) -> str:
    size = int(counts.sum())
    most = [label for label in np.argsort(-counts, kind="stable")[:NAMED_CLASSES] if counts[label]]
    parts = [
        f"{printable(names[label], LONGEST_CLASS)} {text.number(100 * counts[label] / size, 0)} %"
        for label in most
    ]
    return f"{text.plural(size, 'sample')}: {', '.join(parts) or 'none'}"


def _chart(shown: dict[str, list[Dot]]) -> charts.Chart:
    lines = [
        charts.series(
            label,
            [dot.share for dot in dots],
            [dot.accuracy for dot in dots],
            colour,
            "points",
            notes=[dot.note for dot in dots],
        )
        for colour, (label, dots) in enumerate(shown.items())
        if dots
    ]
    return charts.plot(
        {"label": "share of its largest class (%)", "percent": True},
        {"label": "accuracy (%)", "low": -3, "high": 103},
        [{"series": lines}],
    )


SHOWN_CLASSES = 30  # classes; of more, those with the lowest recall
MOST_NAMED = 5
CLASS_NOTE = (
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
            tables.append(_class_table(names, told))
    return Section("Each class", [], tables) if tables else None


def class_cautions(runs: Sequence[RecordedRun]) -> list[str]:
    """One, if there are classes of which not one image is recognised: an accuracy hides them."""
    images = {run: images_scored(run.holdout).removesuffix("s") for run in runs}
    missed = {
        f"{printable(one.name, 60)} ({text.plural(one.images, images[run])})": None
        for run in runs
        for one in _recalls(run)
        if one.missed
    }
    if not missed:
        return []
    more = [f"{len(missed) - MOST_NAMED} more"] if len(missed) > MOST_NAMED else []
    shown = text.listed([*list(missed)[:MOST_NAMED], *more])
    blind = [run for run in runs if any(one.missed for one in _recalls(run))]
    if len(runs) == 1:
        never = f"The model never recognises {shown}."
    else:
        methods = Counter(str(setting(run, "method.name")) for run in blind)
        whose = [f"{text.plural(n, 'run')} of {name}" for name, n in methods.items()]
        verb = "recognises" if len(blind) == 1 else "recognise"
        never = f"{text.listed(whose)} never {verb} some class: {shown}."
    return [
        " ".join([never, *(one for one in _site_sentences(blind) if one.startswith("Without"))])
    ]


def _class_table(names: tuple[str, ...], groups: Sequence[Group]) -> Table:
    found = [_means(names, group) for group in groups]
    runs = [run for group in groups for run in group.counted if _names(run) == names]
    images = [one.images for one in _recalls(runs[0])]
    order = list(range(len(names)))
    title = ""
    if len(names) > SHOWN_CLASSES:
        order = sorted(order, key=lambda row: min(means[row] or 0.0 for means in found))[
            :SHOWN_CLASSES
        ]
        title = f"The {SHOWN_CLASSES} of {len(names):,} classes with the lowest recall"
    rows = [
        [
            printable(names[row], 60),
            text.number(images[row], 0),
            *("–" if means[row] is None else text.number(means[row] or 0.0) for means in found),
        ]
        for row in order
    ]
    recalls = ["Recall, %"] if len(groups) == 1 else [f"{group.label}, %" for group in groups]
    columns = ["Class", scored_on(runs).capitalize(), *recalls]
    return Table(columns, rows, title, " ".join([CLASS_NOTE, *_site_sentences(runs)]))


def _site_sentences(runs: Sequence[RecordedRun]) -> list[str]:
    """How the numbers of runs at sites are to be read."""
    records = filter(None, map(scored_by_sites, runs))
    notes = dict.fromkeys(note for record in records for note in record.notes)
    return [f"{note[0].upper()}{note[1:]}." for note in map(printable, notes)]


def _means(names: tuple[str, ...], group: Group) -> list[float | None]:
    """The mean recall of each class, over the group's runs with these classes."""
    runs = [_recalls(run) for run in group.counted if _names(run) == names]
    by_class = [
        [one.recall for one in own if one.recall is not None] for own in zip(*runs, strict=True)
    ]
    return [fmean(recalls) if recalls else None for recalls in by_class]


def _recalls(run: RecordedRun) -> Sequence[ClassRecall]:
    return run.summary.recalls if run.summary else ()


def _names(run: RecordedRun) -> tuple[str, ...]:
    return tuple(one.name for one in _recalls(run))


SHOWN_CLIENTS = 10  # clients that are named
COLUMNS = ("Client", "Global model, %", "Own model, %", "Difference")
EXPLANATION = (
    "Each client has a model of its own, or a part of one; in the global model such a part is as "
    "in the beginning. Both are scored after the last round, each client on {}."
)


def personal_section(
    runs: Sequence[RecordedRun], names: Mapping[RecordedRun, str]
) -> Section | None:
    """None if no run has personal models."""
    found = [run for run in runs if any(row.personal_accuracy is not None for row in run.personal)]
    if not found:
        return None
    tables = [_personal_table(run.personal, names[run] if len(runs) > 1 else "") for run in found]
    explanation = EXPLANATION.format(clients_scored_on(found))
    tables += [
        _cross_table(run.personal, f"{names[run]}: " if len(runs) > 1 else "")
        for run in found
        if _is_crossed(run.personal)
    ]
    return Section("The clients’ own models", [explanation], tables)


MOST_CROSSED = 30  # sites with a row and a column each
CROSSED = "every model on every site’s test images"
STAYS = (
    "Where a field is empty, the site keeps its part to itself, and scores its own images alone."
)


def _is_crossed(rows: Sequence[PersonalRow]) -> bool:
    return any(row.on_sites for row in rows) and len(rows) <= MOST_CROSSED


def _cross_table(rows: Sequence[PersonalRow], prefix: str) -> Table:
    sites = [printable(row.site) if row.site else f"client {row.client}" for row in rows]
    found = [[row.global_accuracy for row in rows], *(row.on_sites for row in rows)]
    accuracies = np.array(found, dtype=np.float64)
    cells = [
        [name, *("–" if math.isnan(x) else text.number(x) for x in row)]
        for name, row in zip(["global", *sites], accuracies.tolist(), strict=True)
    ]
    note = STAYS if np.isnan(accuracies[1:]).any() else ""
    return Table(("Model, accuracy in % on", *sites), cells, f"{prefix}{CROSSED}", note)


def _personal_table(rows: Sequence[PersonalRow], run: str) -> Table:
    scored = [
        (own, common, printable(row.site) if row.site else f"client {row.client}")
        for row in rows
        if (own := row.personal_accuracy) is not None
        and (common := row.global_accuracy) is not None
    ]
    cells = [_cells(name, common, own) for own, common, name in sorted(scored)[:SHOWN_CLIENTS]]
    if scored:
        own, common = fmean(one[0] for one in scored), fmean(one[1] for one in scored)
        cells.append(_cells(f"mean of {text.plural(len(scored), 'client')}", common, own))
    untrained = sum(row.personal_accuracy is None for row in rows)
    notes = [
        f"The {SHOWN_CLIENTS} whose own models are worst; all are in {PERSONAL_ROWS}."
        if len(scored) > SHOWN_CLIENTS
        else "",
        f"{text.plural(untrained, 'client')} never trained." if untrained else "",
    ]
    return Table(COLUMNS, cells, run, " ".join(filter(None, notes)))


def _cells(name: str, common: float, own: float) -> list[str]:
    return [name, text.number(common), text.number(own), text.signed(own - common)]


MOST_CLASSES = 12  # with a column each
UNTOLD = "–"
SITE_NOTE = (
    "As each site counts them; nobody else can check. Training images are those of its last reply, "
    "test images those on which it scored the last model."
)


def site_section(runs: Sequence[RecordedRun], names: Mapping[RecordedRun, str]) -> Section | None:
    """None where the runs knew their clients' samples, or the sites sent nothing."""
    remote = [run for run in runs if run.at_sites]
    tables = [_site_table(run, names[run] if len(runs) > 1 else "") for run in remote]
    shown = [table for table in tables if table.rows]
    return Section("What the sites have", tables=shown) if shown else None


def _site_table(run: RecordedRun, title: str) -> Table:
    trained = {row.client: row.num_examples for row in run.clients if row.num_examples}
    sites = {
        row.client: printable(row.site) if row.site else f"site {row.client}" for row in run.clients
    }
    tested = {score.client: score.images for row in run.rounds for score in row.sites}
    counts = _class_counts(run)
    classes = run.class_names if counts and len(run.class_names) <= MOST_CLASSES else []
    rows = [
        [
            name,
            _count(trained.get(client)),
            _count(tested.get(client)),
            *(_count(count) for count in counts.get(name, [None] * len(classes))[: len(classes)]),
        ]
        for client, name in sorted(sites.items())
    ]
    columns = [f"{printable(name, LONGEST_CLASS)}, test" for name in classes]
    return Table(("Site", "Training images", "Test images", *columns), rows, title, SITE_NOTE)


def _class_counts(run: RecordedRun) -> dict[str, list[int | None]]:
    """Test images of each class, by the names of the sites that counted them."""
    records = [record for record in read_evaluations(run.folder) if record.own_data]
    return {
        printable(client.name): [*client.by_class]
        for record in records
        for client in record.clients
        if client.by_class
    }


def _count(number: int | None) -> str:
    return UNTOLD if number is None else f"{number:,}"
