"""The scanners of the board (docs/board.md): six sites that see the built-in digits differently.

    python benchmarks/board_sites.py FOLDER      # SITE/train and SITE/test, with a folder per class

Every site has a sixth of the digits, all classes alike, and a scanner of its own: contrast,
brightness and angle. A fifth of a site's pictures are its test images. The same files every time.
"""

from __future__ import annotations

import sys
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

ROOT = Path(__file__).parent.parent
SIDE, SEED, TEST = 16, 2026, 5  # pixels; of the order in which sites get pictures; every fifth
SCANNERS = {  # contrast, brightness and angle in degrees
    "plain": (1.0, 0, 0),
    "faint": (0.25, 40, 0),
    "bright": (0.6, 100, 10),
    "turned": (1.0, 0, 40),
    "askew": (0.7, 0, -40),
    "negative": (-0.5, 200, 0),
}


def scan(
    pixels: NDArray[np.uint8], contrast: float, brightness: float, angle: float
) -> Image.Image:
    large = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    turned = np.asarray(large.rotate(angle, Image.Resampling.BILINEAR), np.float64)
    return Image.fromarray(np.clip(contrast * turned + brightness, 0, 255).astype(np.uint8))


def make_sites(folder: Path) -> None:
    with np.load(ROOT / "dcfl" / "data" / "digits.npz") as digits:
        images, labels = (digits["images"] * 255.0 / 16).astype(np.uint8), digits["labels"]
    order = np.random.default_rng(SEED).permutation(len(labels))
    for label in range(10):
        own = order[labels[order] == label]
        for place, (number, site) in enumerate(zip(own, cycle(SCANNERS), strict=False)):
            kind = "test" if place // len(SCANNERS) % TEST == 0 else "train"
            path = folder / site / kind / str(label) / f"{number:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            scan(images[number], *SCANNERS[site]).save(path)


if __name__ == "__main__":
    make_sites(Path(sys.argv[1]))
