"""A run's model as a file for other programs: written, read back, compared, and only then kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import torch

from dcfl import tensors as named
from dcfl.data import Preparation
from dcfl.errors import ConfigError, RunFolderError
from dcfl.models import FeatureModel, ModelSettings
from dcfl.models.output import Embedding
from dcfl.runs.folder import FILES, RecordedRun, require_own
from dcfl.runs.model_file import Which, load_with_settings
from dcfl.system.printable import printable
from dcfl.system.storage import replacing, storage, strict_json
from dcfl.trained.export_check import (
    AGREEMENT,
    Images,
    fit_in_graph,
    images_to_compare,
    is_finite,
    largest_difference,
)
from dcfl.trained.export_formats import FORMATS, ExportFormat
from dcfl.trained.exported_graph import ExportedGraph, Wiring, graph_of
from dcfl.trained.model_card import OURS, CardFacts, model_card, model_config, require_license
from dcfl.trained.own_data import data_settings

CARD, CONFIG = "README.md", "config.json"


@dataclass(frozen=True)
class ExportOptions:
    """What is wanted of an export."""

    format: str
    which: Which = "last"
    prepare: bool = False  # pixels go in, probabilities come out
    embedding: Embedding | None = None  # comes out too
    out: Path | None = None  # the file; None: in a folder of its own in that of the run
    hub_folder: Path | None = None  # holds all that is uploaded to a hub of models
    license: str = "unknown"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"there is no format {self.format!r}: use {', '.join(FORMATS)}")
        if not self.kind.computes and self.prepare:
            raise ConfigError(
                f"{self.format} holds weights, not a graph that could prepare pixels: choose "
                f"another format, or leave --prepare out"
            )
        if self.out is not None and self.hub_folder is not None:
            raise ConfigError("--out names the file and --hub-folder its folder: give one of them")
        if self.out is not None and self.out.suffix != self.kind.suffix:
            raise ConfigError(f"{printable(self.out)}: the name must end in {self.kind.suffix}")
        require_license(self.license)

    @property
    def kind(self) -> ExportFormat:
        return FORMATS[self.format]

    def path(self, run_folder: Path) -> Path:
        client = f"-client-{self.which}" if isinstance(self.which, int) else ""
        folder = self.hub_folder or run_folder / f"export-{self.format}{client}"
        return self.out or folder / f"model{self.kind.suffix}"


class Exported(NamedTuple):
    path: Path
    card: Path
    graph: ExportedGraph
    compared_on: str
    difference: float  # the largest, from the model's own numbers


def export_model(run_folder: Path, options: ExportOptions) -> Exported:
    """Write the model and its card; nothing is left behind if the file does not say what the model
    says. The file of a network of the user's own must have been named before."""
    options.kind.require_installed()
    run, path = RecordedRun.open(run_folder), options.path(run_folder)
    _require_free(path, run_folder, options)
    model, settings = load_with_settings(run_folder, options.which)
    graph = _graph(run, model.float(), settings, options)
    images = images_to_compare(run, model)
    if not is_finite(model, images):
        raise RunFolderError(
            f"{printable(run_folder)}: the model's outputs are not finite: the run has diverged"
        )
    content = options.kind.written(graph, _example(graph, images))
    facts = CardFacts(
        run=run,
        which=options.which,
        graph=graph,
        format=options.format,
        file=path.name,
        file_sha256=hashlib.sha256(content).hexdigest(),
        weights_sha256=named.sha256(model.state_dict()),
        license=options.license,
    )
    with _all_or_none(path.parent) as files:
        partial = files.enter_context(replacing(path))
        partial.write_bytes(content)
        difference = _compared(partial, graph, model, images, options.kind)
        card = files.enter_context(replacing(path.parent / CARD))
        card.write_text(model_card(facts), encoding="utf-8")
        if options.hub_folder is not None:
            described = files.enter_context(replacing(path.parent / CONFIG))
            described.write_text(strict_json(model_config(facts), indent=2) + "\n", "utf-8")
    return Exported(path, path.parent / CARD, graph, images.description, difference)


def _require_free(path: Path, run_folder: Path, options: ExportOptions) -> None:
    """Overwrites earlier exports alone: neither files of a run nor somebody's own."""
    if options.out is None and options.hub_folder is None:
        require_own(path.parent)
    if (path.parent / "config.toml").is_file() and path.name in FILES:
        raise ConfigError(f"{printable(path)} is a file of a run: choose another name")
    card, config_file = path.parent / CARD, path.parent / CONFIG
    ours = card.is_file() and OURS in _text(card)
    others = [other for other in (card, path) if other.exists() and not ours]
    if options.hub_folder is not None and config_file.is_file():
        others += [] if _is_ours(config_file) else [config_file]
    if others:
        option = "--out" if options.hub_folder is None else "--hub-folder"
        raise ConfigError(
            f"{printable(others[0])} was not written by dcfl and would be overwritten: "
            f"give another folder with {option}"
        )


def _text(path: Path) -> str:
    with storage(path):
        return path.read_text("utf-8", "replace")


def _is_ours(path: Path) -> bool:
    try:
        content = json.loads(_text(path))
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("library_name") == "dcfl"


def _graph(
    run: RecordedRun, model: FeatureModel, settings: ModelSettings, options: ExportOptions
) -> ExportedGraph:
    if model.image_shape is None or model.preparation is None:
        raise ConfigError(f"{printable(run.folder)}: its model does not say what its inputs are")
    fit = fit_in_graph(model, data_settings(run).fit) if options.prepare else None
    return graph_of(model, settings, Wiring(options.prepare, fit, options.embedding))


def _example(graph: ExportedGraph, images: Images) -> torch.Tensor:
    """Three inputs, of a size that shows which lengths are free."""
    pixels = images.pixels[torch.arange(3) % len(images.pixels)]
    if not graph.wiring.prepare:
        return cast(Preparation, graph.model.preparation).clean(pixels).contiguous()
    if len(graph.free_axes) == 1:
        return pixels
    shape = (3, graph.size + 3, graph.size + 5, graph.channels)
    return torch.zeros(shape, dtype=torch.uint8)


def _compared(
    file: Path, graph: ExportedGraph, model: FeatureModel, images: Images, kind: ExportFormat
) -> float:
    try:
        difference = largest_difference(graph, kind.load(file, graph), model, images.pixels)
    except Exception as error:
        reason = printable(" ".join(str(error).split()), 300)
        raise ConfigError(
            f"the exported {kind.title} file cannot be used, and was not kept: {reason}"
        ) from error
    if not difference <= AGREEMENT:
        raise ConfigError(
            f"the exported {kind.title} file differs from the model by {difference:.2g} on "
            f"{images.description}, more than {AGREEMENT:g}, and was not kept"
        )
    return difference


@contextmanager
def _all_or_none(folder: Path) -> Iterator[ExitStack]:
    """For files that appear together. Folders made for them go again if they do not appear."""
    new = [above for above in (folder, *folder.parents) if not above.exists()]
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as files:
            yield files
    except BaseException:
        for made in new:
            with suppress(OSError):
                made.rmdir()
        raise
