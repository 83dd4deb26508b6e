import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from dcfl.engines.half_precision import avoid_broken_instructions
from dcfl.methods import METHODS
from dcfl.models.own_models import OWN_MODELS
from dcfl.runs.folder import RecordedRun
from tests.analysis.trained import train
from tests.command_line import Call, calls


def pytest_configure() -> None:
    avoid_broken_instructions()  # before a test has torch convolve anything
    # The secret of this user that marks runs: not in the home of whoever tests.
    os.environ.setdefault("XDG_STATE_HOME", tempfile.mkdtemp(prefix="dcfl-tests-"))
    # Times depend on what else the machine does, and are no property of the code.
    hypothesis.settings.register_profile("dcfl", deadline=None)
    hypothesis.settings.load_profile("dcfl")


@pytest.fixture(autouse=True)
def _methods_and_models_of_a_test_are_its_own() -> Iterator[None]:
    """`--method-file` and `--model-file` make them known to the whole process."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)
    OWN_MODELS.clear()


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Call:
    """`dcfl WORDS` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return calls(monkeypatch, capsys)


@pytest.fixture(scope="session")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return train(tmp_path_factory.mktemp("runs") / "c", **{"method.name": "fedavg"})


@pytest.fixture(scope="session")
def fedproc(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return train(tmp_path_factory.mktemp("runs") / "a", **{"method.name": "fedproc"})


@pytest.fixture(scope="session")
def dcfl_pw(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return train(tmp_path_factory.mktemp("runs") / "b", **{"method.name": "dcfl-pw"})
