"""The card of an exported model: README.md as hubs of models read it, and config.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

from dcfl.data import Preparation
from dcfl.data.client_data import normalises_by_batch
from dcfl.data.splits.partition import split_words
from dcfl.errors import ConfigError
from dcfl.runs.evaluations import EvaluationRecord, read_evaluations
from dcfl.runs.folder import RecordedRun
from dcfl.runs.model_file import Which
from dcfl.runs.rows import ClassRecall
from dcfl.system.json_types import Json
from dcfl.trained.exported_graph import ExportedGraph
from dcfl.trained.subject import data_settings, kind_of_images

OURS = "\nlibrary_name: dcfl\n"  # in the head of every card
LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,60}")
MOST_NAMES = 20  # of classes
MOST_NUMBERS = 16  # of a mean, in code
OPEN_PROGRAM = "torch.export.load({}).module()"


class Metric(NamedTuple):
    kind: str  # as hubs call it
    name: str
    percent: float
    images: str  # which it was measured on


@dataclass(frozen=True)
class CardFacts:
    """What a card is written from."""

    run: RecordedRun
    which: Which
    graph: ExportedGraph
    format: str
    file: str
    file_sha256: str
    weights_sha256: str
    license: str

    @property
    def dataset(self) -> str:
        """Its name without a path, which is nobody's business."""
        return re.split(r"[:/\\]", data_settings(self.run).dataset.rstrip("/\\"))[-1] or "unnamed"

    @property
    def preparation(self) -> Preparation:
        return cast(Preparation, self.graph.model.preparation)

    @property
    def method(self) -> str:
        return str(self.run.config["method"].get("name", "unknown"))

    @property
    def metrics(self) -> list[Metric]:
        """What a client's own model is worth to the client. Otherwise from evaluation.json if it is
        of these weights, or else from summary.json."""
        if isinstance(self.which, int):
            return self._of_client(self.which)
        if record := self._evaluation:
            scores = record.scores
            images = f"{record.images:,.0f} {record.kind}"
            return [
                Metric("accuracy", "accuracy", scores.accuracy, images),
                Metric("f1", "macro F1", scores.macro_f1, images),
            ]
        summary = self.run.summary
        if summary is None:
            return []
        best = self.which == "best"
        value = summary.best_accuracy if best else summary.final_accuracy
        images = kind_of_images(data_settings(self.run))
        return [] if value is None else [Metric("accuracy", "accuracy", value, images)]

    @property
    def recalls(self) -> Sequence[ClassRecall]:
        """Class by class, on the same images as the accuracy; empty where nobody counted them."""
        if isinstance(self.which, int):
            return ()
        if record := self._evaluation:
            return [
                ClassRecall(row.name, round(row.images), row.recall if row.images else None)
                for row in record.class_rows
            ]
        summary = self.run.summary
        return summary.recalls if summary is not None and self.which == "last" else ()

    @cached_property
    def _evaluation(self) -> EvaluationRecord | None:
        """Of these weights, on the run's own images."""
        return next(
            (
                record
                for record in read_evaluations(self.run.folder)
                if record.own_data and record.weights_sha256 == self.weights_sha256
            ),
            None,
        )

    def _of_client(self, client: int) -> list[Metric]:
        images = f"{kind_of_images(data_settings(self.run))} in the client's own mix of classes"
        return [
            Metric("accuracy", "accuracy", row.personal_accuracy, images)
            for row in self.run.personal
            if row.client == client and row.personal_accuracy is not None
        ]


def require_license(text: str) -> None:
    if LICENSE.fullmatch(text) is None:
        raise ConfigError(f"--license takes a name such as mit or apache-2.0, not {text!r}")


def model_card(facts: CardFacts) -> str:
    parts = [_head(facts), f"# {_title(facts)}", _summary(facts), _loading(facts)]
    parts += [_training(facts), _accuracy(facts), _cautions(facts)]
    return "\n\n".join(parts) + "\n"


def model_config(facts: CardFacts) -> Json:
    """config.json: what a program needs to use the file."""
    graph = facts.graph
    return {
        "library_name": "dcfl",
        "format": facts.format,
        "file": facts.file,
        "file_sha256": facts.file_sha256,
        "weights_sha256": facts.weights_sha256,
        "architecture": graph.settings.architecture,
        "num_parameters": sum(tensor.numel() for tensor in graph.model.parameters()),
        "id2label": {str(n): name for n, name in enumerate(graph.model.class_names)},
        "input": {"name": graph.input_name, **_input(facts)},
        "outputs": graph.output_names,
        "mean": facts.preparation.mean,
        "std": facts.preparation.std,
    }


def _input(facts: CardFacts) -> Json:
    graph, wiring = facts.graph, facts.graph.wiring
    if graph.vectors:
        kind, shape = "float32", ["batch", graph.channels]
    elif not wiring.prepare:
        kind, shape = "float32", ["batch", graph.channels, graph.size, graph.size]
    else:
        size: list[Any] = ["height", "width"] if wiring.fit else [graph.size, graph.size]
        kind, shape = "uint8", ["batch", *size, graph.channels]
    return {"dtype": kind, "shape": shape, "prepared_by_the_file": wiring.prepare}


