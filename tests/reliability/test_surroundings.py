"""What changes the bits without being a setting: resuming notices it, and says what it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import nn

from dcfl.runs.checkpoints import Checkpoints
from dcfl.runs.run import Run
from dcfl.runs.start import require_resumable
from tests.engines.runs import Flat
from tests.reliability.victims import (
    DATA,
    SMALL,
    command,
    exit_code,
    experiment,
    flat,
    interrupted,
    refusal,
    rows_in,
    slow_from,
    stopped,
    until,
)

METHOD = """
from dcfl.methods.fedavg import FedAvg

STRENGTH = 1.0

class Mine(FedAvg):
    '''FedAvg under another name.'''

    name = "mine"
"""


def begun(folder: Path, *words: str) -> None:
    """`dcfl run`, killed in its second round."""
    said = folder.with_name("said")
    with slow_from(2, 60):
        victim = command("run", *SMALL, *words, "--out", str(folder), said=said)
        assert until(lambda: len(Checkpoints(folder).paths()) == 1 and rows_in(folder) == 1)
        victim.kill()
        assert exit_code(victim) == -9, said.read_text()


def resumed(folder: Path, *words: str, first: Sequence[Path] = (), **variables: str) -> str:
    """What `dcfl resume` says, in an interpreter of its own; it must have ended with exit 0 or 2.

    `first`: folders to import from before all others.
    """
    paths = os.pathsep.join([*map(str, first), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "dcfl", "resume", str(folder), *words],
        capture_output=True,
        text=True,
        env={**os.environ, **variables, "PYTHONPATH": paths},
    )
    assert done.returncode in (0, 2), done.stderr
    assert (done.returncode == 0) == (rows_in(folder) == 5)
    if done.returncode:
        assert done.stderr.startswith("dcfl: the run was begun with something else: ")
        assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("part", ["STRENGTH = 2.0", "STRENGTH = 1.0  # the same"])
def test_an_edited_method_file(tmp_path: Path, part: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(METHOD)
    given = ("--method-file", str(file))
    begun(tmp_path / "run", "method.name=mine", *given)
    file.write_text(METHOD.replace("STRENGTH = 1.0", part))
    said = resumed(tmp_path / "run", *given)
    assert "method was " in said
    assert "--allow method resumes" in said
    resumed(tmp_path / "run", *given, "--allow", "method")
    assert rows_in(tmp_path / "run") == 5


def write_pictures(folder: Path) -> None:
    """2,080 to train on, so that not even every second one is among a thousand."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for number, pixels in enumerate(rng.integers(0, 256, (1300, 8, 8), dtype=np.uint8)):
            Image.fromarray(pixels).save(folder / name / f"{number:04}.png", compress_level=0)


@pytest.mark.slow
def test_two_pictures_of_a_class_changed_places(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    write_pictures(pictures)
    own = (f"data.dataset=folder:{pictures}", "data.image_size=8")
    begun(tmp_path / "run", *own, "method.name=fedavg", "training.batch_size=500")
    one, other = pictures / "a" / "0001.png", pictures / "a" / "0003.png"
    content = one.read_bytes(), other.read_bytes()
    other.write_bytes(content[0])
    one.write_bytes(content[1])
    assert "data was " in resumed(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    "variable", ["ATEN_CPU_CAPABILITY=default", "DNNL_MAX_CPU_ISA=SSE41", "MKL_CBWR=COMPATIBLE"]
)
def test_another_processor_or_less_of_it(tmp_path: Path, variable: str) -> None:
    name, _, value = variable.partition("=")
    probe = "from dcfl.runs.identity import _arithmetic; print(_arithmetic())"
    seen = {
        subprocess.run(
            [sys.executable, "-c", probe],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for environment in ({**os.environ}, {**os.environ, name: value})
    }
    if len(seen) == 1:
        pytest.skip(f"{name} makes no difference on this machine")
    begun(tmp_path / "run")
    assert "cpu was " in resumed(tmp_path / "run", **{name: value})
    resumed(tmp_path / "run", "--allow", "cpu", **{name: value})


@pytest.mark.slow
def test_another_version_of_dcfl_is_refused_and_the_same_goes_on(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    other = tmp_path / "other" / "dcfl-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: dcfl\nVersion: 9.9.9\n")
    said = resumed(tmp_path / "run", first=[tmp_path / "other"])
    assert "dcfl was " in said
    assert "and is '9.9.9'" in said
    assert "something else" not in resumed(tmp_path / "run")


# From Python --------------------------------------------------------------------------------------


class Wider(Flat):
    """Of the same shapes, but another class."""


def test_another_module_is_named_by_its_class_and_shapes(tmp_path: Path) -> None:
    folder = stopped(experiment(tmp_path / "run", rounds=4))
    said = str(refusal(lambda: Run.resume(folder, DATA, Wider())))
    assert "model was 'Flat " in said
    assert "and is 'Wider " in said
    deeper = flat()
    deeper.classifier = nn.Sequential(nn.Identity(), nn.Linear(64, 4))  # type: ignore[assignment]
    assert "model was 'Flat " in str(refusal(lambda: Run.resume(folder, DATA, deeper)))
    assert interrupted(Run.resume(folder, DATA, flat())) == folder


def test_a_single_pixel_of_a_large_data_set(tmp_path: Path) -> None:
    pixels = DATA.train.pixels.repeat(150, 1, 1, 1)
    labels = DATA.train.labels.repeat(150)
    large = replace(DATA, test=replace(DATA.test, pixels=pixels, labels=labels))
    changed = pixels.clone()
    changed[1, 0, 0, 0] ^= 1
    other = replace(large, test=replace(large.test, pixels=changed))
    assert large.fingerprint != other.fingerprint


def test_a_checkpoint_that_says_less_is_refused_and_can_be_allowed() -> None:
    before: dict[str, Any] = {"torch": "2", "data": "1 2"}
    now = {**before, "cpu": "AVX2 1", "dcfl": "1"}
    said = str(refusal(lambda: require_resumable(before, now, ())))
    assert "cpu was None and is 'AVX2 1'" in said
    assert "--allow cpu --allow dcfl resumes" in said
    require_resumable(before, now, ("cpu", "dcfl"))


def test_an_even_split_without_a_number_survives_the_checkpoint(tmp_path: Path) -> None:
    """alpha = inf has no word of its own in JSON."""
    what = experiment(tmp_path / "run", rounds=4)
    folder = stopped(replace(what, data=replace(what.data, alpha=float("inf"))))
    assert interrupted(Run.resume(folder, DATA, flat())) == folder
    shutil.rmtree(folder)
