"""What a run page says of each client, each class and each site, and of virtual time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dcfl.comparisons.groups import Group, clients_scored_on, scored_on, setting
from dcfl.config import DEFAULT, apply
from dcfl.data.dataset_summary import Overview
from dcfl.data.settings import images_scored
from dcfl.evaluation import own_mix_accuracies
from dcfl.report import charts, text
from dcfl.report.charts import LONGEST_CLASS
from dcfl.report.document import Picture, Section, Table
from dcfl.runs.evaluations import WEIGHTING, read_evaluations, scored_by_sites
from dcfl.runs.folder import PERSONAL_ROWS, RecordedRun
from dcfl.runs.rows import ClassRecall, ClientRow, PersonalRow
from dcfl.system.wording import printable, some

MOST_DOTS = 1500  # of all methods together
NAMED_CLASSES = 3  # of a client, in the text beside the pointer


class Dot(NamedTuple):
    """A client, under the last model that was scored."""

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
    fewer = f" Shown is every {step}th." if step > 1 else ""
    lines = []
    for colour, (label, dots) in enumerate(found.items()):
        if dots:
            shares, accuracies, notes = zip(*dots[::step], strict=True)
            lines.append(charts.series(label, shares, accuracies, colour, "points", notes=notes))
    kinds = clients_scored_on(run for one in groups for run in one.counted)
    return Picture(
        "Clients, over their mix of classes",
        f"Dots of {text.plural(total, 'client')}: accuracy over the share of the largest class.",
        f"Each dot is a client of a run: the accuracy on {kinds} of the last global model that was "
        "scored, whether or not it took part in that round. To the right are clients with little "
        f"more than one class.{fewer}",
        charts.plot(
            {"label": "share of its largest class (%)", "percent": True},
            {"label": "accuracy (%)", "low": -3, "high": 103},
            [{"series": lines}],
        ),
    )


def _dots_of(run: RecordedRun, several: bool) -> list[Dot]:
    if not run.samples_known:
        return []
    counts = run.partition_counts
    shares = 100 * Overview(counts).largest_shares
    where = f" of {run.folder.resolve().name}" if several else ""
    return [
        Dot(
            float(shares[client]),
            accuracy,
            f"{printable(run.site_names.get(client, f'client {client}'))}{where}\n"
            f"{text.number(accuracy)} %\n{_mix(counts[client], run.class_names)}",
        )
        for client, accuracy in sorted(final_accuracies(run).items())
        if client < len(counts) and math.isfinite(accuracy)
    ]


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


SHOWN_CLASSES = 30  # classes; of more, those with the lowest recall
MOST_NAMED = 5
CLASS_NOTE = (
    "Recall is the share of a class’s images that the model after the last round recognises, "
    "in percent; of several runs, the mean."
)


def class_section(groups: Sequence[Group]) -> Section | None:
    """A table for each set of classes; None if no run has ended."""
    scored = dict.fromkeys(_names(run) for group in groups for run in group.counted)
    tables = [_class_table(names, groups) for names in scored if names]
    return Section("Each class", [], tables) if tables else None


def class_cautions(runs: Sequence[RecordedRun]) -> list[str]:
    """One, if there are classes of which not one image is recognised: an accuracy hides them."""
    images = {run: images_scored(run.holdout).removesuffix("s") for run in runs}
    blind = [run for run in runs if any(one.missed for one in _recalls(run))]
    missed = dict.fromkeys(
        f"{printable(one.name, 60)} ({text.plural(one.images, images[run])})"
        for run in blind
        for one in _recalls(run)
        if one.missed
    )
    if not missed:
        return []
    shown = some(missed, MOST_NAMED, longest=100)  # the names are cut, the numbers are not
    if len(runs) == 1:
        never = f"The model never recognises {shown}."
    else:
        methods = Counter(str(setting(run, "method.name")) for run in blind)
        whose = [f"{text.plural(n, 'run')} of {name}" for name, n in methods.items()]
        verb = "recognises" if len(blind) == 1 else "recognise"
        never = f"{text.listed(whose)} never {verb} some class: {shown}."
    without = [one for one in _site_sentences(blind) if one.startswith("Without")]
    return [" ".join([never, *without])]


def _class_table(names: tuple[str, ...], groups: Sequence[Group]) -> Table:
    found, runs = dict[str, list[float | None]](), list[RecordedRun]()
    for group in groups:
        if own := [run for run in group.counted if _names(run) == names]:
            found[group.label] = [*map(_mean_recall, zip(*map(_recalls, own), strict=True))]
            runs += own
    order, title = list(range(len(names))), ""
    if len(names) > SHOWN_CLASSES:
        order.sort(key=lambda row: min(means[row] or 0.0 for means in found.values()))
        order = order[:SHOWN_CLASSES]
        title = f"The {SHOWN_CLASSES} of {len(names):,} classes with the lowest recall"
    images = [one.images for one in _recalls(runs[0])]
    rows = [
        [
            printable(names[row], 60),
            text.number(images[row], 0),
            *(text.number(math.nan if (x := own[row]) is None else x) for own in found.values()),
        ]
        for row in order
    ]
    recalls = ["Recall, %"] if len(found) == 1 else [f"{label}, %" for label in found]
    columns = ["Class", scored_on(runs).capitalize(), *recalls]
    return Table(columns, rows, title, " ".join([CLASS_NOTE, *_site_sentences(runs)]))


def _mean_recall(of_runs: Sequence[ClassRecall]) -> float | None:
    known = [one.recall for one in of_runs if one.recall is not None]
    return fmean(known) if known else None


def _site_sentences(runs: Sequence[RecordedRun]) -> list[str]:
    """How the numbers of runs at sites are to be read."""
    records = filter(None, map(scored_by_sites, runs))
    notes = dict.fromkeys(note for record in records for note in record.notes)
    return [f"{note[0].upper()}{note[1:]}." for note in map(printable, notes)]


def _recalls(run: RecordedRun) -> Sequence[ClassRecall]:
    return run.summary.recalls if run.summary else ()


def _names(run: RecordedRun) -> tuple[str, ...]:
    return tuple(one.name for one in _recalls(run))


SHOWN_CLIENTS = 10  # clients that are named
MOST_CROSSED = 30  # sites with a row and a column each
COLUMNS = ("Client", "Global model, %", "Own model, %", "Difference")
EXPLANATION = (
    "Each client has a model of its own, or a part of one; in the global model such a part is as "
    "in the beginning. Both are scored after the last round, each client on {}."
)
CROSSED = "every model on every site’s test images"
WITHHELD = "withheld"
STAYS = "Withheld: a site lends its part of the model to no other, or keeps its scores to itself."
SHADES = (
    "Each row is a model, each column the test images of a site: the deeper, the more of them it "
    "recognises. A model of a site that does worse elsewhere has learned that site’s own ways."
)


def personal_section(
    runs: Sequence[RecordedRun], headings: Mapping[RecordedRun, str]
) -> Section | None:
    """None if no run has personal models."""
    found = [run for run in runs if any(row.personal_accuracy is not None for row in run.personal)]
    if not found:
        return None
    tables, pictures = [_personal_table(run.personal, headings[run]) for run in found], []
    for run in found:
        if any(row.on_sites for row in run.personal) and len(run.personal) <= MOST_CROSSED:
            title = ": ".join(filter(None, [headings[run], CROSSED]))
            tables.append(_cross_table(run.personal, title))
            pictures.append(_cross_picture(run.personal, title))
    about = EXPLANATION.format(clients_scored_on(found))
    return Section("The clients’ own models", [about], tables, pictures)


def _cross_table(rows: Sequence[PersonalRow], title: str) -> Table:
    names = [_name(row.client, row.site) for row in rows]

    def told(accuracy: float | None, *kept_back: str) -> str:
        if accuracy is not None:
            return text.number(accuracy)
        return WITHHELD if kept_back else "–"

    common = [told(row.global_accuracy, *{*row.withheld} & {"scores"}) for row in rows]
    own = [
        [
            told(accuracy, *{*model.withheld} & {"personal"}, *{*site.withheld} & {"scores"})
            for accuracy, site in zip(model.on_sites, rows, strict=True)
        ]
        for model in rows
    ]
    cells = [[name, *row] for name, row in zip(["global", *names], [common, *own], strict=True)]
    stays = any(WITHHELD in row for row in cells)
    return Table(("Model, accuracy in % on", *names), cells, title, STAYS if stays else "")


def _cross_picture(rows: Sequence[PersonalRow], title: str) -> Picture:
    names = [_name(row.client, row.site) for row in rows]
    models = [[row.global_accuracy for row in rows], *(row.on_sites for row in rows)]
    cells = np.array(models, dtype=float)
    down, across = ("model", ["global", *names]), ("test images of", names)
    chart = charts.matrix(cells, down, across, "accuracy, %", "range", digits=1)
    about = f"Heat map: accuracy of {len(models)} models on the test images of {len(names)} sites."
    known = bool(np.isfinite(cells).any())
    return Picture(f"{title[0].upper()}{title[1:]}", about, SHADES, chart if known else None)


def _name(client: int, site: str, kind: str = "client") -> str:
    return printable(site) if site else f"{kind} {client}"


def _personal_table(rows: Sequence[PersonalRow], title: str) -> Table:
    scored = sorted(
        (row.personal_accuracy, row.global_accuracy, _name(row.client, row.site))
        for row in rows
        if row.personal_accuracy is not None and row.global_accuracy is not None
    )
    shown = scored[:SHOWN_CLIENTS]
    if scored:
        own, common, _ = zip(*scored, strict=True)
        shown.append((fmean(own), fmean(common), f"mean of {text.plural(len(scored), 'client')}"))
    cells = [
        [name, text.number(common), text.number(own), text.signed(own - common)]
        for own, common, name in shown
    ]
    notes = []
    if len(scored) > SHOWN_CLIENTS:
        worst = f"The {SHOWN_CLIENTS} whose own models are worst"
        notes.append(f"{worst}; all are in {PERSONAL_ROWS}.")
    if untrained := sum(row.personal_accuracy is None for row in rows):
        notes.append(f"{text.plural(untrained, 'client')} never trained.")
    return Table(COLUMNS, cells, title, " ".join(notes))


MOST_CLASSES = 12  # with a column each
SITE_NOTE = (
    "As each site counts them; nobody else can check. Training images are those of its last reply, "
    "test images, accuracy and share of the say those of its last score."
)


def site_section(
    runs: Sequence[RecordedRun], headings: Mapping[RecordedRun, str]
) -> Section | None:
    """None where clients are no sites with test images of their own, or sent nothing."""
    found = [run for run in runs if run.at_sites or any(row.sites for row in run.rounds)]
    tables = [table for run in found if (table := _site_table(run, headings[run])).rows]
    judged = any(row.sites for run in found for row in run.rounds)
    about = f"There is no common test set. In the accuracy above, {WEIGHTING}."
    return Section("What the sites have", [about] if judged else [], tables) if tables else None


def _site_table(run: RecordedRun, title: str) -> Table:
    trained = {row.client: row.num_examples for row in run.clients if row.num_examples}
    said: dict[int, tuple[int, list[str]]] = {}  # test images and what follows, by client
    for row in run.rounds:
        total = sum(site.images * site.weight for site in row.sites) or 1
        for site in row.sites:
            share = text.number(100 * site.images * site.weight / total)
            said[site.client] = site.images, [text.number(site.accuracy), str(row.round), share]
    by_class = {
        printable(client.name): client.by_class
        for record in read_evaluations(run.folder)
        if record.own_data
        for client in record.clients
        if client.by_class
    }
    classes = run.class_names if by_class and len(run.class_names) <= MOST_CLASSES else []
    unknown: list[int | None] = [None] * len(classes)
    rows = []
    for client in sorted({row.client for row in run.clients} | said.keys()):
        name = _name(client, run.site_names.get(client, ""), "site")
        tested, score = said.get(client, (None, ["–"] * 3))
        counts = [*by_class.get(name, unknown)][: len(classes)]
        rows.append(
            [name, *map(_count, (trained.get(client), tested)), *score, *map(_count, counts)]
        )
    columns = [f"{printable(name, LONGEST_CLASS)}, test" for name in classes]
    head = ("Site", "Training images", "Test images", "Accuracy, %", "Round", "Share of the say, %")
    return Table((*head, *columns), rows, title, SITE_NOTE)


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


MOST_VISITS, MOST_CLIENTS = 90, 40  # of the picture

KINDS = ("used, on the newest model", "used, from an older model", "late", "lost or not used")


def clock_words(run: RecordedRun) -> str | None:
    """The clock's settings and how clients are chosen, in a line; None if both are as usual."""
    selection = setting(run, "federation.selection")
    chosen = f"clients by {selection}" if selection not in (None, "uniform") else ""
    clock = apply(DEFAULT, {"clock": run.config.get("clock", {})}).clock
    words = text.without_folders(clock.words) if clock.active else ""
    return ", ".join(filter(None, (words, chosen))) or None


