"""The page about runs: what they have in common, who did how well, the charts, the fine print."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

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
from dcfl.comparisons.space import plain
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
    clock_section,
    clock_words,
    personal_section,
    site_section,
)
from dcfl.report.comparison_section import comparison_sections, over_section
from dcfl.report.document import Detail, Page, Picture, Section, Table
from dcfl.report.evaluation_section import evaluation_section
from dcfl.report.methods_table import methods_table, worst_clients
from dcfl.runs.folder import RecordedRun
from dcfl.runs.identity import KINDS, complete, differences, flat
from dcfl.runs.rows import ClientRow
from dcfl.runs.summaries import MOST_ABSENT, replies_used, seldom_there
from dcfl.system.wording import printable

ABOUT_DETAILS = (
    "The settings that repeat a run, and the hashes that show whether it came out the same."
)
MOST_LISTED = 6  # clients, or rounds
SHOWN_PARTITIONS = 4
SHOWN_FAILURES = 50
LONGEST_SITE = 20  # characters of its name below a column

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
    headings = names if len(runs) > 1 else dict.fromkeys(runs, "")
    standing = Standing(group_runs(runs, over), by, target, all_pairs)
    groups = standing.groups
    of_methods = [run for run in runs if any(run in group.runs for group in groups)]
    begun = any(run.rounds for run in runs)
    sections = [
        *progress,
        over_section(standing, over) if over and begun else None,
        _result_section(standing, runs, [_accuracy_picture(groups)] if begun else []),
        *comparison_sections(standing, drawn=not over),  # `over_section` has drawn them
        _training_section(groups) if begun else None,
        clock_section(runs, names),
        class_section(groups),
        personal_section(runs, headings),
        evaluation_section(runs, headings),
        site_section(runs, headings),
        _partition_section(runs),
        _failures_section(runs, names),
        Section("Details", [ABOUT_DETAILS], details=[_detail(run, names[run]) for run in runs]),
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
    table = methods_table(standing, shown, ["label", "seeds", *names, "up", "down", "time"])
    rows = [
        [
            f"{label} (unfinished)" if group.unfinished else label,
            *(cell.replace(" ", "\n", 1) for cell in cells),
        ]
        for group, (label, *cells) in zip(shown, table.rows, strict=True)
    ]
    note = Markup(" ").join(_about_results(standing, runs))
    return Section("Result", tables=[replace(table, rows=rows, note=note)], pictures=pictures)


def _about_results(standing: Standing, runs: Sequence[RecordedRun]) -> Iterator[Markup]:
    groups, images, kinds = standing.groups, scored_on(runs), clients_scored_on(runs)
    own = f"is the accuracy of clients after the last round, each on {kinds}"
    if OWN_MIX in kinds:
        own += f" (the {images}, weighted as its classes are in its training images)"
    own += ", averaged over all clients"
    if any(group.has_personal for group in groups):
        own += "; where clients have models of their own, of these, over those that have trained"
    if not standing.about_own or len(groups) == 1:
        yield Markup(
            f"<b>MAX</b> is the best {text.on_images('accuracy', images)} of any round that was "
            "scored. <b>EMA</b> is its exponential moving average (the past keeps 0.9 with each "
            "round that goes by): steadier than a single round, and below the curve while that "
            "still climbs. <b>Final</b> is the accuracy after the last round."
        )
    yield Markup(
        f"<b>Clients’ own</b> {own}; the <b>{worst_clients(groups)}</b> of them fares like that."
    )
    if standing.baselines:
        yield Markup(ABOUT_BASELINES)
    if any(group.seeds > 1 for group in groups):
        yield Markup("With several seeds, numbers are means ± the sample standard deviation.")
    if len(groups) > 1:
        same = " on the same data" if len(standing.tasks) > 1 else ""
        yield Markup(
            "Differences are in percentage points, taken seed by seed against {}{}, then averaged, "
            "with their 95 % interval."
        ).format(printable(groups[0].method), same)


ABOUT_BASELINES = (
    "<b>Baselines</b> are neither compared nor ranked. They have made as many passes over the "
    "images as the methods, to whole rounds: each client alone, with every number on what is its "
    "own, or one model on all images together. Fine-tuned: every client has trained the last model "
    "further, on its own images. The most frequent class is that of all training "
    "images; for the clients’ own numbers, that of each client."
)


def _accuracy_picture(groups: Sequence[Group]) -> Picture:
    finals = "; ".join(
        f"{group.label}: MAX {text.number(group.spread('max_accuracy').mean)} %, "
        f"EMA {text.number(group.spread('ema_accuracy').mean)} %"
        for group in groups
    )
    images = scored_on(run for group in groups for run in group.runs)
    ring = " A ring marks MAX." if len(groups) == 1 else ""
    personal = any(group.has_personal for group in groups)
    return Picture(
        "Accuracy of the global model over rounds" if personal else "Accuracy over rounds",
        f"Line chart of {text.on_images('accuracy', images)} over {_rounds(groups)}. {finals}.",
        f"Thin: the share of {images} that the global model gets right after each round. "
        f"Bold: its moving average, EMA.{_band(groups)}{ring}{chart_note(groups)}",
        accuracy_chart(groups),
        wide=True,
    )


def _rounds(groups: Sequence[Group]) -> str:
    most = max(Outcome.of(run).rounds for group in groups for run in group.runs)
    return text.plural(most, "round")


def _band(groups: Sequence[Group]) -> str:
    if all(len(group.runs) == 1 for group in groups):
        return ""
    return " Over several seeds, bold is the mean and the band runs from the lowest to the highest."


def _training_section(groups: Sequence[Group]) -> Section:
    images = scored_on(run for group in groups for run in group.runs)
    loss = text.on_images("loss", images)
    pictures = [
        Picture(
            f"{loss[0].upper()}{loss[1:]} over rounds",
            f"Line chart of {loss} over {_rounds(groups)}.",
            f"The mean cross-entropy on the {images}; lower is better. It rises when a model is "
            f"wrong and sure of it, even while the accuracy holds.{_band(groups)}",
            loss_chart(groups),
        ),
        client_mix_picture(groups),
    ]
    if (logged := logged_chart(groups)) is not None:
        names = ", ".join(quantity["label"] for quantity in logged["y"])
        about = "What the method itself has recorded, by client.log or on the server."
        pictures.append(Picture("Numbers of your own", f"Line chart of {names}.", about, logged))
    return Section("Training", pictures=[picture for picture in pictures if picture])


def _partition_section(runs: Sequence[RecordedRun]) -> Section | None:
    """None where nobody knows the samples of the clients."""
    splits, about = _splits(runs), []
    if not splits:
        return None
    if (count := len(runs_by_partition(runs))) > 1:
        effect = "so part of a difference between two runs may come from the split"
        if each_seed_has_one_partition(runs):
            effect = (
                "one for each seed, so that differences seed by seed do not come from the split"
            )
        hidden = f" The first {SHOWN_PARTITIONS} are shown." if count > SHOWN_PARTITIONS else ""
        about = [f"These runs use {count} different partitions, {effect}.{hidden}"]
    pictures = [_partition_picture(*split) for split in splits[:SHOWN_PARTITIONS]]
    return Section("Who owned which samples", about, pictures=pictures)


def _splits(runs: Sequence[RecordedRun]) -> list[tuple[RecordedRun, str, bool]]:
    """A run of each split, what tells its split from the others, and whether those differ in more
    than the seed: one of each kind, first, is enough for a paper."""
    by_partition = runs_by_partition([run for run in runs if run.samples_known])
    users = {sha256: same[0] for sha256, same in by_partition.items()}
    settings = [complete(flat(run.config)) for run in users.values()]
    keys = {key for one in settings for key, *_ in differences(settings[0], one)}
    told = [key for key in KINDS if key in keys and key.startswith("data.")]
    splits, kinds = [], set[str]()
    for (sha256, run), one in zip(users.items(), settings, strict=True):
        kind = " ".join(_told(key, one[key]) for key in told if key != "data.seed")
        seed = [_told("data.seed", one["data.seed"])] if "data.seed" in told else []
        title = ", ".join(filter(None, [kind, *seed])) or (sha256[:8] if len(users) > 1 else "")
        splits.append((run, title, kind not in kinds))
        kinds.add(kind)
    return sorted(splits, key=lambda split: not split[2])


def _told(key: str, value: Any) -> str:
    name = key.removeprefix("data.")
    return f"seed {value}" if name == "seed" else text.without_folders(f"{name}={plain(value)}")


def _partition_picture(run: RecordedRun, title: str, printed: bool) -> Picture:
    counts = run.partition_counts
    clients, classes = counts.shape
    split = Overview(counts)
    sizes, many = split.sizes, text.plural(clients, "client")
    size = f"{sizes.min():,}" if np.ptp(sizes) == 0 else f"{sizes.min():,} to {sizes.max():,}"
    held = f"the median client holds {np.median(split.held):g} of {classes} classes"
    labels = [
        printable(run.site_names.get(client, f"{client}"), LONGEST_SITE)
        for client in range(clients)
    ]
    alt = f"Heat map of samples per client and class: {many} with {size} samples each; {held}."
    explanation = (
        "Each column is a client, each row a class: the deeper the colour, the more samples. "
        f"The bars above are the clients' sizes: {size} samples; {held}."
    )
    if summed_up(counts):
        alt = (
            f"Histograms over {many} of their samples, their classes and the share of the largest "
            "class."
        )
        explanation = (
            f"How many of the {clients:,} clients have so many samples ({size}), so many classes "
            f"({held}), and such a share of one class. The smallest is client {split.smallest}, "
            f"the largest client {split.largest}; partition.npz has all."
        )
    chart = partition_chart(counts, run.class_names, labels)
    return Picture(title, alt, explanation, chart, wide=True, printed=printed)


def _failures_section(runs: Sequence[RecordedRun], names: Names) -> Section | None:
    found: dict[tuple[str, str, str], list[ClientRow]] = {}
    sentences = []
    for run in runs:
        for row in run.clients:
            if row.outcome != "ok":
                reason = text.without_folders(row.reason)
                found.setdefault((names[run], row.outcome, reason), []).append(row)
        if empty := sum(not row.used for row in run.rounds):
            sentences.append(
                f"{names[run]}: {text.plural(empty, 'round')} with too few usable replies; "
                f"the model stayed as it was."
            )
    if not found and not sentences:
        return None
    rows = [
        [*key, str(len(same)), _clients(same), _span({row.round for row in same})]
        for key, same in found.items()
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
    return _span({row.client for row in rows})


def _span(numbers: set[int]) -> str:
    if len(numbers) > MOST_LISTED:
        return f"{len(numbers)} between {min(numbers)} and {max(numbers)}"
    return ", ".join(map(str, sorted(numbers)))


def _detail(run: RecordedRun, name: str) -> Detail:
    weights = run.summary.weights_sha256 if run.summary else ""
    hashes = {"Weights": weights, "Partition": run.partition_sha256}
    code = Markup("{}, SHA-256: <code>{}</code>")
    told = [code.format(what, printable(sha256)) for what, sha256 in hashes.items() if sha256]
    texts = [
        ("Settings", text.without_folders(run.config_text.strip())),
        ("Environment", text.without_folders(json.dumps(run.environment, indent=2))),
    ]
    return Detail(name, Markup("<br>").join(told), texts, "" if run.finished else "unfinished")


def names_of(runs: Sequence[RecordedRun]) -> dict[RecordedRun, str]:
    """The folders' names, with the parent's where two have the same."""
    paths = {run: run.folder.resolve() for run in runs}
    uses = Counter(path.name for path in paths.values())
    return {
        run: printable(path.name if uses[path.name] == 1 else f"{path.parent.name}/{path.name}")
        for run, path in paths.items()
    }


def _distinct(runs: Sequence[RecordedRun], describe: Callable[[RecordedRun], str | None]) -> str:
    return text.listed(list(dict.fromkeys(filter(None, map(describe, runs)))), last="or")


def _title(groups: Sequence[Group], runs: Sequence[RecordedRun]) -> str:
    methods = list(dict.fromkeys(str(setting(group.runs[0], "method.name")) for group in groups))
    return f"{text.listed(methods)} on {_distinct(runs, _dataset)}"


def _facts(runs: Sequence[RecordedRun]) -> list[tuple[str, str]]:
    described: dict[str, Callable[[RecordedRun], str | None]] = {
        "Data set": _dataset,
        "Groups of images": partial(_environment, "groups", ", each on one side of every split"),
        "Broken images, left out": partial(_environment, "broken_images", ""),
        "Clients": partial(_plain, "data.clients"),
        "Partition": _partition,
        "Rounds": partial(_plain, "federation.rounds"),
        "Participation": _participation,
        "Clock": clock_words,
        "Model": partial(_plain, "model.name"),
        "Scored": _scored,
    }
    facts = {term: _distinct(runs, describe) for term, describe in described.items()}
    used, asked = (sum(counts) for counts in zip(*map(replies_used, runs), strict=True))
    if used < asked:  # who was asked did not always take part
        facts["Participation"] += f"; {used:,} of {asked:,} replies were used"
    return [(term, value) for term, value in facts.items() if value]


def _plain(key: str, run: RecordedRun) -> str | None:
    return None if (value := setting(run, key)) is None else f"{value}"


def _environment(key: str, more: str, run: RecordedRun) -> str | None:
    """A count that was taken of the data. Groups are images that stay together, as a patient's."""
    count = run.environment.get(key)
    return f"{count:,}{more}" if isinstance(count, int) else None


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


def _cautions(
    groups: Sequence[Group], runs: Sequence[RecordedRun], names: dict[RecordedRun, str]
) -> list[str]:
    cautions = class_cautions(runs)
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
