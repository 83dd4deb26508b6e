"""Tables on the terminal: comparisons, partitions, evaluations, analyses."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from dcfl.cli.terminal import BARS, new_table, sparkline, stdout
from dcfl.comparisons.standing import Standing
from dcfl.data.dataset_summary import MANY_CLIENTS, PERCENTILES, Overview
from dcfl.report.evaluation_section import MOST_NAMED, client_table
from dcfl.report.methods_table import methods_table
from dcfl.report.text import number
from dcfl.runs.evaluations import EvaluationRecord, worst_words
from dcfl.system.wording import printable, some

if TYPE_CHECKING:
    from dcfl.analysis.findings import Analysis
    from dcfl.privacy import NoiseNeeded
    from dcfl.report import document
    from dcfl.trained.evaluate import TwoModels

MOST_NUMBERED_CLASSES = 16  # more are drawn as a line of bars
ROOMY = 90  # columns of a terminal
WIDEST_MIX = 45  # characters of that line
FIRST_COLUMNS_WIDTH = 34  # of a partition table


def comparison_table(standing: Standing) -> Table:
    """A row per method. Where there is no room for a curve too, numbers are worth more."""
    first, groups = standing.groups[0], standing.shown
    titles = (
        [f"mean over clients, each on {first.runs[0].clients_on}"] if standing.about_own else []
    )
    titles += ["on kept-back images"] if first.runs[0].holdout else []
    titles += [f"{first.seeds} seeds, mean ± deviation"] if first.seeds > 1 else []
    # Of some baselines there is nothing else.
    final = ["final", "own final"] if standing.baselines else []
    names = ["label", "MAX", "EMA", "gain", "w/t/l", *final, "worst mean", "sent", "seconds"]
    if standing.about_own:
        names = ["label", "own final", "gain", "w/t/l", "worst mean", "sent", "seconds"]
    found = methods_table(standing, groups, names, short=True)
    narrow, wide = (8, 20) if first.seeds == 1 else (0, 8)
    width = wide if stdout.width >= ROOMY else narrow
    curve = ["curve"] if width and not standing.about_own else []  # it is the global model's
    table = new_table(*found.columns, *curve, title=", ".join(titles) or None)
    for row, group in zip(found.rows, groups, strict=True):
        table.add_row(*row, *(sparkline(group.curve, width) for _ in curve))
    return table


NOISE_WORDS = """
on the mean: how long the noise in a round's mean is, in clips; the mean change is shorter than one.
harmless from: extrapolated to as many clients as make that a tenth, with the same participation and
so with the same epsilon. It says what a larger federation could do, not this one."""
CORRELATED = "privacy.correlated"
CORRELATED_WORDS = (
    f"{CORRELATED}: what is left of the noise in the sum of all rounds, an equal part for each."
)


def noise_table(needed: Sequence[NoiseNeeded]) -> Table:
    table = new_table("noise at", "privacy.noise", "on the mean", "harmless from")
    for one in needed:
        clients = f"{one.harmless_clients:,.0f} clients"
        table.add_row(one.where, f"{one.noise:g}", f"{one.on_mean:.3g} clips", clients)
    return table


def plain_table(table: document.Table) -> Table:
    shown = new_table(*table.columns, title=table.title or None)
    for row in table.rows:
        shown.add_row(*row)
    return shown


def partition_table(
    counts: NDArray[np.int64], class_names: Sequence[str], site_names: Sequence[str] = ()
) -> Table:
    """A row per client: its size, its classes and their largest share, then its samples per class,
    as numbers or, for many classes, as a line of bars.

    Many clients are summed up: percentiles of each column, then the smallest and the largest.
    """
    room = (stdout.width - FIRST_COLUMNS_WIDTH) // max(len(class_names), 1) - 1
    numbered = len(class_names) <= MOST_NUMBERED_CLASSES and room >= len(str(counts.max()))
    mixes = [printable(name, max(room, 4)) for name in class_names] if numbered else ["mix"]
    many = len(counts) > MANY_CLIENTS
    title = None
    if many:
        title = f"{len(counts):,} clients: percentiles of each column, the smallest and the largest"
    columns = ("clients" if many else "client", "samples", "classes", "largest")
    table = new_table(*columns, *mixes, title=title, gap=1)
    overview = Overview(counts)
    values = [overview.sizes, overview.held, overview.largest_shares, overview.counts]
    names = [*site_names] or [f"client {one}" if many else f"{one}" for one in range(len(counts))]
    if many:
        ends = [overview.smallest, overview.largest]
        percentiles = [np.percentile(v, PERCENTILES, axis=0, method="lower") for v in values]
        values = [np.concatenate([p, v[ends]]) for p, v in zip(percentiles, values, strict=True)]
        names = [*(f"{percent} %" for percent in PERCENTILES), *(names[end] for end in ends)]
    top = max(int(counts.max()), 1)
    for name, size, held, share, mix in zip(names, *values, strict=True):
        cells = [_shaded(int(count), top) for count in mix] if numbered else [_mix(mix, top)]
        table.add_row(name, str(size), str(held), f"{share:.0%}", *cells)
    return table


def _shaded(count: int, top: int) -> Text:
    """The number on a background that darkens with its size; a dot for none."""
    if not count:
        return Text("·", style="dim")
    level = count / top
    blue = f"rgb({int(235 - 200 * level)},{int(242 - 160 * level)},{int(250 - 80 * level)})"
    return Text(f"{count:3}", style=f"{'white' if level > 0.5 else 'black'} on {blue}")


def _mix(counts: NDArray[np.int64], top: int) -> str:
    """All classes in at most WIDEST_MIX characters; neighbours share one where there are more."""
    groups = np.array_split(counts, min(len(counts), WIDEST_MIX))
    return "".join("·" if not g.any() else BARS[int(g.max() * 7 // top)] for g in groups)


MOST_CLASSES = 20  # rows of a table; of more classes the worst are shown
LONGEST_CLASS = 24  # characters of a name


def print_evaluation(record: EvaluationRecord) -> None:
    model = record.model if isinstance(record.which, int) else f"the {record.model}"
    print(printable(f"{model} on {record.images:,.0f} {record.images_words}"))
    for note in record.notes:
        print(printable(note))
    print()
    for name, value in _scores(record):
        print(f"{printable(name):19}{value}")
    print()
    stdout.print(class_table(record))
    if record.absent:
        print(f"\nwithout images, and in no mean: {some(record.absent, MOST_NAMED, LONGEST_CLASS)}")
    if len(record.clients) > 1:
        print()
        stdout.print(plain_table(client_table(record, means=False)))
    print()


def print_two_models(names: Sequence[str], found: TwoModels) -> None:
    for name, record in zip(names, (found.first, found.second), strict=True):
        accuracy = f"{number(record.scores.accuracy)} % ({record.interval_words})"
        images = f"{record.images:,.0f} {record.images_words}"
        print(printable(f"{name}, {record.model}: {accuracy}, on {images}"))
        for note in record.notes:
            print(printable(f"  {note}"))
    paired = found.paired
    low, high = paired.interval
    groups = f" in {paired.groups:,} groups" if paired.groups else ""
    print(
        f"difference  {paired.difference:+.2f} points, 95 % interval {low:+.2f} to {high:+.2f}, "
        f"p = {paired.p_value:.2g} ({paired.test})\n"
        f"            of {paired.images:,} images{groups}, the second alone is right on "
        f"{paired.only_second:,}, the first alone on {paired.only_first:,}"
    )


def _scores(record: EvaluationRecord) -> Iterator[tuple[str, str]]:
    scores = record.scores
    sure = f" ({record.interval_words})" if record.interval_words else ""
    yield "accuracy", f"{number(scores.accuracy)} %{sure}"
    most = record.most_frequent
    yield "most frequent", f"{number(most.share)} %: always saying {printable(most.name, 24)}"
    yield "balanced accuracy", f"{number(scores.balanced_accuracy)} %"
    yield "macro F1", f"{number(scores.macro_f1)} %"
    error = f"binned, at most {number(scores.mean_auc_error, 4)} off"
    yield "AUC", f"{number(scores.mean_auc, 4)} (one class against the rest; {error})"
    yield "calibration error", f"{number(scores.calibration_error)} %"
    yield "cross-entropy", number(scores.loss, 4)
    clients, kind = len(record.clients), record.clients_kind
    who = record.clients[0].name if clients == 1 else "clients"
    for name, (mean, worst) in ((who, record.fairness), ("fine-tuned", record.fine_tuned_fairness)):
        if mean is not None and worst is not None and clients == 1:
            yield name, f"{number(mean)} % on {kind}"
        elif mean is not None and worst is not None:
            worst_ones = f"{number(worst)} % the {worst_words(clients)}"
            yield name, f"{number(mean)} % on average, {worst_ones}; each on {kind}"


def class_table(record: EvaluationRecord) -> Table:
    rows, title = record.class_rows, None
    if len(rows) > MOST_CLASSES:
        present = [row for row in rows if row.images]
        rows = sorted(present, key=lambda row: row.recall)[:MOST_CLASSES]
        title = f"the {len(rows)} classes of {len(record.class_names)} with the lowest recall"
    table = new_table("class", "images", "recall %", "precision %", "F1 %", "AUC", title=title)
    for row in rows:
        percentages = [number(value) for value in (row.recall, row.precision, row.f1)]
        name = printable(row.name, LONGEST_CLASS)
        table.add_row(name, number(row.images, 0), *percentages, number(row.auc, 4))
    return table


def print_analyses(analyses: Sequence[Analysis]) -> None:
    """The tables of the page."""
    from dcfl.analysis.analysis_page import headline, numbered_sections

    for section in numbered_sections(analyses):
        for table in section.tables:
            stdout.print(plain_table(replace(table, title=section.title)))
            print()
    print(printable(headline(analyses)))
    for analysis in analyses:
        for caution in analysis.cautions:
            print(printable(f"dcfl: warning: {analysis.label}: {caution}"), file=sys.stderr)
