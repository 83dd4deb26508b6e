"""The page about runs: what they have in common, who did how well, the pictures, the fine print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from dcfl.data.partition import split_words
from dcfl.data.settings import dataset_words, images_scored
from dcfl.federation import cohort_size
from dcfl.report import text
from dcfl.report.class_section import class_cautions, class_section
from dcfl.report.client_mixes import client_mix_picture
from dcfl.report.comparison_section import comparison_sections
from dcfl.report.document import Picture, Section
from dcfl.report.evaluation_section import evaluation_section
from dcfl.report.personal_section import personal_section
from dcfl.report.run_details import detail_of, empty_rounds, failures_of, judges_of
from dcfl.report.run_pictures import curve_pictures, partition_note, partition_pictures
from dcfl.report.shell import rendered
from dcfl.report.site_section import site_section
from dcfl.report.verdict import headline
from dcfl.runs.evaluations import MANY_CLIENTS, WEIGHTING, worst_words
from dcfl.runs.folder import RecordedRun
from dcfl.runs.groups import (
    Group,
    Outcome,
    group_runs,
    scored_on,
    setting,
)
from dcfl.runs.participation import replies_used, seldom_there
from dcfl.runs.standing import Standing
from dcfl.system.printable import printable

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
    return worst_words(max(known, default=MANY_CLIENTS))


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
