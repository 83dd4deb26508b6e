"""The page about runs: what they have in common, who did how well, the charts, the fine print."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from markupsafe import Markup

from dcfl.comparisons.groups import (
    Group,
    Outcome,
    clients_scored_on,
    each_seed_has_one_partition,
    group_runs,
    runs_by_partition,
    scored_on,
    setting,
)
from dcfl.comparisons.standing import Standing
from dcfl.comparisons.verdict import headline
from dcfl.data.dataset_summary import Overview
from dcfl.data.settings import dataset_words, images_scored
from dcfl.data.splits.partition import split_words
from dcfl.evaluation import OWN_MIX
from dcfl.federation import cohort_size
from dcfl.report import text
from dcfl.report.charts import (
    accuracy_chart,
    chart_note,
    logged_chart,
    loss_chart,
    partition_chart,
    summed_up,
)
from dcfl.report.client_sections import (
    class_cautions,
    class_section,
    client_mix_picture,
    personal_section,
    site_section,
)
from dcfl.report.clock_section import clock_section, clock_words
from dcfl.report.comparison_section import comparison_sections
from dcfl.report.document import Detail, Page, Picture, Section, Table
from dcfl.report.evaluation_section import evaluation_section
from dcfl.report.methods_table import methods_table, worst_clients
from dcfl.report.over_section import over_section
from dcfl.runs.evaluations import WEIGHTING
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import ClientRow
from dcfl.runs.summaries import replies_used, seldom_there
from dcfl.system.wording import printable

MOST_LISTED = 6  # clients, or rounds
SHOWN_PARTITIONS = 4
SHOWN_FAILURES = 50
LONGEST_SITE = 20  # characters of its name below a column
MOST_ABSENT = 10  # sites of a run, each with a caution

Names = Mapping[RecordedRun, str]


def page_of(
    runs: Sequence[RecordedRun],
    target: float | None = None,
    progress: Sequence[Section] = (),
    troubles: Sequence[str] = (),
    all_pairs: bool = False,
    over: Sequence[str] = (),
    by: str = "",
) -> Page:
    names = names_of(runs)
    standing = Standing(group_runs(runs, over), by, target, all_pairs)
    groups = standing.groups
    of_methods = [run for run in runs if any(run in group.runs for group in groups)]
    begun = any(run.rounds for run in runs)
    sections = [
        *progress,
        over_section(standing, over) if over and begun else None,
        _result_section(standing, runs, [_accuracy_picture(groups)] if begun else []),
        *comparison_sections(standing),
        _training_section(groups) if begun else None,
        clock_section(runs, names),
        class_section(groups),
        personal_section(runs, names),
        evaluation_section(runs, names),
        site_section(runs, names),
        _partition_section(runs, names),
        _judges_section(runs, names),
        _failures_section(runs, names),
        _details_section(runs, names),
    ]
    return Page(
        _title(groups, of_methods),
        _facts(of_methods),
        headline(standing),
        [section for section in sections if section],
        [*_cautions(groups, runs, names), *troubles],
    )


def _result_section(
    standing: Standing, runs: Sequence[RecordedRun], pictures: Sequence[Picture]
) -> Section:
    groups, shown = standing.groups, standing.shown
    names = ["MAX", "EMA", "gain and interval", "final", "own final", "worst"]
    if standing.about_own:
        names = ["own final", "gain and interval", "worst"]
    if len(groups) == 1:  # the model that is there, before the best that there was
        names = ["final", "MAX", "EMA", "own final", "worst"]
    names = ["label", "seeds", *names, "up", "down", "time"]
    table = methods_table(standing, shown, names)
    rows = [
        [
            f"{label} (unfinished)" if group.unfinished else label,
            *(cell.replace(" ", "\n", 1) for cell in cells),
        ]
        for group, (label, *cells) in zip(shown, table.rows, strict=True)
    ]
    note = _about_results(standing, runs, worst_clients(groups))
    return Section("Result", tables=[replace(table, rows=rows, note=note)], pictures=pictures)


def _about_results(standing: Standing, runs: Sequence[RecordedRun], worst: str) -> Markup:
    groups, images = standing.groups, scored_on(runs)
    kinds = clients_scored_on(runs)
    own = f"is the accuracy of clients after the last round, each on {kinds}"
    if OWN_MIX in kinds:
        own += f" (the {images}, weighted as its classes are in its training images)"
    own += ", averaged over all clients"
    if any(group.has_personal for group in groups):
        own += "; where clients have models of their own, of these, over those that have trained"
    sentences = [
        f"<b>MAX</b> is the best {text.on_images('accuracy', images)} of any round that was "
        "scored. <b>EMA</b> is its exponential moving average (the past keeps 0.9 with each round "
        "that goes by): steadier than a single round, and below the curve while that still climbs. "
        "<b>Final</b> is the accuracy after the last round."
    ]
    if standing.about_own and len(groups) > 1:
        sentences = []
    sentences.append(f"<b>Clients’ own</b> {own}; the <b>{worst}</b> of them fares like that.")
    if standing.baselines:
        sentences.append(ABOUT_BASELINES)
    if any(group.seeds > 1 for group in groups):
        sentences.append("With several seeds, numbers are means ± the sample standard deviation.")
    note = Markup(" ".join(sentences))
    if len(groups) == 1:
        return note
    same = " on the same data" if len(standing.tasks) > 1 else ""
    return note + Markup(
        " Differences are in percentage points, taken seed by seed against {}{}, then averaged, "
        "with their 95 % interval."
    ).format(printable(groups[0].method), same)


ABOUT_BASELINES = (
    "<b>Baselines</b> are neither compared nor ranked. They have made as many passes over the "
    "images as the methods, to whole rounds: each client alone, with every number on what is its "
    "own, or one model on all images together. Fine-tuned: every client has trained the last model "
    "further, on its own images. The most frequent class is that of all training "
    "images; for the clients’ own numbers, that of each client."
)
BAND = " Over several seeds, bold is the mean and the band runs from the lowest to the highest."


def _accuracy_picture(groups: Sequence[Group]) -> Picture:
    finals = "; ".join(
        f"{group.label}: MAX {_percent(group, 'max_accuracy')}, "
        f"EMA {_percent(group, 'ema_accuracy')}"
        for group in groups
    )
    several = any(len(group.runs) > 1 for group in groups)
    images = scored_on(run for group in groups for run in group.runs)
    ring = " A ring marks MAX." if len(groups) == 1 else ""
    personal = any(group.has_personal for group in groups)
    return Picture(
        "Accuracy of the global model over rounds" if personal else "Accuracy over rounds",
        f"Line chart of {text.on_images('accuracy', images)} over {_rounds(groups)}. {finals}.",
        f"Thin: the share of {images} that the global model gets right after each round. "
        f"Bold: its moving average, EMA.{BAND if several else ''}{ring}{chart_note(groups)}",
        accuracy_chart(groups),
        wide=True,
    )


def _rounds(groups: Sequence[Group]) -> str:
    most = max(Outcome.of(run).rounds for group in groups for run in group.runs)
    return text.plural(most, "round")


def _training_section(groups: Sequence[Group]) -> Section:
    several = any(len(group.runs) > 1 for group in groups)
    images = scored_on(run for group in groups for run in group.runs)
    loss = text.on_images("loss", images)
    pictures = [
        Picture(
            f"{loss[0].upper()}{loss[1:]} over rounds",
            f"Line chart of {loss} over {_rounds(groups)}.",
            f"The mean cross-entropy on the {images}; lower is better. It rises when a model is "
            f"wrong and sure of it, even while the accuracy holds.{BAND if several else ''}",
            loss_chart(groups),
        ),
        client_mix_picture(groups),
    ]
    if (logged := logged_chart(groups)) is not None:
        names = ", ".join(quantity["label"] for quantity in logged["y"])
        about = "What the method itself has recorded, by client.log or on the server."
        pictures.append(Picture("Numbers of your own", f"Line chart of {names}.", about, logged))
    return Section("Training", pictures=[picture for picture in pictures if picture])


def _percent(group: Group, quantity: str) -> str:
    return f"{text.number(group.spread(quantity).mean)} %"


def _partition_section(runs: Sequence[RecordedRun], names: Names) -> Section | None:
    """None where nobody knows the samples of the clients."""
    by_partition = runs_by_partition([run for run in runs if run.samples_known])
    several = len(by_partition) > 1
    pictures = [
        _partition_picture(
            users[0], f"{sha256[:8]}: {_some([names[run] for run in users])}" if several else ""
        )
        for sha256, users in list(by_partition.items())[:SHOWN_PARTITIONS]
    ]
    if not pictures:
        return None
    return Section("Who owned which samples", _about_partitions(runs), pictures=pictures)


def _some(names: list[str], most: int = 3) -> str:
    return text.listed(names if len(names) <= most else [*names[:2], f"{len(names) - 2} more"])


def _partition_picture(run: RecordedRun, title: str) -> Picture:
    counts, class_names = run.partition_counts, run.class_names
    clients, classes = counts.shape
    split = Overview(counts)
    sizes = split.sizes
    size = f"{sizes.min():,}" if np.ptp(sizes) == 0 else f"{sizes.min():,} to {sizes.max():,}"
    held = f"{np.median(split.held):g} of {classes} classes"
    labels = [
        printable(run.site_names.get(client, f"{client}"), LONGEST_SITE)
        for client in range(clients)
    ]
    if summed_up(counts):
        alt = (
            f"Histograms over {text.plural(clients, 'client')} of their samples, their classes "
            f"and the share of the largest class."
        )
        explanation = (
            f"How many of the {clients:,} clients have so many samples ({size}), so many classes "
            f"(the median client holds {held}), and such a share of one class. The smallest is "
            f"client {split.smallest}, the largest client {split.largest}; partition.npz has all."
        )
    else:
        alt = (
            f"Heat map of samples per client and class: {text.plural(clients, 'client')} with "
            f"{size} samples each; the median client holds {held}."
        )
        explanation = (
            "Each column is a client, each row a class: the deeper the colour, the more samples. "
            f"The bars above are the clients' sizes: {size} samples. The median client holds "
            f"{held}."
        )
    chart = partition_chart(counts, class_names, labels)
    return Picture(title, alt, explanation, chart, wide=True)


def _about_partitions(runs: Sequence[RecordedRun]) -> list[str]:
    count = len(runs_by_partition(runs))
    if count < 2:
        return []
    if each_seed_has_one_partition(runs):
        effect = "one for each seed, so that differences seed by seed do not come from the split"
    else:
        effect = "so part of a difference between two runs may come from the split"
    hidden = f" The first {SHOWN_PARTITIONS} are shown." if count > SHOWN_PARTITIONS else ""
    return [f"These runs use {count} different partitions, {effect}.{hidden}"]


def _judges_section(runs: Sequence[RecordedRun], names: Names) -> Section | None:
    """The sites that score the model on test images of their own, after their last report."""
    judges: dict[tuple[str, int], list[str]] = {}
    for run in runs:
        for row in run.rounds:
            total = sum(site.images * site.weight for site in row.sites) or 1
            for site in row.sites:
                judges[names[run], site.client] = [
                    names[run],
                    printable(run.site_names.get(site.client, f"{site.client}")),
                    text.number(site.accuracy),
                    str(row.round),
                    str(site.images),
                    text.number(100 * site.images * site.weight / total),
                ]
    if not judges:
        return None
    columns = ("Run", "Site", "Accuracy, %", "Round", "Images", "Share of the say, %")
    paragraph = (
        "There is no common test set: a site counts its own right answers, and nobody else can "
        f"check them. In the accuracy above, {WEIGHTING}."
    )
    table = Table(columns, [judges[key] for key in sorted(judges)], sentences=True)
    return Section("Each site’s own test images", [paragraph], [table])


def _failures_section(runs: Sequence[RecordedRun], names: Names) -> Section | None:
    """What went wrong in each run, however often."""
    found: dict[tuple[str, str, str], list[ClientRow]] = {}
    for run in runs:
        for row in run.clients:
            if row.outcome != "ok":
                reason = text.without_folders(row.reason)
                found.setdefault((names[run], row.outcome, reason), []).append(row)
    empty = {run: sum(not row.used for row in run.rounds) for run in runs}
    sentences = [
        f"{names[run]}: {text.plural(count, 'round')} with too few usable replies; "
        f"the model stayed as it was."
        for run, count in empty.items()
        if count
    ]
    if not found and not sentences:
        return None
    rows = [
        [*key, str(len(same)), _clients(same), _span(same, "round")] for key, same in found.items()
    ]
    more = len(rows) - SHOWN_FAILURES
    note = f"And {more} more, in the runs' clients.jsonl." if more > 0 else ""
    columns = ("Run", "Outcome", "Reason", "Times", "Clients", "Rounds")
    about = (
        "Clients whose reply did not come (failed) or could not be used (rejected); the rounds "
        "went on without them."
    )
    tables = [Table(columns, rows[:SHOWN_FAILURES], note=note, sentences=True)] if rows else []
    return Section("Failures", [about, *sentences], tables)


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


def _details_section(runs: Sequence[RecordedRun], names: Names) -> Section:
    about = "The settings that repeat a run, and the hashes that show whether it came out the same."
    return Section("Details", [about], details=[_detail(run, names[run]) for run in runs])


def _detail(run: RecordedRun, name: str) -> Detail:
    hashes = {
        "Weights": run.summary.weights_sha256 if run.summary else "",
        "Partition": run.partition_sha256,
    }
    code = Markup("{}, SHA-256: <code>{}</code>")
    return Detail(
        name,
        Markup("<br>").join(
            code.format(what, printable(sha)) for what, sha in hashes.items() if sha
        ),
        [
            ("Settings", text.without_folders(run.config_text.strip())),
            ("Environment", text.without_folders(json.dumps(run.environment, indent=2))),
        ],
        "" if run.finished else "unfinished",
    )


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
        ("Clock", _distinct(runs, clock_words)),
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
    if any(len({run.finished for run in group.runs}) > 1 for group in groups):
        cautions.append("Means are over finished runs only; the curves show all.")
    if any(group.copies for group in groups):
        cautions.append("Some folders hold the same run; it counts once.")
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
