"""The page about runs: what they have in common, who did how well, the pictures, the fine print."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from dcfl.comparisons.groups import (
    Group,
    Outcome,
    each_seed_has_one_partition,
    group_runs,
    runs_by_partition,
    scored_on,
    setting,
)
from dcfl.comparisons.standing import Standing
from dcfl.comparisons.verdict import headline
from dcfl.data.dataset_summary import MANY_CLIENTS, Overview
from dcfl.data.settings import dataset_words, images_scored
from dcfl.data.splits.partition import split_words
from dcfl.federation import cohort_size
from dcfl.report import charts, plots, text
from dcfl.report.charts import accuracy_chart, chart_note, loss_chart
from dcfl.report.client_sections import (
    class_cautions,
    class_section,
    client_mix_picture,
    personal_section,
    site_section,
)
from dcfl.report.comparison_section import comparison_sections
from dcfl.report.document import Picture, Section, rendered
from dcfl.report.evaluation_section import evaluation_section
from dcfl.runs.evaluations import ENOUGH_CLIENTS, WEIGHTING, worst_words
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import ClientRow
from dcfl.runs.summaries import replies_used, seldom_there
from dcfl.system.wording import printable

MOST_LISTED = 6  # clients, or rounds


@dataclass(frozen=True)
class Failure:
    """One thing that went wrong in one run, however often."""

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
    site: str  # its name, or its number if it has none
    accuracy: float  # after the last round in which it reported
    round: int
    images: int
    share: float  # of its weight in the run's accuracy then, percent


@dataclass(frozen=True)
class Detail:
    """What it takes to repeat a run and to check that the result is the same."""

    name: str
    status: str
    weights_sha256: str
    partition_sha256: str
    config: str
    environment: str


def failures_of(runs: Sequence[RecordedRun], names: dict[RecordedRun, str]) -> list[Failure]:
    rows: dict[tuple[str, str, str], list[ClientRow]] = {}
    for run in runs:
        for row in run.clients:
            if row.outcome != "ok":
                reason = text.without_folders(row.reason)
                rows.setdefault((names[run], row.outcome, reason), []).append(row)
    return [
        Failure(*key, len(same), _clients(same), _span(same, "round")) for key, same in rows.items()
    ]


def judges_of(runs: Sequence[RecordedRun], names: dict[RecordedRun, str]) -> list[Judge]:
    judges: dict[tuple[str, int], Judge] = {}
    for run in runs:
        for row in run.rounds:
            sites = row.sites
            total = sum(site.images * site.weight for site in sites) or 1
            for site in sites:
                share = 100 * site.images * site.weight / total
                judges[names[run], site.client] = Judge(
                    names[run],
                    printable(run.site_names.get(site.client, f"{site.client}")),
                    site.accuracy,
                    row.round,
                    site.images,
                    share,
                )
    return [judges[key] for key in sorted(judges)]


def _clients(rows: Sequence[ClientRow]) -> str:
    named = {row.client: printable(row.site) for row in rows if row.site}
    if 0 < len(named) <= MOST_LISTED:
        return ", ".join(name for _, name in sorted(named.items()))
    return _span(rows, "client")


def _span(rows: Sequence[ClientRow], key: str) -> str:
    values = sorted({row[key] for row in rows})
    if len(values) > MOST_LISTED:
        return f"{len(values)} between {values[0]} and {values[-1]}"
    return ", ".join(map(str, values))


def empty_rounds(runs: Sequence[RecordedRun], names: dict[RecordedRun, str]) -> list[str]:
    empty = {run: sum(not row.used for row in run.rounds) for run in runs}
    return [
        f"{names[run]}: {text.plural(count, 'round')} with too few usable replies; "
        f"the model stayed as it was."
        for run, count in empty.items()
        if count
    ]


def detail_of(run: RecordedRun, name: str) -> Detail:
    return Detail(
        name,
        "finished" if run.finished else "unfinished",
        run.summary.weights_sha256 if run.summary else "",
        run.partition_sha256,
        text.without_folders(run.config_text.strip()),
        text.without_folders(json.dumps(run.environment, indent=2)),
    )


SHOWN_PARTITIONS = 4
LONGEST_SITE = 20  # characters of its name below a column


def curve_pictures(groups: Sequence[Group]) -> list[Picture]:
    finals = "; ".join(
        f"{group.label}: MAX {percent(group, 'max_accuracy')}, EMA {percent(group, 'ema_accuracy')}"
        for group in groups
    )
    several = any(len(group.runs) > 1 for group in groups)
    band = " Over several seeds, bold is the mean and the band runs from the lowest to the highest."
    ring = " A ring marks MAX." if len(groups) == 1 else ""
    rounds = max(Outcome.of(run).rounds for group in groups for run in group.runs)
    images = scored_on(run for group in groups for run in group.runs)
    accuracy, loss = (text.on_images(quantity, images) for quantity in ("accuracy", "loss"))
    return [
        Picture(
            "Accuracy over rounds",
            partial(plots.accuracy_figure, groups),
            f"Line chart of {accuracy} over {text.plural(rounds, 'round')}. {finals}.",
            f"Thin: the share of {images} that the global model gets right after each round. "
            f"Bold: its moving average, EMA.{band if several else ''}{ring}"
            f"{chart_note(groups)}",
            accuracy_chart(groups),
        ),
        Picture(
            f"{loss[0].upper()}{loss[1:]} over rounds",
            partial(plots.loss_figure, groups),
            f"Line chart of {loss} over {text.plural(rounds, 'round')}.",
            f"The mean cross-entropy on the {images}; lower is better. It rises when a model is "
            f"wrong and sure of it, even while the accuracy holds.{band if several else ''}",
            loss_chart(groups),
        ),
        Picture(
            "Accuracy against traffic",
            partial(plots.traffic_figure, groups),
            f"Line chart of {accuracy} against the data sent. {finals}.",
            "The moving average against all that clients and server have sent each other so far: "
            "further left is cheaper.",
            covered=True,
        ),
    ]


def percent(group: Group, quantity: str) -> str:
    return f"{text.number(group.spread(quantity).mean)} %"


def partition_pictures(runs: Sequence[RecordedRun], names: dict[RecordedRun, str]) -> list[Picture]:
    by_partition = runs_by_partition([run for run in runs if run.samples_known])
    titles = {
        sha256: f"{sha256[:8]}: {_some([names[run] for run in users])}"
        for sha256, users in by_partition.items()
    }
    return [
        _partition_picture(users, titles[sha256] if len(by_partition) > 1 else "")
        for sha256, users in list(by_partition.items())[:SHOWN_PARTITIONS]
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
    sites = users[0].site_names
    labels = [printable(sites.get(client, f"{client}"), LONGEST_SITE) for client in range(clients)]
    figure = partial(plots.partition_figure, counts, class_names, labels)
    if clients > MANY_CLIENTS:
        return Picture(
            title,
            figure,
            f"Histograms over {text.plural(clients, 'client')} of their samples, their classes "
            f"and the share of the largest class.",
            f"How many of the {clients:,} clients have so many samples ({size}), so many classes "
            f"(the median client holds {held}), and such a share of one class. The smallest is "
            f"client {split.smallest}, the largest client {split.largest}; partition.npz has all.",
        )
    return Picture(
        title,
        figure,
        f"Heat map of samples per client and class: {text.plural(clients, 'client')} with {size} "
        f"samples each; the median client holds {held}.",
        "Each column is a client, each row a class: the deeper the colour, the more samples. The "
        f"bars above are the clients' sizes: {size} samples. The median client holds {held}.",
        charts.matrix(
            counts.T,
            ("class", class_names),
            ("client", labels),
            "samples",
            sizes=True,
        ),
    )


def partition_note(runs: Sequence[RecordedRun]) -> str:
    count = len(runs_by_partition(runs))
    if count < 2:
        return ""
    if each_seed_has_one_partition(runs):
        effect = "one for each seed, so that differences seed by seed do not come from the split"
    else:
        effect = "so part of a difference between two runs may come from the split"
    hidden = f" The first {SHOWN_PARTITIONS} are shown." if count > SHOWN_PARTITIONS else ""
    return f"These runs use {count} different partitions, {effect}.{hidden}"


SHOWN_FAILURES = 50
MOST_ABSENT = 10  # sites of a run, each with a caution
SECTIONS = (personal_section, evaluation_section, site_section)
T = TypeVar("T")


def render(runs: Sequence[RecordedRun], target: float | None = None) -> str:
    return shown(runs, rendered, target=target)


def shown(
    runs: Sequence[RecordedRun],
    show: Callable[..., T],
    progress: Section | None = None,
    troubles: Sequence[str] = (),
    target: float | None = None,
) -> T:
    """What `show` makes of the template and its values."""
    groups, names = group_runs(runs), names_of(runs)
    standing = Standing(groups, target=target)
    failures = failures_of(runs, names)
    sent = max(
        max(group.spread("bytes_up").mean, group.spread("bytes_down").mean) for group in groups
    )
    return show(
        "page.html.j2",
        title=_title(groups, runs),
        facts=_facts(runs),
        headline=headline(standing),
        cautions=[*_cautions(groups, runs, names), *troubles],
        progress=progress,
        groups=groups,
        worst=_worst(runs),
        personal=any(group.has_personal for group in groups),
        standing=standing,
        images=scored_on(runs),
        comparison=list(comparison_sections(standing)),
        unit=text.data_unit(sent),
        time_digits=1 if max(group.spread("seconds").mean for group in groups) < 1000 else 0,
        curves=_training_pictures(groups) if any(run.rounds for run in runs) else [],
        sections=_sections(groups, runs, names),
        partitions=partition_pictures(runs, names),
        partition_note=partition_note(runs),
        judges=judges_of(runs, names),
        weighting=WEIGHTING,
        failures=failures[:SHOWN_FAILURES],
        more_failures=len(failures) - SHOWN_FAILURES,
        empty_rounds=empty_rounds(runs, names),
        details=[detail_of(run, names[run]) for run in runs],
    )


def _sections(
    groups: Sequence[Group], runs: Sequence[RecordedRun], names: Mapping[RecordedRun, str]
) -> list[Section]:
    """Each where it has something to say."""
    found = [class_section(groups), *(section(runs, names) for section in SECTIONS)]
    return [section for section in found if section]


def _training_pictures(groups: Sequence[Group]) -> list[Picture]:
    mixes = client_mix_picture(groups)
    return [*curve_pictures(groups), *([mixes] if mixes else [])]


def names_of(runs: Sequence[RecordedRun]) -> dict[RecordedRun, str]:
    """The folders' names, with the parent's where two have the same."""
    paths = {run: run.folder.resolve() for run in runs}
    uses = Counter(path.name for path in paths.values())
    return {
        run: printable(path.name if uses[path.name] == 1 else f"{path.parent.name}/{path.name}")
        for run, path in paths.items()
    }


def _distinct(runs: Sequence[RecordedRun], describe: Callable[[RecordedRun], str | None]) -> str:
    """The value that all runs share, or all their different values."""
    return text.listed(list(dict.fromkeys(filter(None, map(describe, runs)))), last="or")


def _title(groups: Sequence[Group], runs: Sequence[RecordedRun]) -> str:
    methods = list(dict.fromkeys(str(setting(group.runs[0], "method.name")) for group in groups))
    return f"{text.listed(methods)} on {_distinct(runs, _dataset)}"


def _facts(runs: Sequence[RecordedRun]) -> list[tuple[str, str]]:
    def plain(key: str) -> Callable[[RecordedRun], str | None]:
        return lambda run: None if (value := setting(run, key)) is None else f"{value}"

    facts = [
        ("Data set", _distinct(runs, _dataset)),
        ("Groups of images", _distinct(runs, _groups)),
        ("Broken images, left out", _distinct(runs, _broken_images)),
        ("Clients", _distinct(runs, plain("data.clients"))),
        ("Partition", _distinct(runs, _partition)),
        ("Rounds", _distinct(runs, plain("federation.rounds"))),
        ("Participation", _distinct(runs, _participation) + _unused(runs)),
        ("Model", _distinct(runs, plain("model.name"))),
        ("Scored", _distinct(runs, _scored)),
    ]
    return [(term, value) for term, value in facts if value]


def _groups(run: RecordedRun) -> str | None:
    """How many there are of images that stay together, such as a patient's."""
    count = run.environment.get("groups")
    return f"{count:,}, each on one side of every split" if isinstance(count, int) else None


