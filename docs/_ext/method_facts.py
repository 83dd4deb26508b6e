"""What nobody has to type about a method: its fields, its costs and its measured results."""

import json
import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any
from xml.sax.saxutils import unescape

from config_keys import row
from markdown_tables import key_table, table

from benchmarks.reproduction_page import Row, rows_of
from dcfl.config import describe_method
from dcfl.methods import METHODS
from dcfl.testing.properties import overridden_hooks

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results"
IDEAS = REPOSITORY / "docs" / "images" / "ideas"
ORACLES = REPOSITORY / "tests" / "methods" / "oracles"
SPLITS = {"iid": "an even split", "0.3": "Dirichlet 0.3"}
READING = (
    "Digits, Dirichlet 0.3: [side by side](../methods.md#measured-on-the-built-in-digits); "
    "Dirichlet 0.1: the setting of `make run`. CIFAR, "
    "late: 100 clients of 40 images, a ResNet-8, 500 rounds. "
    "Early: all images, a compact CNN, 40 rounds. In the paper: all images, a ResNet-18, to the "
    "end. [The paper, reproduced](../reproduction.md) has the settings and the conclusions."
)
PASS = "a pass over its images, without gradients"
OWN = "its own part of the model, which is not sent"
TUNED = "a pass over its images, with gradients"
DIGITS_COHORT = 5  # clients in a round of the digits
DESCRIPTION = re.compile("<desc[^>]*>(.*)</desc>")
DATA_SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
TRAINED = {"reproduction": "late", "early-training": "early"}  # folders with results


def with_idea(name: str, page: str) -> str:
    """A page of docs/methods/ with the picture of its idea below the heading."""
    told = DESCRIPTION.search((IDEAS / f"{name}.svg").read_text(encoding="utf-8"))
    assert told, name
    picture = (
        f":::{{image}} ../images/ideas/{name}.svg\n:alt: {unescape(told[1])}\n:class: idea\n:::"
    )
    heading, _, rest = page.partition("\n")
    return f"{heading}\n\n{picture}\n{rest}"


def overview() -> str:
    """All methods: the idea, and what it costs beyond FedAvg."""
    rows = []
    for name, method in METHODS.items():
        facts = describe_method(method)
        time = next((f"{ratio:.2f}" for ratio in times(name).values()), "")
        rows.append([f"[{name}](methods/{name}.md)", facts["idea"], sent(facts["cost"]), time])
    return table(["method", "idea", "sends, beyond the weights", "time / FedAvg's"], rows)


def digits() -> str:
    rows = [
        [f"[{name}](methods/{name}.md)", *_scores(measured)] for name, measured in _digits().items()
    ]
    return table(["method", "MAX %", "EMA %", "vs fedavg"], rows)


def costs(name: str) -> str:
    """What a method sends, keeps and costs, and where its code is."""
    method = METHODS[name]
    cost = describe_method(method)["cost"]
    module = method.__module__.replace(".", "/")
    hooks = ", ".join(f"`{hook}`" for hook in overridden_hooks(method)) or "none"
    rows = [
        ["a step", f"{_passes(cost, 'forward')}, {_passes(cost, 'backward')}"],
        ["beside a client's training", after_training(cost)],
        ["copies of the model, beyond FedAvg's", str(cost["copies"])],
        ["sends, beyond the weights", sent(cost)],
        ["a client keeps between rounds", OWN if method.personal else _plain(cost["kept"])],
        *([["measured traffic", _traffic(name)]] if name in _digits() else []),
        *([["measured time of a round", _times(name)]] if times(name) else []),
        *([["compared with", _oracle(name)]] if (ORACLES / f"{name}.json").exists() else []),
        ["hooks it overrides", hooks],
        ["code", f"[{module}.py](../../{module}.py)"],
    ]
    return table(["", ""], rows)


def knobs(name: str) -> str:
    """The fields with default and meaning, and the DCFL paper's values."""
    method = METHODS[name]
    rows = [row(method(), field, "method") for field in fields(method)]
    told = [[key, default, meaning] for key, default, _, meaning in rows]
    parts = [key_table(["key", "default", "type, meaning"], told)] if told else []
    published = [
        f"`{key} = {value:g}` on {dataset}"
        for dataset, values in method.published.items()
        for key, value in values.items()
    ]
    if published:
        parts.append(
            f"The DCFL paper's values are the default on its data: {', '.join(published)}."
        )
    return "\n\n".join(parts)


