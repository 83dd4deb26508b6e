"""Take the screenshots of the docs, of what their own commands make.

    python scripts/tutorial_pictures.py

Follows each page in an empty folder, as its test does, and opens what it made in chromium.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
PICTURES = {  # the page to follow, what it makes, and how much of that is shown
    "start-report": ("start.md", "runs/first/report.html", 2330),
    "sweep-report": ("tutorials/sweep.md", "runs/search/report.html", 1500),
    "ablation-report": ("tutorials/paper-table.md", "runs/ablation/ablation.html", 1100),
}


def main() -> None:
    from tests.tutorials.steps import follow

    for name, (page, made, height) in PICTURES.items():
        with TemporaryDirectory() as folder:
            follow(ROOT / "docs" / page, Path(folder))
            take(Path(folder) / made, ROOT / "docs" / "images" / f"{name}.png", height)


def take(page: Path, picture: Path, height: int) -> None:
    """Of the page at 1280 pixels, made small for the docs."""
    window = ["--headless", "--no-sandbox", f"--window-size=1280,{height}"]
    waiting = ["--virtual-time-budget=8000", "--hide-scrollbars", f"--screenshot={picture}"]
    subprocess.run(["chromium", *window, *waiting, page.resolve().as_uri()], check=True)
    image = Image.open(picture).convert("RGB")
    image.resize((960, height * 960 // 1280)).quantize(256, kmeans=2).save(picture, optimize=True)


if __name__ == "__main__":
    main()