# The head is YAML. Text in it is written as JSON, which YAML contains: no name can break out.


def _head(facts: CardFacts) -> str:
    tags = ["federated-learning", "non-iid", facts.method, facts.format]
    task = "tabular-classification" if facts.graph.vectors else "image-classification"
    dataset = {"name": facts.dataset, "type": facts.dataset}
    rows = [
        {"type": m.kind, "value": round(m.percent / 100, 6), "name": f"{m.name} on {m.images}"}
        for m in facts.metrics
    ]
    lines = [f"license: {facts.license.lower()}{OURS.rstrip()}", f"pipeline_tag: {task}"]
    lines += [f"tags: {json.dumps(tags)}"]
    if rows:
        lines += [f"metrics: {json.dumps([row['type'] for row in rows])}"]
        result = {"task": {"type": task}, "dataset": dataset, "metrics": rows}
        index = [{"name": _title(facts), "results": [result]}]
        lines += [f"model-index: {json.dumps(index)}"]
    return "\n".join(["---", *lines, "---"])


def _title(facts: CardFacts) -> str:
    whose = f", client {facts.which}'s own model" if isinstance(facts.which, int) else ""
    return f"{facts.graph.settings.name} on {facts.dataset}, trained with {facts.method}{whose}"


def _summary(facts: CardFacts) -> str:
    count = sum(tensor.numel() for tensor in facts.graph.model.parameters())
    return (
        f"A classifier with {count:,} parameters, trained by federated learning with dcfl.\n\n"
        f"Classes, in the order of the outputs: {_some(facts.graph.model.class_names)}."
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(_plain, names[:MOST_NAMES]))
    return shown + (f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else "")


def _plain(text: str) -> str:
    """As Markdown shows it, whatever is in it."""
    return re.sub(r"([\\`*_{}\[\]<>#|!&])", r"\\\1", text)


def _loading(facts: CardFacts) -> str:
    outputs = ", ".join(f"`{name}`" for name in facts.graph.output_names)
    code = "\n".join(_code(facts))
    of_run = "the run's weights, as in its summary.json"
    weights = "the weights" if isinstance(facts.which, int) else of_run
    return (
        f"## Use\n\n{_what_goes_in(facts)} What comes out: {outputs}.\n\n```python\n{code}\n```\n\n"
        f"SHA-256 of `{facts.file}`: `{facts.file_sha256}`\n\n"
        f"SHA-256 of {weights}: `{facts.weights_sha256}`"
    )


def _what_goes_in(facts: CardFacts) -> str:
    graph, wiring = facts.graph, facts.graph.wiring
    colours = {1: "grey levels", 3: "RGB"}.get(graph.channels, f"{graph.channels} channels")
    if graph.vectors:
        state = "as they are" if wiring.prepare else "less the mean, divided by the std (below)"
        return f"Feature vectors go in, float32 [batch, {graph.channels}], {state}."
    if wiring.prepare and wiring.fit:
        how = "resized" if wiring.fit == "resize" else "cut to the middle square and resized"
        return (
            f"Pixels go in, uint8 [batch, height, width, {graph.channels}], {colours}; inside, "
            f"they are {how} to {graph.size}×{graph.size} and normalised."
        )
    size = f"{graph.size}, {graph.size}"
    if wiring.prepare:
        return (
            f"Pixels of this very size go in, uint8 [batch, {size}, {graph.channels}], {colours}; "
            f"inside, they are normalised, not resized."
        )
    return (
        f"Images go in, float32 [batch, {graph.channels}, {size}], {colours}: levels divided by "
        f"255, less the mean, divided by the std."
    )


def _code(facts: CardFacts) -> Iterator[str]:
    """Runs where `pixels` or `vectors` are an array or a tensor; a test has it run."""
    graph, name = facts.graph, facts.graph.input_name
    outputs = ", ".join(graph.output_names) + ("," if len(graph.output_names) == 1 else "")
    if facts.format == "safetensors":
        yield from _weights_code(facts)
    elif facts.format == "onnx":
        yield from ("import numpy as np", "import onnxruntime", "")
        yield from _preparing(facts, "np.array", "transpose", ".astype(np.float32)")
        yield f"session = onnxruntime.InferenceSession({json.dumps(facts.file)})"
        yield f'{outputs} = session.run(None, {{"{name}": {name}}})'
    else:
        yield from ("import torch", "")
        yield from _preparing(facts, "torch.tensor", "permute", "")
        opened = "torch.jit.load({})" if facts.format == "torchscript" else OPEN_PROGRAM
        yield f"model = {opened.format(json.dumps(facts.file))}"
        yield f"{outputs} = model({name})"


def _preparing(facts: CardFacts, array: str, turn: str, convert: str) -> Iterator[str]:
    if facts.graph.wiring.prepare:
        return
    for name in ("mean", "std"):
        numbers = list(getattr(facts.preparation, name))
        many = f"...  # {len(numbers)} numbers: `dcfl.load_model(DIR).preparation.{name}`"
        yield f"{name} = {f'{array}({numbers})' if len(numbers) <= MOST_NUMBERS else many}"
    if facts.graph.vectors:
        yield f"vectors = ((vectors - mean) / std){convert}"
    else:
        yield f"images = ((pixels / 255 - mean) / std).{turn}(0, 3, 1, 2){convert}"