def results(name: str) -> str:
    """Every setting in which the method was trained beside FedAvg."""
    rows = []
    if name in _digits():
        rows.append(["digits, Dirichlet 0.3, five seeds", *_scores(_digits()[name]), ""])
    if (zoo := RESULTS / "zoo" / f"{name}.json").exists():
        own = json.loads(zoo.read_text())["methods"][-1]
        rows.append(["digits, Dirichlet 0.1, 2 clients a round, three seeds", *_scores(own), ""])
    for folder, when in TRAINED.items():
        for one in _cifar(folder):
            if one.row.lower() == name and one.paper:
                where = f"{DATA_SETS[one.block]}, {SPLITS[one.column]}, {when}"
                rows.append(
                    [
                        f"{where}, seeds: {one.spread().count}",
                        f"{one.spread('max')}",
                        f"{one.spread()}",
                        f"{one.gain.paired.spread:+}" if one.gain else "",
                        f"{one.paper['ema']:.2f}",
                    ]
                )
    head = ["", "MAX %", "EMA %", "EMA − FedAvg", "EMA in the DCFL paper"]
    if not rows:
        return "It was not trained in the comparisons of the other methods."
    return f"{table(head, rows)}\n\n{READING}"


def after_training(cost: dict[str, Any]) -> str:
    return PASS if cost["passes"] else TUNED if cost["tuned"] else "nothing"


def sent(cost: dict[str, Any]) -> str:
    """Bytes up and down in addition to the weights."""
    parts = [f"{way}: {_plain(cost[way])}" for way in ("up", "down") if cost[way] != "0"]
    return "; ".join(parts) or "nothing"


def _oracle(name: str) -> str:
    """The authors' files with which a test compares the method."""
    theirs = json.loads((ORACLES / f"{name}.json").read_text())
    home = f"https://github.com/{theirs['repository']}/blob/{theirs['commit']}"
    files = ", ".join(f"[{file}]({home}/{file})" for file in theirs["files"])
    return f"the numbers that {theirs['repository']} gives: {files}"


def _times(name: str) -> str:
    told = [f"{ratio:.2f} of FedAvg's ({model})" for model, ratio in times(name).items()]
    return f"{', '.join(told)}: [Speed](../speed.md#what-a-method-costs)"


def times(name: str) -> dict[str, float]:
    """The time of a round relative to FedAvg's, as in the tables of the speed page."""
    told = {}
    for model, label in (("cnn", "compact CNN"), ("resnet18", "ResNet-18")):
        seconds = json.loads((RESULTS / f"methods-{model}.json").read_text())["models"][model]
        if name in seconds:
            pairs = zip(seconds[name], seconds["fedavg"], strict=True)
            told[label] = median(own / plain for own, plain in pairs)
    return told


def _traffic(name: str) -> str:
    def each(measured: dict[str, Any], key: str) -> str:
        sent = measured[key]["mean"] / measured["rounds"]["mean"] / DIGITS_COHORT
        return f"{sent / 1000:.0f} kB"

    own = _digits()[name]
    return (
        f"{each(own, 'bytes_up')} up and {each(own, 'bytes_down')} down for a client and round of "
        f"the digits (FedAvg: {each(_digits()['fedavg'], 'bytes_up')})"
    )


def _plain(formula: str) -> str:
    return {
        "0": "nothing",
        "weights": "a copy of the model",
        "parameters": "as much as the model",
    }.get(formula, f"`{formula}` bytes")


def _passes(cost: dict[str, Any], direction: str) -> str:
    number = cost[f"{direction}s"]
    return f"{number} {direction} pass{'es' if number > 1 else ''}"


def _scores(measured: dict[str, Any]) -> list[str]:
    def spread(value: dict[str, float] | None, sign: str = "") -> str:
        return f"{value['mean']:{sign}.2f} ± {value['deviation']:.2f}" if value else ""

    return [
        spread(measured["max_accuracy"]),
        spread(measured["ema_accuracy"]),
        spread(measured["gain"], "+"),
    ]


@cache
def _digits() -> dict[str, dict[str, Any]]:
    rows = json.loads((RESULTS / "digits-methods.json").read_text())["methods"]
    return {one["method"]: one for one in rows}


@cache
def _cifar(folder: str) -> list[Row]:
    return rows_of(f"{folder}/participation-5")


MAKERS: dict[str, Callable[..., str]] = {
    "methods-overview": overview,
    "methods-digits": digits,
    "method-costs": costs,
    "method-knobs": knobs,
    "method-results": results,
}
