"""The card of an exported model: README.md as hubs of models read it, and label.py beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dcfl.data.client_data import normalises_by_batch
from dcfl.data.readers import decoding
from dcfl.data.readers.decoding import GreyRange
from dcfl.data.readers.pictures import EXTENSIONS
from dcfl.data.settings import DataSettings
from dcfl.data.splits.partition import split_words
from dcfl.errors import ConfigError
from dcfl.evaluation import OWN_IMAGES, OWN_MIX
from dcfl.runs.evaluations import EvaluationRecord, read_evaluations
from dcfl.runs.folder import RecordedRun
from dcfl.runs.model_file import Which
from dcfl.runs.rows import ClassRecall
from dcfl.system.wording import MAX_CHARACTERS, escaped, some
from dcfl.trained.exported_graph import ExportedGraph
from dcfl.trained.subject import data_settings, kind_of_images

SCRIPT = "label.py"
OURS = "\nlibrary_name: dcfl\n"  # in the head of every card
LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,60}")
MOST_NAMES = 20  # of classes
MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|!&~$@:]|(?<=www)\.)")  # the last three: bare addresses
KINDS = {"accuracy": "accuracy", "macro F1": "f1"}  # of metrics, as hubs call them


@dataclass(frozen=True)
class CardFacts:
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
    def method(self) -> str:
        return str(self.run.config["method"].get("name", "unknown"))

    @property
    def script(self) -> str:
        """The name of the script beside the file; empty if there is none."""
        pictures = self.graph.channels in (1, 3) and not self.graph.vectors
        single = pictures and not normalises_by_batch(self.graph.model)
        return SCRIPT if self.format == "onnx" and single else ""

    @property
    def title(self) -> str:
        whose = f", client {self.which}'s own model" if isinstance(self.which, int) else ""
        return f"{self.graph.settings.name} on {self.dataset}, trained with {self.method}{whose}"

    def evaluation(self) -> EvaluationRecord | None:
        """Of these weights, on the run's own images; a client's own model is worth something else
        to the client."""
        for record in read_evaluations(self.run.folder):
            own = record.own_data and not isinstance(self.which, int)
            if own and record.weights_sha256 == self.weights_sha256:
                return record
        return None

    def metrics(self) -> dict[str, tuple[float | None, str]]:
        """Percent by name, and the images it was measured on: from evaluation.json or else from
        summary.json, and for a client's own model from the client's score."""
        summary, images = self.run.summary, kind_of_images(data_settings(self.run))
        if record := self.evaluation():
            images = f"{record.images:,.0f} {record.kind}"
            scores = record.scores
            return {"accuracy": (scores.accuracy, images), "macro F1": (scores.macro_f1, images)}
        if isinstance(self.which, int):
            own = {row.client: row.personal_accuracy for row in self.run.personal}
            mixed = self.run.clients_on == OWN_MIX
            images = f"{images} in {OWN_MIX}" if mixed else OWN_IMAGES
            return {"accuracy": (own.get(self.which), images)}
        if summary is None:
            return {}
        value = summary.best_accuracy if self.which == "best" else summary.final_accuracy
        return {"accuracy": (value, images)}

    def recalls(self) -> Sequence[ClassRecall]:
        """Class by class, on the same images as the accuracy; empty where nobody counted them."""
        if record := self.evaluation():
            return [
                ClassRecall(row.name, round(row.images), row.recall if row.images else None)
                for row in record.class_rows
            ]
        summary = self.run.summary
        return summary.recalls if summary is not None and self.which == "last" else ()


def require_license(text: str) -> None:
    if LICENSE.fullmatch(text) is None:
        raise ConfigError(f"--license takes a name such as mit or apache-2.0, not {text!r}")


def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("dcfl.trained", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def reading_words(data: DataSettings) -> str:
    deep = (
        "the full range of their bits"
        if not data.window
        else "levels from {:g} to {:g}".format(*GreyRange.around(*data.window))
    )
    dicom = "" if data.window else ", or a DICOM file's own window"
    return f"8 bits as they are, more by {deep}{dicom}; data.fit = {data.fit}"


def label_script(facts: CardFacts) -> str:
    """A program that labels pictures with the exported ONNX file, and needs no dcfl."""
    data, graph = data_settings(facts.run), facts.graph
    source = Path(decoding.__file__).read_text(encoding="utf-8")
    return (
        _templates()
        .get_template("label.py.j2")
        .render(
            decoding=source[source.index("from __future__") :].strip(),
            reading=f"{graph.size} x {graph.size} pixels, {reading_words(data)}",
            file=facts.file,
            size=graph.size,
            channels=graph.channels,
            fit=data.fit,
            window=data.window,
            extensions=tuple(sorted(EXTENSIONS)),
            prepared=graph.wiring.prepare,
            mean=graph.preparation.mean,
            std=graph.preparation.std,
        )
    )


def model_card(facts: CardFacts) -> str:
    environment = _templates()
    environment.finalize = lambda value: value if isinstance(value, Markup) else plain(value)
    environment.filters.update(
        json=lambda value: Markup(json.dumps(value)),
        some=partial(some, most=MOST_NAMES, longest=MAX_CHARACTERS),
        first_numbers=_first_numbers,
    )
    data, recalls = data_settings(facts.run), facts.recalls()
    return environment.get_template("card.md.j2").render(
        facts=facts,
        graph=facts.graph,
        wiring=facts.graph.wiring,
        preparation=facts.graph.preparation,
        metrics={k: found for k, found in facts.metrics().items() if found[0] is not None},
        kinds=KINDS,
        recalls=recalls,
        counted=[row for row in recalls if row.recall is not None],
        missed=[row.name for row in recalls if row.missed],
        data=data,
        split=split_words(data.partition, data.alpha),
        federation=facts.run.config["federation"],
        summary=facts.run.summary,
        noted=facts.run.environment,
        by_batch=normalises_by_batch(facts.graph.model),
        reading=reading_words(data),
        script=facts.script,
        most=MOST_NAMES,
        ours=OURS,
    )


def plain(value: object) -> str:
    """As Markdown shows it, whatever is in it: no name makes a heading, a link or code."""
    return MARKDOWN.sub(r"\\\1", escaped(str(value)))


def _first_numbers(values: Sequence[float]) -> str:
    shown = ", ".join(f"{value:.6g}" for value in values[:3])
    return shown if len(values) <= 3 else f"{shown}, ... ({len(values)} numbers)"
