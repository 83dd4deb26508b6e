import pytest

from dcfl.recording import RecordedRun
from tests.analysis.trained import train


@pytest.fixture(scope="session")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return train(tmp_path_factory.mktemp("runs") / "c", **{"method.name": "fedavg"})


@pytest.fixture(scope="session")
def fedproc(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return train(tmp_path_factory.mktemp("runs") / "a", **{"method.name": "fedproc"})


@pytest.fixture(scope="session")
def dcfl_pw(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return train(tmp_path_factory.mktemp("runs") / "b", **{"method.name": "dcfl-pw"})
