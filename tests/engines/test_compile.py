"""engine.compile with workers: each compiles for itself, and the bits are those of one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engines.test_pool import ROOT

PATIENCE = 300  # seconds; a compiler takes some tens

CODE = """
import sys
from pathlib import Path
from dcfl.methods import METHODS
from tests.engines.runs import Flat, trained
import torch
torch.manual_seed(0)
run = trained(
    Path(sys.argv[1]), METHODS["fedavg"](), int(sys.argv[2]), model=Flat(), rounds=2, compile=True
)
print(run.result().summary["weights_sha256"])
"""


def weights(folder: Path, workers: int, cache: Path) -> str:
    """In a process of its own with everything that it starts, and with an empty cache."""
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(folder), str(workers)],
        cwd=ROOT,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        assert list(cache.rglob("*.py")), "nothing was compiled"
        return out.strip()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_workers_compile_after_they_are_forked(tmp_path: Path) -> None:
    if subprocess.run(["sh", "-c", "command -v g++ c++ clang++"], capture_output=True).returncode:
        pytest.skip("torch.compile wants a C++ compiler")
    found = {weights(tmp_path / str(count), count, tmp_path / f"cache-{count}") for count in (1, 2)}
    assert len(found) == 1
    assert len(found.pop()) == 64
