"""A site's folder of pictures."""

from __future__ import annotations

from pathlib import Path

from PIL import Image


def pictures(folder: Path, each: int = 3) -> Path:
    """Of two classes, dark and light."""
    for shade, value in {"dark": 0, "light": 255}.items():
        (folder / shade).mkdir(parents=True)
        for number in range(each):
            picture = Image.new("RGB", (8, 8), (value,) * 3)
            picture.save(folder / shade / f"{number}.png")
    return folder
