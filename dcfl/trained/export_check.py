"""Does an exported file say what the model says?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from dcfl.data import Preparation
from dcfl.data.client_data import normalises_by_batch
from dcfl.errors import ConfigError, DatasetCorrupt, DatasetMissing
from dcfl.models import FeatureModel
from dcfl.runs.folder import RecordedRun
from dcfl.trained.export_formats import Runtime
from dcfl.trained.exported_graph import ExportedGraph, GraphFit, resized
from dcfl.trained.own_data import data_settings, kind_of_images, load_own_data

AGREEMENT = 1e-4  # how far a number of the file may be from the model's
IMAGES = 100


class Images(NamedTuple):
    """What the two are compared on."""

    pixels: Tensor  # uint8 [n, H, W, C], or feature vectors [n, d]
    description: str


def images_to_compare(run: RecordedRun, model: FeatureModel) -> Images:
    """Test images of the run, or random ones if those are not at hand."""
    try:
        pixels = load_own_data(run, model).test.pixels
    except (ConfigError, DatasetMissing, DatasetCorrupt):
        pixels = torch.empty(0)
    if not len(pixels):
        what = f"{IMAGES} random inputs (the run's own images are not at hand)"
        return Images(_random_pixels(model), what)
    chosen = torch.linspace(0, len(pixels) - 1, min(IMAGES, len(pixels))).long()
    return Images(pixels[chosen], f"{len(chosen)} {kind_of_images(data_settings(run))}")


def _random_pixels(model: FeatureModel) -> Tensor:
    height, width, channels = cast(tuple[int, int, int], model.image_shape)
    generator = torch.Generator().manual_seed(0)
    if (height, width) == (1, 1):
        preparation = cast(Preparation, model.preparation)
        numbers = torch.randn(IMAGES, channels, generator=generator)
        return numbers * torch.tensor(preparation.std) + torch.tensor(preparation.mean)
    shape = (IMAGES, height, width, channels)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@torch.no_grad()
def is_finite(model: FeatureModel, images: Images) -> bool:
    """Whether the model says anything at all."""
    clean = cast(Preparation, model.preparation).clean(images.pixels)
    return bool(model(clean).logits.isfinite().all())


@torch.no_grad()
def largest_difference(
    graph: ExportedGraph, runtime: Runtime, model: FeatureModel, pixels: Tensor
) -> float:
    """Between any number of the file's and what the model itself says, as it was trained; NaN if
    the file gives none. Embeddings have no scale of their own: theirs is of the largest number."""
    preparation = cast(Preparation, model.preparation)
    largest = 0.0
    for raw, prepared in _batches(graph, model, pixels):
        images = preparation.clean(prepared)
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


def _batches(
    graph: ExportedGraph, model: FeatureModel, pixels: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pixels, and the same as training would have them: of several numbers and sizes."""
    yield pixels, pixels
    if normalises_by_batch(model):
        return  # a picture alone has no answer
    yield pixels[:1], pixels[:1]
    if graph.wiring.prepare and graph.wiring.fit and not graph.vectors:
        for other in _other_sizes(graph.size, graph.channels):
            yield other, resized_by_pillow(other, graph.size, graph.wiring.fit)


def _other_sizes(size: int, channels: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    tall, wide = (2 * size + 3, size + 1), (size + 1, 3 * size + 2)
    for shape in (tall, wide, (size + 5, size + 4), (-(-size // 2), size)):
        whole = (3, *shape, channels)
        yield torch.randint(0, 256, whole, dtype=torch.uint8, generator=generator)


def resized_by_pillow(pixels: Tensor, size: int, fit: GraphFit) -> Tensor:
    """As the decoder does with pictures."""
    rows = []
    for row in pixels.numpy():
        picture = Image.fromarray(row[..., 0] if row.shape[2] == 1 else row)
        if fit == "crop":
            picture = ImageOps.fit(picture, (size, size), Image.Resampling.BICUBIC)
        else:
            picture = picture.resize((size, size), Image.Resampling.BICUBIC)
        rows.append(np.asarray(picture).reshape(size, size, row.shape[2]))
    return torch.from_numpy(np.stack(rows))


def fit_in_graph(model: FeatureModel, fit: str) -> GraphFit | None:
    """How the graph can fit pictures of other sizes as training did; None if it cannot. Versions of
    Pillow differ by a level here and there, so the one that is installed is asked."""
    height, width, channels = cast(tuple[int, int, int], model.image_shape)
    if fit not in ("resize", "crop") or channels not in (1, 3) or (height, width) == (1, 1):
        return None
    known = cast(GraphFit, fit)
    for pixels in _other_sizes(height, channels):
        ours = resized(pixels.permute(0, 3, 1, 2), height, known).permute(0, 2, 3, 1)
        if not torch.equal(ours.byte(), resized_by_pillow(pixels, height, known)):
            return None
    return known
