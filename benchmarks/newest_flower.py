"""Test the newest flwr that can be installed here, in an environment of its own; nothing is done if
it is the one that constraints.txt pins, which `make test-flower` tests.

    python benchmarks/newest_flower.py .venv/newest-flower
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ("tests/flower", "tests/parity/test_flower.py")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {canonical(name): version for name, version in pairs}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def newest() -> dict[str, str]:
    """The versions of flwr and of what it needs, as pip would choose them today."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"]["site"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    report = subprocess.run(
        [*pip, "--dry-run", "--ignore-installed", "--report", "-", *wanted],
        check=True,
        stdout=subprocess.PIPE,
        timeout=600,
    )
    rows = [row["metadata"] for row in json.loads(report.stdout)["install"]]
    return {canonical(row["name"]): row["version"] for row in rows}


def main(folder: Path) -> int:
    try:
        pinned, found = pins(), newest()
    except subprocess.SubprocessError as error:
        print(f"which flwr is the newest cannot be found out here: {error}")
        return 0
    if found["flwr"] == pinned["flwr"]:
        print(f"flwr {found['flwr']} is pinned, and the newest that can be installed here")
        return 0
    print(f"flwr {found['flwr']} can be installed here; {pinned['flwr']} is pinned")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(
        "".join(f"{name}=={number}\n" for name, number in (pinned | found).items())
    )
    python = str(folder / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-c", str(constraints), "-e", ".[dev]"], cwd=ROOT, check=True)
    return subprocess.run([python, "-m", "pytest", *TESTS], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
