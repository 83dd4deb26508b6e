"""The tutorial notebook runs as it is, and shows what it says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tutorials" / "first-federation.ipynb"


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs pip install nbclient ipykernel")
    nbformat = pytest.importorskip("nbformat", reason="needs pip install nbformat")
    pytest.importorskip("ipykernel", reason="needs pip install ipykernel")
    pytest.importorskip("pandas", reason="needs pip install 'dcfl[pandas]'")
    package = str(Path(__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=place).execute()
    shown = [outputs(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert "fedavg  round 8/8  accuracy" in shown[0]
    assert "fedavg on digits, 8 rounds" in shown[0]
    assert "report.html" in shown[1]
    assert "image/png" in str(notebook.cells[6].outputs)
    assert "(12, True)" in shown[4]
    assert "stopped after round" in shown[5]
    assert "<td>dcfl-sw</td>" in shown[6]
    assert "arning" not in "".join(shown)


def outputs(cell: Any) -> str:
    """What a reader sees of it."""
    parts = [output.get("text", "") + str(output.get("data", "")) for output in cell.outputs]
    return "\n".join(parts)


def test_it_is_kept_with_what_a_reader_sees() -> None:
    """benchmarks/tutorial_pictures.py runs it and keeps that."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if "outputs" in cell]
    assert cells
    for cell in cells:
        assert cell["outputs"], cell["source"]
        assert cell["execution_count"] is None
        assert all(len(output.get("data", [""])) == 1 for output in cell["outputs"])
    assert "/tmp" not in str(cells)
