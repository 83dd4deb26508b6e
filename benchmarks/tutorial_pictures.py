"""Take the screenshots and outputs of the docs, of what their own commands make.

    python benchmarks/tutorial_pictures.py

Follows each page in an empty folder, as its test does, and opens what it made in chromium. The
notebook is run, and kept with what its cells show.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
PICTURES = {  # the page to follow, what it makes, and how much of that is shown
    "start-report": ("start.md", "runs/first/report.html", 2330),
    "sweep-report": ("tutorials/sweep.md", "runs/search/report.html", 1500),
    "ablation-report": ("tutorials/paper-table.md", "runs/ablation/ablation.html", 1100),
}
NOTEBOOK = ROOT / "docs" / "tutorials" / "first-federation.ipynb"


def main() -> None:
    from tests.tutorials.steps import follow

    for name, (page, made, height) in PICTURES.items():
        with TemporaryDirectory() as folder:
            follow(ROOT / "docs" / page, Path(folder))
            take(Path(folder) / made, ROOT / "docs" / "images" / f"{name}.png", height)
    keep_outputs(NOTEBOOK)


def keep_outputs(path: Path) -> None:
    """Of each output the form that a reader sees, and no counters that change with every run."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=900, resources=place, coalesce_streams=True)
        client.execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            said = [one for one in cell.outputs if one.get("name") != "stderr"]  # while it trained
            cell.outputs = [_seen(output) for output in said]
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec",)}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _seen(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    if len(output.get("data", {})) > 1:
        del output.data["text/plain"]  # of what has a richer form
    if "execution_count" in output:
        output.execution_count = None
    return output


def take(page: Path, picture: Path, height: int) -> None:
    """Of the page at 1280 pixels, made small for the docs."""
    window = ["--headless", "--no-sandbox", f"--window-size=1280,{height}"]
    waiting = ["--virtual-time-budget=8000", "--hide-scrollbars", f"--screenshot={picture}"]
    subprocess.run(["chromium", *window, *waiting, page.resolve().as_uri()], check=True)
    image = Image.open(picture).convert("RGB")
    image.resize((960, height * 960 // 1280)).quantize(256, kmeans=2).save(picture, optimize=True)


if __name__ == "__main__":
    main()
