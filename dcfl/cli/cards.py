"""What verbs print about one thing: a run, an estimate, a data set, a method."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dcfl.cli.terminal import (
    LONGEST_NAME,
    NARROWEST,
    WIDEST,
    duration,
    megabytes,
    sparkline,
    stdout,
)
from dcfl.config import to_toml
from dcfl.data.dataset_summary import DatasetSummary
from dcfl.data.settings import accuracy_words, dataset_words
from dcfl.experiment import Experiment
from dcfl.runs.estimate import Estimate
from dcfl.runs.evaluations import WEIGHTING, scored_by_sites
from dcfl.runs.folder import RecordedRun
from dcfl.runs.prepare import Prepared
from dcfl.runs.rows import ClassRecall, RoundRow, Summary
from dcfl.runs.summaries import MOST_ABSENT, global_words, own_words, percent, seldom_there
from dcfl.system.wording import printable

FEW_CLASSES = 5  # named one by one


def run_card(summary: Summary, rounds: Sequence[RoundRow], engine: str, folder: Path) -> str:
    lost = f", {summary.lost} replies lost" if summary.lost else ""
    page, recorded = folder / "report.html", RecordedRun(folder)
    by_sites = scored_by_sites(recorded)
    # The accuracy may be weighted though the sites that told their classes are not.
    weighted = any(site.weight < 1 for row in rounds[-1:] for site in row.sites)
    notes = [*(by_sites.notes if by_sites else []), *([WEIGHTING] if weighted else [])]
    common = global_words(summary, accuracy_words(recorded.holdout))
    if summary.personal_models:
        judged = f"the clients' own models {own_words(summary)}"
        common += f"; {percent(summary.client_accuracy)} on average at the clients"
    else:
        judged = f"the global model's {common}" if recorded.own_models else common
    best = f"round {summary.best_round}, {percent(summary.best_accuracy)}"
    best = f"global model of {best}" if summary.personal_models else best
    lines = [
        f"{summary.method} on {dataset_words(summary.dataset)}: {judged}; "
        f"{summary.seconds:.1f} s{lost}",
        *([f"global  {common}"] if summary.personal_models else []),
        sparkline([row.accuracy for row in rounds if row.accuracy is not None], 40),
        *class_lines(
            summary.recalls,
            bool(by_sites and by_sites.weighted),
            "of the global model, " if recorded.own_models else "",
        ),
        *(f"scored  {note}" for note in dict.fromkeys(notes)),
        f"engine  {engine}",
        f"weights {summary.weights_sha256[:16]}",
        *([f"ended   {summary.stopped}"] if summary.stopped else []),
        *([f"best    {best}, in best.safetensors"] if summary.best_round is not None else []),
        *([f"report  {page}"] if page.is_file() else []),
        *(f"absent  {one.sentence}" for one in seldom_there(recorded)[:MOST_ABSENT]),
    ]
    return "\n".join(map(printable, lines))


def class_lines(
    recalls: Sequence[ClassRecall], weighted: bool = False, whose: str = ""
) -> list[str]:
    """The share of each class's test images that is recognised, or the lowest; and on a line of
    their own, classes that never are. `weighted`: images count differently, and the share is not
    one of how many there are."""
    known = [one for one in recalls if one.recall is not None]
    if not known:
        return []
    lowest = sorted(known, key=lambda one: one.recall or 0.0)
    shown = known if len(known) <= FEW_CLASSES else lowest[:FEW_CLASSES]
    words = [
        f"{printable(one.name, LONGEST_NAME)}: {one.recall:.1f} % "
        + (f"({one.images:,} images)" if weighted else f"of {one.images:,}")
        for one in shown
    ]
    which = "" if shown is known else f"lowest of {len(known):,} classes: "
    missed = [one.name for one in known if one.missed]
    never = [f"missed  never recognised: {_first(missed)}"] if missed else []
    return [f"recall  {whose}{which}{', '.join(words)}", *never]


def estimate_card(prepared: Prepared, estimate: Estimate) -> str:
    experiment = prepared.experiment
    sizes = prepared.data.partition.sizes
    least, most = int(sizes.min()), int(sizes.max())
    images = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    free = f"{megabytes(estimate.available_bytes)} are free"
    lines = {
        "what": f"{experiment.method.name} on {experiment.data.dataset}, {model_words(prepared)}",
        "clients": f"{prepared.cohort} of {len(sizes):,} a round, {images} images each; "
        f"{experiment.federation.rounds:,} rounds",
        "time": f"{duration(estimate.round_seconds)} a round, {duration(estimate.seconds)} in all",
        "memory": f"{megabytes(estimate.peak_bytes)} at most; {free}"
        if estimate.fits
        else f"{megabytes(estimate.peak_bytes)}, and {free}: it does not fit. Fewer engine.workers "
        "or a smaller training.batch_size take less",
        "engine": prepared.workers,
        "disk": f"{megabytes(estimate.disk_bytes)} at most",
        "sent": f"{megabytes(estimate.bytes_up)} up, {megabytes(estimate.bytes_down)} down",
        "measured": f"{estimate.visits} visits of clients, in {estimate.measured_seconds:.1f} s",
    }
    return "\n".join(printable(f"{label:9}{text}") for label, text in lines.items())


def model_words(prepared: Prepared) -> str:
    count = sum(parameter.numel() for parameter in prepared.model.parameters())
    size = f"{count / 1e6:.1f} M" if count >= 1e5 else f"{count:,}"
    name = type(prepared.model).__name__ if prepared.own_model else prepared.experiment.model.name
    return f"{name} with {size} parameters, {prepared.experiment.engine.precision}"


def dataset_card(summary: DatasetSummary) -> str:
    lines = {
        "data set": summary.dataset,
        "images": f"{summary.train:,} to train on, {summary.test:,} to test on "
        f"({_test_shares(summary)})",
        "size": f"{summary.shape[1]} x {summary.shape[2]} pixels, {summary.shape[0]} channels"
        if len(summary.shape) == 3
        else f"{'feature vectors' if summary.vectors else 'inputs'} of "
        f"{' x '.join(map(str, summary.shape))}",
        "classes": f"{len(summary.class_names)}: {_first(summary.class_names)}",
        "balance": f"{summary.smallest_class:,} to {summary.largest_class:,} training images of "
        "a class",
    }
    if summary.groups is not None:
        lines["groups"] = f"{summary.groups:,}, each whole in every split (data.group)"
    if summary.mixed_groups:
        lines["groups"] += f"; {summary.mixed_groups:,} with images of several classes"
    if sites := summary.sites:
        least, most = min(sites.values()), max(sites.values())
        sizes = f"{least:,} images each" if least == most else f"{least:,} to {most:,} images"
        lines["sites"] = f"{len(sites)}, of {sizes}: {_first(sites)}"
    if lacking := summary.lacking:
        lines["lacking"] = _lacking(lacking)
    if identical := str(summary.identical):
        lines["identical"] = f"{identical} (counted by their pixels)"
    if summary.official:
        lines["checksums"] = "the official ones"
    return "\n".join(printable(f"{label:10} {text}") for label, text in lines.items())


def _test_shares(summary: DatasetSummary) -> str:
    least, most = summary.smallest_test_share, summary.largest_test_share
    of_a_class = f"{100 * least:.0f} to {100 * most:.0f} % of a class"
    return f"{100 * summary.test_share:.0f} %" + (f", {of_a_class}" if most - least > 0.02 else "")


def _lacking(lacking: Mapping[str, Sequence[str]], most: int = 3) -> str:
    some = [
        f"{printable(site, LONGEST_NAME)} has no {_first(names, most)}"
        for site, names in [*lacking.items()][:most]
    ]
    more = len(lacking) - len(some)
    return "; ".join([*some, *([f"and {more:,} more sites lack classes"] if more else [])])


def _first(names: Collection[str], most: int = 10) -> str:
    first = [printable(name, LONGEST_NAME) for name in list(names)[:most]]
    return ", ".join(first) + (", ..." if len(names) > most else "")


def method_card(description: Mapping[str, Any]) -> str:
    width = max(stdout.width, NARROWEST) if stdout.is_terminal else WIDEST
    lines = [
        textwrap.fill(text, width, initial_indent=f"  {label:7}", subsequent_indent=" " * 9)
        for label, text in _method_lines(description)
    ]
    return "\n".join([description["name"], *lines])


def _method_lines(description: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    cost = description["cost"]
    yield "what", description["idea"]
    yield "loss", description["equation"]
    yield "cost", ", ".join(_costs(cost))
    sent = [
        f"bytes {way}: " + " + ".join(part for part in ("weights", cost[way]) if part != "0")
        for way in ("up", "down")
    ]
    yield "sends", ", ".join(sent)
    published = [
        f"{key} = {value:g} on {dataset}"
        for dataset, values in description["published"].items()
        for key, value in values.items()
    ]
    if published:
        yield "paper", ", ".join([*published, "the default there"])
    for field in description["fields"]:
        yield "field", f"{field['name']} = {to_toml(field['default'])}  ({field['type']})"


def _costs(cost: Mapping[str, Any]) -> Iterator[str]:
    yield f"{cost['forwards']} forward and {cost['backwards']} backward per step"
    if cost["copies"]:
        yield f"{cost['copies']} more copies of the model"
    if cost["passes"]:
        yield f"{cost['passes']} pass over the local data per round"
    if cost["tuned"]:
        yield f"{cost['tuned']} pass with gradients over the local data per round"
    if cost["kept"] != "0":
        yield f"bytes kept by a client: {cost['kept']}"


def first_line(prepared: Prepared) -> str:
    workers, threads = len(prepared.placement.devices), prepared.experiment.engine.threads
    where = f"{workers} worker{'s' if workers > 1 else ''} x {threads} thread"
    if prepared.placement.devices[0].type == "cuda":
        where = f"{workers} x {prepared.placement.name}"
    return f"{model_words(prepared)}; {where}{'s' if threads > 1 else ''}"


def chosen_by_data(asked: Experiment, prepared: Prepared) -> str:
    """What was left to the data and is not as usual; empty if there is nothing of the kind."""
    dataset = prepared.data.dataset
    kind = "clients" if dataset.partition is None else "sites"
    who = f"{prepared.cohort} of {len(prepared.data.partition)} {kind} a round"
    if asked.federation.participation == "auto" and dataset.partition is not None:
        return f"{who} (federation.participation)"
    if asked.data.clients != "auto" or not dataset.users_own:
        return ""
    return f"{who}, for {len(dataset.train):,} images (data.clients, federation.participation)"