def clock_section(runs: Sequence[RecordedRun], names: Mapping[RecordedRun, str]) -> Section | None:
    timed = [run for run in runs if run.rounds and run.rounds[-1].virtual_time is not None]
    if not timed:
        return None
    paragraph = (
        "Times are virtual: they follow from the devices that the clock gives the clients, from "
        "the work of the method and from the bytes that were sent, and are the same on every "
        "machine."
    )
    columns = ("Run", "Virtual seconds", "Visits", "Used", "Late", "Lost", "Steps old, mean (most)")
    table = Table(columns, [_row(run, names[run]) for run in timed])
    return Section("The clock", [paragraph], [table], [_picture(timed[0], names[timed[0]])])


def _row(run: RecordedRun, name: str) -> list[str]:
    ages = [row.staleness for row in run.clients if row.used]
    late = sum(row.outcome == "late" for row in run.clients)
    lost = sum(row.outcome in ("failed", "rejected") for row in run.clients)
    return [
        name,
        text.number(run.rounds[-1].virtual_time or 0.0, 1),
        *(f"{count:,}" for count in (len(run.clients), len(ages), late, lost)),
        f"{text.number(fmean(ages))} ({max(ages)})" if ages else "–",
    ]


def _kind(row: ClientRow) -> int:
    if row.outcome == "late":
        return 2
    return (1 if row.staleness else 0) if row.used else 3


