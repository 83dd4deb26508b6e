"""The README's commands and most verbs, in an empty folder with nothing but the wheel."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
BLOCK = re.search(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
README = [line.partition("  #")[0].strip() for line in BLOCK[1].splitlines()] if BLOCK else []
VERBS = """\
dcfl new config digits
dcfl run digits.toml --dry-run
dcfl partition data.clients=50 --picture split.svg --save split.json
dcfl run data.partition=file:split.json
dcfl methods dcfl-pw
dcfl settings server.optimizer=fedyogi
dcfl check moon
dcfl report runs/mine
dcfl predict runs/mine photo.jpg holiday/
dcfl analyse runs/mine
dcfl reproduce participation-5 --plan
dcfl theory
dcfl doctor
"""
SHORT = {"run": "federation.rounds=2", "compare": "federation.rounds=1"}


def installed(folder: Path) -> dict[str, str]:
    """The environment of a Python that has the wheel, and no clone."""
    wheels, packages = folder / "wheels", folder / "packages"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    built = subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT], capture_output=True, text=True
    )
    if "No matching distribution found for hatchling" in built.stderr:
        pytest.skip("hatchling, which builds the wheel, cannot be had here")
    assert built.returncode == 0, built.stderr
    (wheel,) = wheels.iterdir()
    subprocess.run([*pip, "install", "--no-deps", "--target", packages, wheel], check=True)
    return {**os.environ, "PYTHONPATH": str(packages), "DCFL_CACHE": str(folder / "cache")}


def pictures(folder: Path) -> None:
    """What the README's reader has: pictures of two classes, a photograph, and more of them."""
    for number in range(60):
        path = folder / "pictures" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 10), (4 * number, 0, 0)).save(path)
    (folder / "holiday").mkdir()
    for path in ("photo.jpg", "holiday/1.jpg"):
        Image.new("RGB", (30, 20)).save(folder / path)


def test_the_readme_has_commands() -> None:
    assert len(README) == 5
    assert all(command.startswith("dcfl ") for command in README)


@pytest.mark.slow
def test_commands_of_the_readme_and_most_verbs(tmp_path: Path) -> None:
    environment = installed(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    where = [sys.executable, "-c", "import dcfl; print(dcfl.__file__)"]
    found = subprocess.run(where, cwd=empty, env=environment, capture_output=True, text=True)
    assert found.stdout.startswith(str(tmp_path / "packages"))
    pictures(empty)
    for command in [*README, *VERBS.splitlines()]:
        _, verb, *words = shlex.split(command)
        arguments = [verb, *words, *([SHORT[verb]] if verb in SHORT else [])]
        answer = subprocess.run(
            [sys.executable, "-m", "dcfl", *arguments],
            cwd=empty,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
        )
        assert answer.returncode == 0, f"{command}: {answer.stderr[-2000:]}"
