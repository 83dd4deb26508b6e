"""The page: what the runs have in common, who did how well, the figures, and the fine print."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dcfl.data.overview import MANY_CLIENTS, Overview
from dcfl.federation import cohort_size
from dcfl.report import plots, text
from dcfl.report.document import Picture, rendered
from dcfl.runs.folder import RecordedRun
from dcfl.runs.groups import (
    Group,
    Outcome,
    each_seed_has_one_partition,
    group_runs,
    runs_by_partition,
    setting,
)
from dcfl.runs.rows import ClientRow
from dcfl.system.printable import printable

SHOWN_PARTITIONS = 4
SHOWN_FAILURES = 50


@dataclass(frozen=True)
class Failure:
    """The same thing going wrong in one run, however often."""

    run: str
    outcome: str
    reason: str
    times: int
    clients: str
    rounds: str


@dataclass(frozen=True)
class Judge:
    """A site that scores the model on test images of its own."""

    run: str
    client: int
    accuracy: float  # after the last round in which it was heard
    round: int
    images: int
    share: float  # of the say in the run's accuracy then, percent


@dataclass(frozen=True)
class Detail:
    """All that is needed to repeat a run and to check that it came out the same."""

    name: str
    status: str
    weights_sha256: str
    partition_sha256: str
    config: str
    environment: str


def render(runs: Sequence[RecordedRun]) -> str:
    groups, names = group_runs(runs), _names(runs)
    failures = _failures(runs, names)
    sent = max(
        max(group.spread("bytes_up").mean, group.spread("bytes_down").mean) for group in groups
    )
    return rendered(
        "page.html.j2",
        title=_title(groups, runs),
        facts=_facts(runs),
        headline=_headline(groups),
        cautions=_cautions(groups, runs, names),
        groups=groups,
        unit=text.data_unit(sent),
        time_digits=1 if max(group.spread("seconds").mean for group in groups) < 1000 else 0,
        curves=_curves(groups) if any(run.rounds for run in runs) else [],
        partitions=_partitions(runs, names),
        partition_note=_partition_note(runs),
        judges=_judges(runs, names),
        failures=failures[:SHOWN_FAILURES],
        more_failures=len(failures) - SHOWN_FAILURES,
        empty_rounds=_empty_rounds(runs, names),
        details=[_detail(run, names[run]) for run in runs],
    )


def _names(runs: Sequence[RecordedRun]) -> dict[RecordedRun, str]:
    """The folders' names, with the parent's where two are called the same."""
    paths = {run: run.folder.resolve() for run in runs}
    often = Counter(path.name for path in paths.values())
    return {
        run: printable(path.name if often[path.name] == 1 else f"{path.parent.name}/{path.name}")
        for run, path in paths.items()
    }


def _distinct(runs: Sequence[RecordedRun], describe: Callable[[RecordedRun], str | None]) -> str:
    """What the runs have in common, or all that they have between them."""
    return text.listed(list(dict.fromkeys(filter(None, map(describe, runs)))), last="or")


def _title(groups: Sequence[Group], runs: Sequence[RecordedRun]) -> str:
    methods = list(dict.fromkeys(str(setting(group.runs[0], "method.name")) for group in groups))
    return f"{text.listed(methods)} on {_distinct(runs, _dataset)}"


def _facts(runs: Sequence[RecordedRun]) -> list[tuple[str, str]]:
    def plain(key: str) -> Callable[[RecordedRun], str | None]:
        return lambda run: None if (value := setting(run, key)) is None else f"{value}"

    facts = [
        ("Data set", _distinct(runs, _dataset)),
        ("Clients", _distinct(runs, plain("data.clients"))),
        ("Partition", _distinct(runs, _partition)),
        ("Rounds", _distinct(runs, plain("federation.rounds"))),
        ("Participation", _distinct(runs, _participation)),
        ("Model", _distinct(runs, plain("model.name"))),
    ]
    return [(term, value) for term, value in facts if value]


def _dataset(run: RecordedRun) -> str:
    name = run.summary.dataset if run.summary else ""
    return text.without_folders(name or str(setting(run, "data.dataset")))


def _partition(run: RecordedRun) -> str | None:
    scheme, alpha = setting(run, "data.partition"), setting(run, "data.alpha")
    if scheme in (None, "iid") or alpha is None:
        return None if scheme is None else str(scheme)
    return "iid" if math.isinf(alpha) else f"{scheme}, alpha = {alpha:g}"


def _participation(run: RecordedRun) -> str | None:
    share, clients = setting(run, "federation.participation"), setting(run, "data.clients")
    if share is None or clients is None:
        return None
    return f"{cohort_size(clients, share)} of {clients} clients in each round ({100 * share:g} %)"


def _headline(groups: Sequence[Group]) -> str:
    started = [group for group in groups if not math.isnan(group.spread("ema_accuracy").mean)]
    if not started:
        return "No round has ended yet."
    best = max(started, key=lambda group: group.spread("ema_accuracy").mean)
    if len(groups) == 1:
        over = f", on average over {text.plural(best.seeds, 'seed')}" if best.seeds > 1 else ""
        return (
            f"{best.label} reached {_percent(best, 'max_accuracy')} at best (MAX) and "
            f"{_percent(best, 'ema_accuracy')} as a moving average (EMA){over}."
        )
    sentence = f"{best.label} has the highest EMA accuracy: {_percent(best, 'ema_accuracy')}"
    first = groups[0]
    difference = None if best is first else best.difference(first)
    if difference is None:
        return f"{sentence}."
    side = "above" if difference.mean >= 0 else "below"
    return f"{sentence}, {text.number(abs(difference.mean))} points {side} {first.label}."


def _percent(group: Group, quantity: str) -> str:
    return f"{text.number(group.spread(quantity).mean)} %"


def _cautions(
    groups: Sequence[Group], runs: Sequence[RecordedRun], names: dict[RecordedRun, str]
) -> list[str]:
    """What a reader must know before believing a number above."""
    cautions = [
        f"{names[run]} is unfinished: {Outcome.of(run).rounds} of "
        f"{setting(run, 'federation.rounds')} rounds so far."
        for run in runs
        if not run.finished
    ]
    cautions += [
        f"{names[run]}, round {row.round}: {printable(notice)}."
        for run in runs
        for row in run.rounds
        for notice in row.notices
    ]
    if any(len(group.counted) < len(group.runs) for group in groups):
        cautions.append("Means are over finished runs only; the curves show all.")
    if any(group.seeds < len(group.counted) for group in groups):
        cautions.append("Some runs repeat the same settings and seed; each of them counts.")
    if len(groups) > 1 and min(group.seeds for group in groups) == 1:
        cautions.append("With one seed of a method, a difference may be chance.")
    return cautions


def _curves(groups: Sequence[Group]) -> list[Picture]:
    finals = "; ".join(
        f"{group.label}: MAX {_percent(group, 'max_accuracy')}, "
        f"EMA {_percent(group, 'ema_accuracy')}"
        for group in groups
    )
    several = any(len(group.runs) > 1 for group in groups)
    band = " Over several seeds, bold is the mean and the band runs from the lowest to the highest."
    ring = " A ring marks MAX." if len(groups) == 1 else ""
    rounds = max(Outcome.of(run).rounds for group in groups for run in group.runs)
    return [
        Picture.of(
            "Accuracy over rounds",
            plots.accuracy_figure(groups),
            f"Line chart of test accuracy over {text.plural(rounds, 'round')}. {finals}.",
            "Thin: the share of test images that the global model gets right after each round. "
            f"Bold: its moving average, EMA.{band if several else ''}{ring}",
        ),
        Picture.of(
            "Test loss over rounds",
            plots.loss_figure(groups),
            f"Line chart of test loss over {text.plural(rounds, 'round')}.",
            "The mean cross-entropy on the test images; lower is better. It rises when a model is "
            f"wrong and sure of it, even while the accuracy holds.{band if several else ''}",
        ),
        Picture.of(
            "Accuracy against traffic",
            plots.traffic_figure(groups),
            f"Line chart of test accuracy against the data sent. {finals}.",
            "The moving average against all that clients and server have sent each other so far: "
            "further left is cheaper.",
        ),
    ]


def _partitions(runs: Sequence[RecordedRun], names: dict[RecordedRun, str]) -> list[Picture]:
    users = runs_by_partition(runs)
    titles = {
        sha256: f"{sha256[:8]}: {_some([names[run] for run in own])}"
        for sha256, own in users.items()
    }
    return [
        _partition_picture(own, titles[sha256] if len(users) > 1 else "")
        for sha256, own in list(users.items())[:SHOWN_PARTITIONS]
    ]


def _some(names: list[str], most: int = 3) -> str:
    return text.listed(names if len(names) <= most else [*names[:2], f"{len(names) - 2} more"])


def _partition_picture(users: Sequence[RecordedRun], title: str) -> Picture:
    counts, class_names = users[0].partition_counts, users[0].class_names
    clients, classes = counts.shape
    split = Overview(counts)
    sizes = split.sizes
    size = f"{sizes.min():,}" if np.ptp(sizes) == 0 else f"{sizes.min():,} to {sizes.max():,}"
    held = f"{np.median(split.held):g} of {classes} classes"
    figure = plots.partition_figure(counts, class_names)
    if clients > MANY_CLIENTS:
        return Picture.of(
            title,
            figure,
            f"Histograms over {text.plural(clients, 'client')} of their samples, their classes "
            f"and the share of the largest class.",
            f"How many of the {clients:,} clients have so many samples ({size}), so many classes "
            f"(the median client holds {held}), and such a share of one class. The smallest is "
            f"client {split.smallest}, the largest client {split.largest}; partition.npz has all.",
        )
    return Picture.of(
        title,
        figure,
        f"Heat map of samples per client and class: {text.plural(clients, 'client')} with {size} "
        f"samples each; the median client holds {held}.",
        "Each column is a client and each row a class: the darker, the more samples, and white is "
        f"none. The bars above are the clients' sizes: {size} samples. The median client holds "
        f"{held}.",
    )


def _partition_note(runs: Sequence[RecordedRun]) -> str:
    count = len(runs_by_partition(runs))
    if count < 2:
        return ""
    if each_seed_has_one_partition(runs):
        effect = "one for each seed, so that differences seed by seed do not come from the split"
    else:
        effect = "so part of a difference between two runs may come from the split"
    hidden = f" The first {SHOWN_PARTITIONS} are shown." if count > SHOWN_PARTITIONS else ""
    return f"These runs use {count} different partitions, {effect}.{hidden}"


def _failures(runs: Sequence[RecordedRun], names: dict[RecordedRun, str]) -> list[Failure]:
    rows: dict[tuple[str, str, str], list[ClientRow]] = {}
    for run in runs:
        for row in run.clients:
            if row.outcome != "ok":
                reason = text.without_folders(row.reason)
                rows.setdefault((names[run], row.outcome, reason), []).append(row)
    return [
        Failure(*key, len(own), _span(own, "client"), _span(own, "round"))
        for key, own in rows.items()
    ]


def _judges(runs: Sequence[RecordedRun], names: dict[RecordedRun, str]) -> list[Judge]:
    found: dict[tuple[str, int], Judge] = {}
    for run in runs:
        for row in run.rounds:
            sites = row.sites
            say = sum(site.images * site.weight for site in sites) or 1
            for site in sites:
                share = 100 * site.images * site.weight / say
                found[names[run], site.client] = Judge(
                    names[run],
                    site.client,
                    site.accuracy,
                    row.round,
                    site.images,
                    share,
                )
    return [found[key] for key in sorted(found)]


def _span(rows: Sequence[ClientRow], key: str, most: int = 6) -> str:
    values = sorted({row[key] for row in rows})
    if len(values) > most:
        return f"{len(values)} between {values[0]} and {values[-1]}"
    return ", ".join(map(str, values))


def _empty_rounds(runs: Sequence[RecordedRun], names: dict[RecordedRun, str]) -> list[str]:
    empty = {run: sum(not row.used for row in run.rounds) for run in runs}
    return [
        f"{names[run]}: {text.plural(count, 'round')} with too few usable replies; "
        f"the model stayed as it was."
        for run, count in empty.items()
        if count
    ]


def _detail(run: RecordedRun, name: str) -> Detail:
    return Detail(
        name,
        "finished" if run.finished else "unfinished",
        run.summary.weights_sha256 if run.summary else "",
        run.partition_sha256,
        text.without_folders(run.config_text.strip()),
        text.without_folders(json.dumps(run.environment, indent=2)),
    )