def _broken_images(run: RecordedRun) -> str | None:
    count = run.environment.get("broken_images")
    return f"{count:,}" if isinstance(count, int) else None


def _worst(runs: Sequence[RecordedRun]) -> str:
    """How the worst of their clients are called."""
    counts = [setting(run, "data.clients") for run in runs]
    known = [count for count in counts if isinstance(count, int)]
    return worst_words(max(known, default=ENOUGH_CLIENTS))


def _scored(run: RecordedRun) -> str | None:
    """When and on what, where it is not after every round on all test images."""
    every, most = setting(run, "federation.evaluate_every"), setting(run, "data.test_images")
    when = f"every {every} rounds and after the last" if every not in (None, 1) else ""
    images = images_scored(run.holdout)
    what = f"on {most:,} {images}" if most else f"on {images}" if run.holdout else ""
    return " ".join(filter(None, (when, what))) or None


def _dataset(run: RecordedRun) -> str:
    name = run.summary.dataset if run.summary else ""
    return text.without_folders(dataset_words(name or str(setting(run, "data.dataset"))))


def _partition(run: RecordedRun) -> str | None:
    scheme, alpha = setting(run, "data.partition"), setting(run, "data.alpha")
    return None if scheme is None or alpha is None else split_words(scheme, alpha)


