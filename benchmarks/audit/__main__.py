"""Holds the methods of other frameworks against ours, and writes `docs/audit.md`.

    python -m benchmarks.audit FOLDER      run their code, from clones in FOLDER; then the page
    python -m benchmarks.audit digits      what each difference does on the digits; then the page
    python -m benchmarks.audit             the page alone, from `results/audit*.json`

The clones: KarhouTam/FL-bench, TsingZ0/PFLlib, makgyver/fluke, adap/flower, QinbinLi/MOON and
alpemreacar/FedDyn, each under the name of its repository.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from benchmarks.audit import digits
from benchmarks.audit.page import DIGITS, PAGE, RESULTS, page

CLONES = {
    "FL-bench": "KarhouTam/FL-bench",
    "PFLlib": "TsingZ0/PFLlib",
    "fluke": "makgyver/fluke",
    "Flower baselines": "adap/flower",
    "the authors, moon": "QinbinLi/MOON",
    "the authors, feddyn": "alpemreacar/FedDyn",
}


def measure(folder: Path) -> None:
    torch.set_default_dtype(torch.float64)
    from benchmarks.audit.servers import servers
    from benchmarks.audit.theirs import everything
    from benchmarks.audit.visits import compare

    rows = []
    with redirect_stdout(StringIO()):
        for one in everything(folder):
            origin = origin_of(folder, one.framework, one.method, one.files)
            rows.append({**origin, **asdict(compare(one))})
        for framework, method, files, moved in servers(folder):
            rows.append({**origin_of(folder, framework, method, files), "moved": moved})
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


def origin_of(folder: Path, framework: str, method: str, files: Sequence[str]) -> dict[str, Any]:
    repository = CLONES[framework if framework in CLONES else f"{framework}, {method}"]
    return {
        "framework": framework,
        "method": method,
        "repository": repository,
        "commit": commit_of(folder / repository.split("/")[1]),
        "files": files,
    }


def commit_of(clone: Path) -> str:
    command = ["git", "-C", str(clone), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    if sys.argv[1:] == ["digits"]:
        digits.measure()
    elif len(sys.argv) > 1:
        measure(Path(sys.argv[1]))
    PAGE.write_text(page(json.loads(RESULTS.read_text()), json.loads(DIGITS.read_text())))