def _picture(run: RecordedRun, name: str) -> Picture:
    first = list(dict.fromkeys(row.client for row in run.clients))[:MOST_CLIENTS]
    shown = [row for row in run.clients if row.client in first][:MOST_VISITS]
    places = {client: at for at, client in enumerate(sorted({row.client for row in shown}))}
    series = []
    for kind, label in enumerate(KINDS):
        if rows := [row for row in shown if _kind(row) == kind]:
            low, high = ([row[end] or 0.0 for row in rows] for end in ("began", "ended"))
            x, notes = [places[row.client] for row in rows], [*map(_note, rows)]
            series.append(
                charts.series(label, x, high, kind, "points", low=low, high=high, notes=notes)
            )
    rounds = text.plural(shown[-1].round if shown else 0, "round")
    return Picture(
        f"Who trained when: {name}",
        f"{text.plural(len(shown), 'visit')} of {text.plural(len(places), 'client')} over "
        f"virtual time, in the first {rounds}.",
        "A bar is a client's visit, from the server's message to its reply, which the dot marks. "
        f"The first {rounds} are shown; time runs upwards.",
        charts.plot(
            charts.places("client", [str(client) for client in places]),
            {"label": "virtual seconds", "floor": 0},
            [{"series": series}],
        ),
        wide=True,
    )


def _note(row: ClientRow) -> str:
    age = f"\n{text.plural(row.staleness, 'step')} old" if row.staleness else ""
    reason = f"\n{row.reason}" if row.reason else ""
    times = f"{text.number(row.began or 0.0)} to {text.number(row.ended or 0.0)} s"
    return f"client {row.client}, round {row.round}\n{times}{age}{reason}"
