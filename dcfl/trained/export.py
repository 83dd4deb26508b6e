"""A run's model as a file for other programs: written, read back, compared, and only then kept."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dcfl import tensors as named
from dcfl.data.client_data import normalises_by_batch
from dcfl.errors import ConfigError, DatasetCorrupt, DatasetMissing
from dcfl.models import FeatureModel
from dcfl.models.output import Embedding
from dcfl.runs.folder import FILES, RecordedRun
from dcfl.runs.model_file import Network, Which, load_with_settings
from dcfl.system.storage import read_whole, replacing, storage
from dcfl.system.wording import one_line, printable
from dcfl.trained.exported_graph import (
    FORMATS,
    LONGEST_REASON,
    ExportedGraph,
    ExportFormat,
    Runtime,
    Wiring,
    graph_of,
)
from dcfl.trained.model_card import (
    OURS,
    SCRIPT,
    CardFacts,
    label_script,
    model_card,
    require_license,
)
from dcfl.trained.subject import (
    data_settings,
    inputs_of,
    kind_of_images,
    load_own_data,
    require_finite,
)

AGREEMENT = 1e-4  # how far a number of the file may be from the model's
IMAGES = 100


class Compared(NamedTuple):
    pixels: Tensor  # uint8 [n, H, W, C], or feature vectors [n, d]
    description: str


def images_to_compare(run: RecordedRun, model: FeatureModel) -> Compared:
    """Test images of the run, or random ones if those are not at hand."""
    try:
        pixels = load_own_data(run, model).test.pixels
    except (ConfigError, DatasetMissing, DatasetCorrupt):
        pixels = torch.empty(0)
    if not len(pixels):
        what = f"{IMAGES} random inputs (the run's own images are not at hand)"
        return Compared(_random_pixels(model), what)
    chosen = torch.linspace(0, len(pixels) - 1, min(IMAGES, len(pixels))).long()
    return Compared(pixels[chosen], f"{len(chosen)} {kind_of_images(data_settings(run))}")


def _random_pixels(model: FeatureModel) -> Tensor:
    preparation, shape = inputs_of(model)
    height, width, channels = shape
    generator = torch.Generator().manual_seed(0)
    if (height, width) == (1, 1):
        numbers = torch.randn(IMAGES, channels, generator=generator)
        return numbers * torch.tensor(preparation.std) + torch.tensor(preparation.mean)
    shape = (IMAGES, height, width, channels)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@torch.no_grad()
def largest_difference(
    graph: ExportedGraph, runtime: Runtime, model: FeatureModel, pixels: Tensor
) -> float:
    """Between any number of the file's and what the model itself says, as it was trained; NaN if
    the file gives none. Embeddings have no scale of their own: theirs is of the largest number."""
    largest = 0.0
    # A picture alone has no answer where the batch normalises.
    for raw in (pixels,) if normalises_by_batch(model) else (pixels, pixels[:1]):
        images = graph.preparation.clean(raw)
        found = runtime(raw if graph.wiring.prepare else images.contiguous())
        output = model(images)
        wanted = {"logits": output.logits, "probabilities": output.logits.softmax(dim=1)}
        z = output.z(graph.wiring.embedding or "features")
        scale = max(1.0, float(z.abs().max()))
        for name, values in zip(graph.output_names, found, strict=True):
            expected = z / scale if name == "embedding" else wanted[name]
            got = values / scale if name == "embedding" else values
            if got.shape != expected.shape:
                return math.nan
            difference = float((got - expected).abs().max())
            if difference != difference:
                return math.nan
            largest = max(largest, difference)
    return largest


CARD = "README.md"


@dataclass(frozen=True)
class ExportOptions:
    format: str
    which: Which = "last"
    prepare: bool = False  # pixels go in, probabilities come out
    embedding: Embedding | None = None  # comes out too
    out: Path | None = None  # the file; None: in a folder of its own in that of the run
    license: str = "unknown"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"there is no format {self.format!r}: use {', '.join(FORMATS)}")
        if not self.kind.computes and self.prepare:
            raise ConfigError(
                f"{self.format} holds weights, not a graph that could prepare pixels: choose "
                f"another format, or leave --prepare out"
            )
        if self.out is not None and self.out.suffix != self.kind.suffix:
            raise ConfigError(f"{printable(self.out)}: the name must end in {self.kind.suffix}")
        require_license(self.license)

    @property
    def kind(self) -> ExportFormat:
        return FORMATS[self.format]

    def path(self, run_folder: Path) -> Path:
        client = f"-client-{self.which}" if isinstance(self.which, int) else ""
        folder = run_folder / f"export-{self.format}{client}"
        return self.out or folder / f"model{self.kind.suffix}"


class Exported(NamedTuple):
    path: Path
    card: Path
    script: Path | None  # labels pictures with the file
    graph: ExportedGraph
    compared_on: str
    difference: float  # the largest, from the model's own numbers


def export_model(run_folder: Path, options: ExportOptions, network: Network = None) -> Exported:
    """Nothing is left behind if the file does not say what the model says."""
    options.kind.require_installed()
    run, path = RecordedRun.open(run_folder), options.path(run_folder)
    _require_free(path, options)
    model, settings = load_with_settings(run_folder, options.which, network)
    graph = graph_of(model.float(), settings, Wiring(options.prepare, options.embedding))
    images = images_to_compare(run, model)
    with torch.no_grad():
        logits = model(graph.preparation.clean(images.pixels)).logits
    require_finite(run_folder, logits)
    # Three inputs, because the number of one or two may be taken for fixed.
    example = images.pixels[torch.arange(3) % len(images.pixels)]
    example = example if options.prepare else graph.preparation.clean(example).contiguous()
    content = options.kind.written(graph, example)
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
        if facts.script:
            program = files.enter_context(replacing(path.parent / facts.script))
            program.write_text(label_script(facts), encoding="utf-8")
    script = path.parent / facts.script if facts.script else None
    return Exported(path, path.parent / CARD, script, graph, images.description, difference)


def _require_free(path: Path, options: ExportOptions) -> None:
    """Overwrites earlier exports alone: neither files of a run nor somebody's own."""
    if (path.parent / "config.toml").is_file() and path.name in FILES:
        raise ConfigError(f"{printable(path)} is a file of a run: choose another name")
    card = path.parent / CARD
    if card.is_file():
        with storage(card):
            if OURS in read_whole(card).decode("utf-8", "replace"):
                return
    script = [path.parent / SCRIPT] if options.format == "onnx" else []
    if others := [other for other in (card, path, *script) if other.exists()]:
        raise ConfigError(
            f"{printable(others[0])} was not written by dcfl and would be overwritten: "
            f"give another folder with --out"
        )


def _compared(
    file: Path, graph: ExportedGraph, model: FeatureModel, images: Compared, kind: ExportFormat
) -> float:
    try:
        difference = largest_difference(graph, kind.load(file, graph), model, images.pixels)
    except Exception as error:
        reason = printable(one_line(error), LONGEST_REASON)
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
    """Files appear together or not at all; folders made for them go again if they do not."""
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