def _participation(run: RecordedRun) -> str | None:
    share, clients = setting(run, "federation.participation"), setting(run, "data.clients")
    if share is None or clients is None:
        return None
    return f"{cohort_size(clients, share)} of {clients} clients in each round ({100 * share:g} %)"


def _unused(runs: Sequence[RecordedRun]) -> str:
    """Who was asked did not always take part."""
    used, asked = (sum(counts) for counts in zip(*map(replies_used, runs), strict=True))
    return f"; {used:,} of {asked:,} replies were used" if used < asked else ""


def _cautions(
    groups: Sequence[Group], runs: Sequence[RecordedRun], names: dict[RecordedRun, str]
) -> list[str]:
    """What a reader must know before trusting the numbers."""
    cautions = class_cautions(runs, names)
    for run in runs:
        cautions += _about_run(run, names[run] if len(runs) > 1 else "")
    if any(len(group.counted) < len(group.runs) for group in groups):
        cautions.append("Means are over finished runs only; the curves show all.")
    if any(group.seeds < len(group.counted) for group in groups):
        cautions.append("Some runs repeat the same settings and seed; each of them counts.")
    if len(groups) > 1 and min(group.seeds for group in groups) == 1:
        cautions.append("With one seed of a method, a difference may be chance.")
    return cautions


def _about_run(run: RecordedRun, name: str) -> Iterator[str]:
    """`name`: empty if the page is about this run alone."""
    subject, prefix = name or "The run", f"{name}: " if name else ""
    if not run.finished:
        done, planned = Outcome.of(run).rounds, setting(run, "federation.rounds")
        yield f"{subject} is unfinished: {done} of {planned} rounds so far."
    if run.summary is not None and run.summary.stopped:
        yield f"{subject} {run.summary.stopped}."
    yield from (f"{prefix}{printable(one.sentence)}." for one in seldom_there(run)[:MOST_ABSENT])
    for row in run.rounds:
        when = f"{name}, round {row.round}" if name else f"Round {row.round}"
        yield from (f"{when}: {printable(notice)}." for notice in row.notices)
