"""Runs on small pictures of every kind."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import dcfl
from dcfl.runs.run import Result
from tests.data.pictures import save

CLASSES = ("blue", "green", "red")
SHADES = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}


def coloured(
    name: str, rng: np.random.Generator, size: tuple[int, int] | None = None
) -> Image.Image:
    width, height = size or rng.integers(17, 70, 2)
    noise = rng.normal(0, 40, (height, width, 3))
    return Image.fromarray(np.clip(SHADES[name] + noise, 0, 255).astype(np.uint8))


def every_kind(folder: Path, name: str, seed: int) -> list[Path]:
    """The modes, formats and turns in which a picture may come."""
    rng = np.random.default_rng(seed)
    turned = Image.Exif()
    turned[0x0112] = 6
    levels = rng.integers(0, 2**16, (30, 40), dtype=np.uint16)
    kinds: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "a.png": (coloured(name, rng), {}),
        "b.jpg": (coloured(name, rng, (300, 200)), {"quality": 80}),  # decoded at a fraction
        "c.png": (coloured(name, rng).convert("L"), {}),
        "d.png": (coloured(name, rng).convert("LA"), {}),
        "e.png": (_half_transparent(coloured(name, rng)), {}),
        "f.gif": (coloured(name, rng).convert("P"), {"transparency": 3}),
        "g.jpg": (coloured(name, rng).convert("CMYK"), {}),
        "h.jpg": (coloured(name, rng, (50, 30)), {"exif": turned}),
        "i.tif": (coloured(name, rng), {"compression": "tiff_lzw"}),
        "j.png": (Image.fromarray(levels), {}),
        "k.bmp": (coloured(name, rng).convert("1"), {}),
        "l.webp": (coloured(name, rng), {}),
        "m.png": (coloured(name, rng, (24, 24)), {}),
    }
    return [save(folder / file, image, **options) for file, (image, options) in kinds.items()]


def _half_transparent(image: Image.Image) -> Image.Image:
    layer = image.convert("RGBA")
    layer.putalpha(Image.linear_gradient("L").resize(image.size))
    return layer


def picture_folder(folder: Path) -> Path:
    """train and test, with every kind in both."""
    for number, name in enumerate(CLASSES):
        every_kind(folder / "train" / name, name, number)
        every_kind(folder / "test" / name, name, 100 + number)
    return folder


def trained_on(pictures: Path, out: Path, **overrides: Any) -> Result:
    settings: dict[str, Any] = {
        "method.name": "fedavg",
        "data.dataset": f"folder:{pictures}",
        "data.image_size": 24,
        "data.clients": 2,
        "data.partition": "iid",
        "federation.rounds": 2,
        "federation.participation": 1.0,
        "engine.workers": 1,
        "engine.device": "cpu",
        "output.report": False,
        **overrides,
    }
    return dcfl.run(out=out, **settings)
