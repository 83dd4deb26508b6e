from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site whose node config names no folder keeps what it keeps under its home."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
