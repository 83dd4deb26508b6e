"""label.py, which `dcfl export` writes beside an ONNX file, says what `dcfl predict` says."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dcfl
from dcfl.errors import ConfigError
from dcfl.trained.export import ExportOptions, export_model
from tests.command_line import Call
from tests.data.pictures import save, save_dicom
from tests.trained.picture_runs import every_kind, picture_folder, trained_on

WITHOUT_DCFL = """
import runpy, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("dcfl", "torch", "pydicom"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def deep(folder: Path) -> list[Path]:
    """Grey with 16 bits, as PNG and TIFF, signed and not; a window tells them apart."""
    rng = np.random.default_rng(5)
    levels = rng.integers(0, 2**16, (30, 40), dtype=np.uint16)
    return [
        save(folder / "deep.png", Image.fromarray(levels)),
        save(folder / "deep.tif", Image.fromarray(levels)),
        save(folder / "dark.png", Image.fromarray(levels // 32)),
        save(folder / "wide.tif", Image.fromarray((levels // 3).astype(np.int32))),
    ]


def labelled(script: Path, *pictures: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_DCFL, script, *pictures]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("changes", "prepare"),
    [
        ({"data.fit": "resize"}, True),
        ({"data.fit": "pad", "data.window": (900.0, 1800.0)}, False),
    ],
    ids=["prepared", "padded, with a window"],
)
def test_it_says_what_predict_says(changes: dict[str, Any], prepare: bool, tmp_path: Path) -> None:
    run = trained_on(picture_folder(tmp_path / "pictures"), tmp_path / "run", **changes).folder
    options = ExportOptions("onnx", prepare=prepare, out=tmp_path / "out" / "model.onnx")
    exported = export_model(run, options)
    pictures = [*every_kind(tmp_path / "new", "red", 77), *deep(tmp_path / "new")]
    found = labelled(tmp_path / "out" / "label.py", *pictures)
    said = {Path(line.split(" % ")[1]): line.split(" % ")[0] for line in found.stdout.splitlines()}
    wanted = {
        one.picture: f"{one.label} {100 * one.ranking[0].probability:.1f}"
        for one in dcfl.predict(run, pictures)
        if not one.skipped
    }
    assert said == wanted
    skipped = [one.picture for one in dcfl.predict(run, pictures) if one.skipped]
    assert len(skipped) == (0 if "data.window" in changes else 1)  # of 32 bits
    assert [line.split(": skipped")[0] for line in found.stderr.splitlines()] == [
        *map(str, skipped)
    ]
    in_folder = labelled(tmp_path / "out" / "label.py", tmp_path / "new")
    assert sorted(in_folder.stdout.splitlines()) == sorted(found.stdout.splitlines())
    assert in_folder.returncode == found.returncode
    (tmp_path / "empty" / ".hidden").mkdir(parents=True)
    save(tmp_path / "empty" / ".hidden" / "a.png", 5)
    nothing = labelled(tmp_path / "out" / "label.py", tmp_path / "empty")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert nothing.stderr.startswith("usage: ")
    os.mkfifo(tmp_path / "pipe.png")
    piped = labelled(tmp_path / "out" / "label.py", tmp_path / "pipe.png")
    assert (piped.returncode, "pipe.png: skipped (not a file)" in piped.stderr) == (2, True)
    assert exported.script == tmp_path / "out" / "label.py"
    card = (tmp_path / "out" / "README.md").read_text()
    expected = "levels from 0 to 1800" if "data.window" in changes else "full range of their bits"
    assert expected in card
    _no_dicom(tmp_path, run)


def _no_dicom(folder: Path, run: Path) -> None:
    """It has no pydicom, and says so; dcfl reads the file."""
    scan = folder / "scan.dcm"
    save_dicom(scan, np.arange(400, dtype=np.uint16).reshape(20, 20))
    assert not next(dcfl.predict(run, scan)).skipped
    refused = labelled(folder / "out" / "label.py", scan)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert re.fullmatch(r".*scan\.dcm: skipped \(DICOM is not read .*\)\n", refused.stderr)


def test_a_script_of_ones_own_is_left_alone(tmp_path: Path, cli: Call) -> None:
    run = dcfl.run(federation={"rounds": 1}, out=tmp_path / "run").folder
    (tmp_path / "label.py").write_text("mine")
    with pytest.raises(ConfigError, match=r"label\.py was not written by dcfl"):
        export_model(run, ExportOptions("onnx", out=tmp_path / "model.onnx"))


def test_torchscript_refuses_other_sizes(tmp_path: Path) -> None:
    """Fitting pictures is the decoder's work, not the graph's."""
    pictures = picture_folder(tmp_path / "pictures")
    run = trained_on(pictures, tmp_path / "run", **{"data.fit": "pad"}).folder
    out = tmp_path / "out" / "model.pt"
    export_model(run, ExportOptions("torchscript", prepare=True, out=out))
    model = torch.jit.load(out)  # type: ignore[no-untyped-call]
    assert model(torch.zeros(2, 24, 24, 3, dtype=torch.uint8))[0].shape == (2, 3)
    with pytest.raises(Exception, match="inputs of another size"):
        model(torch.zeros(2, 30, 24, 3, dtype=torch.uint8))
