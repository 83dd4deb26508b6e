"""Every command of the README works in an empty folder with nothing but the wheel installed."""

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
COMMANDS = [line.partition("  #")[0].strip() for line in BLOCK[1].splitlines()] if BLOCK else []
SWEEP = "dcfl sweep training.lr=0.01,0.1 method.mu=0.1,1,10"
ELSEWHERE = {  # too long for here, or for another machine; and where it is tested
    SWEEP: "tests/comparisons",
    "dcfl data get cifar10": "tests/data/test_sources.py, without a network",
    "dcfl resume runs/mine --rounds 200": "tests/runs/test_longer.py",
    "dcfl run engine.name=flower-simulation": "tests/parity/test_flower.py, on Ray",
    "dcfl report runs/a runs/b --latex tables.tex": "tests/cli/test_comparison_output.py",
    "dcfl watch runs/mine": "tests/report/test_watch.py",
    "dcfl --install-completion": "tests/cli/test_manners.py",
}
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
    assert len(COMMANDS) > 20
    assert all(command.startswith("dcfl ") for command in COMMANDS)
    assert set(ELSEWHERE) <= set(COMMANDS)


@pytest.mark.slow
def test_every_command_of_the_readme(tmp_path: Path) -> None:
    environment = installed(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    where = [sys.executable, "-c", "import dcfl; print(dcfl.__file__)"]
    found = subprocess.run(where, cwd=empty, env=environment, capture_output=True, text=True)
    assert found.stdout.startswith(str(tmp_path / "packages"))
    pictures(empty)
    for command in COMMANDS:
        if command in ELSEWHERE:
            continue
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
