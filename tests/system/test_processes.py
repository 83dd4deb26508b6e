"""Programs that we start import nothing from the folder that we were started in."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dcfl
from dcfl.system.processes import answer_of_a_fork, python

ROOT = Path(dcfl.__file__).parents[1]
HOSTILE = "open('owned', 'w').close()\nraise SystemExit('hostile')\n"
ENTRY = [sys.executable, "-P", "-c", "from dcfl.cli.main import main; main()"]
SMOKE = ("--scale", "smoke", "--only", "cifar10-0.3-p5", "federation.rounds=1")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with modules that stand in the way of the library's, ours and others'."""
    for name in ("queue", "json", "typer", "torch", "tempfile", "dcfl"):
        (tmp_path / f"{name}.py").write_text(HOSTILE)
    return tmp_path


@pytest.mark.slow
def test_our_python_does_not_look_into_the_working_folder(hostile: Path) -> None:
    for words in (("-c", "import queue"), ("-m", "dcfl.comparisons.cell_worker", "--nothing")):
        subprocess.run(python(*words), cwd=hostile, capture_output=True)
    assert not (hostile / "owned").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("reproduce", "similarity", *SMOKE, "--out", "out"),
    ],
    ids=lambda words: words[0],
)
def test_commands_that_start_programs_run_nothing_of_the_folder(
    words: tuple[str, ...], hostile: Path
) -> None:
    done = subprocess.run([*ENTRY, *words], cwd=hostile, capture_output=True, text=True)
    assert not (hostile / "owned").exists()
    assert done.returncode == 0, done.stderr


# Those that run a script by its path, which puts the script's own folder first.
BY_PATH = {
    "dcfl/flower/deploy/supernode.py",  # isolated, and without site-packages
    "benchmarks/newest_flower.py",
}


def starts_python(path: Path) -> bool:
    """Whether a file makes a command of its own from sys.executable."""
    return any(
        isinstance(node, ast.List)
        and any(ast.unparse(one) == "sys.executable" for one in node.elts)
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_all_of_our_programs_are_started_in_one_way() -> None:
    globs = ("dcfl/**/*.py", "benchmarks/*.py", "benchmarks/bench/*.py")
    files = [path for glob in globs for path in ROOT.glob(glob)]
    found = {path.relative_to(ROOT).as_posix() for path in files if starts_python(path)}
    assert found == {"dcfl/system/processes.py", *BY_PATH}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("work", "answer"),
    [
        (lambda: [1, "two"], [1, "two"]),
        (lambda: 1 / 0, None),
        (lambda: os._exit(0), None),
        (lambda: os.kill(os.getpid(), 9), None),
    ],
)
def test_a_fork_answers_or_dies_alone(work: Callable[[], Any], answer: Any) -> None:
    assert answer_of_a_fork(work) == answer