def _weights_code(facts: CardFacts) -> Iterator[str]:
    graph = facts.graph
    yield "import torch"
    yield "from safetensors.torch import load_file"
    if not graph.settings.built_in:
        yield ""
        yield "network = ...  # the module that was trained; its code is not in the file"
        yield f"network.load_state_dict(load_file({json.dumps(facts.file)}))"
        return
    yield "from dcfl.models import ModelSettings, build_model"
    yield ""
    yield from _preparing(facts, "torch.tensor", "permute", "")
    arguments = ", ".join(f"{k}={v!r}" for k, v in graph.settings.architecture.items())
    classes = len(graph.model.class_names)
    yield f"settings = ModelSettings({arguments})"
    yield f"model = build_model(settings, {graph.channels}, {graph.size}, {classes}, seed=0)"
    yield f"model.load_state_dict(load_file({json.dumps(facts.file)}))"
    yield f"logits = model.eval()({graph.input_name}).logits"


def _training(facts: CardFacts) -> str:
    data, federation = data_settings(facts.run), facts.run.config["federation"]
    summary = facts.run.summary
    rounds = summary.rounds if summary else federation.get("rounds", "unknown")
    clients = summary.clients if summary and summary.clients else data.population
    chosen = f" of which round {summary.best_round} was the best" if summary else ""
    rows = {
        "method": facts.method,
        "data set": facts.dataset,
        "clients": clients,
        "split": split_words(data.partition, data.alpha),
        "rounds": f"{rounds}{chosen if facts.which == 'best' else ''}",
        "clients in a round": f"{100 * float(federation.get('participation', 1.0)):g} %",
        "seed": federation.get("seed", 0),
        "mean of the inputs": _numbers(facts.preparation.mean),
        "std of the inputs": _numbers(facts.preparation.std),
        **_about_images(facts.run),
    }
    table = "\n".join(f"| {name} | {_plain(str(value))} |" for name, value in rows.items())
    return f"## Training\n\n| | |\n|---|---|\n{table}"


def _about_images(run: RecordedRun) -> dict[str, str]:
    """What the run has noted of them."""
    kinds = {
        "groups": ("groups of images", "{:,}, such as patients; each on one side of every split"),
        "broken_images": ("broken images, left out", "{:,}"),
    }
    return {
        name: words.format(count)
        for key, (name, words) in kinds.items()
        if isinstance(count := run.environment.get(key), int)
    }


def _numbers(values: tuple[float, ...]) -> str:
    shown = ", ".join(f"{value:.6g}" for value in values[:3])
    return shown if len(values) <= 3 else f"{shown}, ... ({len(values)} numbers)"


def _accuracy(facts: CardFacts) -> str:
    if not facts.metrics:
        return "## Accuracy\n\nIt was not measured."
    rows = [f"| {m.name} | {m.percent:.2f} % | {m.images} |" for m in facts.metrics]
    lines = ["## Accuracy", "", "| | | measured on |", "|---|---|---|", *rows]
    return "\n".join([*lines, *_recall_lines(facts.recalls)])


def _recall_lines(recalls: Sequence[ClassRecall]) -> Iterator[str]:
    """A row per class, or the classes with the lowest recall where there are many."""
    rows = [(row.recall, row) for row in recalls if row.recall is not None]
    if not rows:
        return
    which = "each class"
    if len(rows) > MOST_NAMES:
        rows = sorted(rows, key=lambda row: row[0])[:MOST_NAMES]
        which = f"the {MOST_NAMES} of {len(recalls):,} classes with the lowest recall"
    yield from ("", f"Recall is the share of a class's images that it recognises. Of {which}:", "")
    yield from ("| class | images | recall |", "|---|---|---|")
    for recall, row in rows:
        yield f"| {_plain(row.name)} | {row.images:,} | {recall:.2f} % |"


def _cautions(facts: CardFacts) -> str:
    lines = [
        "- The numbers hold for images like those of the data set. Measure on your own first.",
        "- Probabilities are the network's own and may be too sure of themselves.",
        "- It answers with one of its classes whatever it is shown.",
    ]
    if missed := [row.name for row in facts.recalls if row.missed]:
        lines.append(f"- It never recognised {_some(missed)}.")
    summary = facts.run.summary
    if summary is not None and summary.epsilon is not None:
        lines.append(f"- Trained with differential privacy: epsilon {summary.epsilon:.3g}.")
    else:
        lines.append("- Weights can reveal something about the images they were trained on.")
    if normalises_by_batch(facts.graph.model):
        lines.append(
            "- It normalises by the batch: what it says of an image depends on those beside it."
        )
    if facts.license == "unknown":
        lines.append("- Nobody has said under which licence it may be used.")
    return "\n".join(["## Cautions", "", *lines])
