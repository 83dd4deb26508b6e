"""Three sites whose scanners differ: 16-bit grey pictures, in folders of patients."""

from pathlib import Path

import numpy as np
from PIL import Image

from tests.data.pictures import save

CLASSES = ("clear", "effusion")
SCANNERS = {"east": (0.3, 9000), "north": (1.0, 0), "west": (-0.5, 60000)}  # contrast, offset


def scan(label: int, site: str, rng: np.random.Generator, side: int = 12) -> Image.Image:
    """A bright lower or upper half, as this site's scanner shows it."""
    shape = np.zeros((side, side))
    shape[side // 2 :] = 1 if label else -1
    contrast, offset = SCANNERS[site]
    levels = contrast * (9000 * shape + rng.normal(0, 3000, shape.shape) + 20000) + offset
    return Image.fromarray(np.clip(levels, 0, 65535).astype(np.uint16))


def scanners(folder: Path, patients: int = 8, each: int = 3) -> Path:
    """SITE/CLASS/patient/picture; patients have the same names at all sites."""
    for place, site in enumerate(SCANNERS):
        rng = np.random.default_rng(place)
        for patient in range(patients):
            for number in range(each):
                name = CLASSES[patient % 2]
                path = folder / site / name / f"patient_{patient:02}" / f"{number}.png"
                save(path, scan(patient % 2, site, rng))
    return folder
