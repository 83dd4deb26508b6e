"""A study of more runs than anybody waits for is refused before it is made."""

import time
from pathlib import Path

import pytest

import dcfl
from dcfl.errors import ConfigError
from tests.command_line import Call

MANY = ",".join(map(str, range(15_001)))
VALUES = ",".join(map(str, range(1, 102)))
RATES = "training.lr=0.01,0.1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep", f"method.mu={VALUES}", "--seeds", VALUES], "10,201 runs"),
        (["sweep", f"method.mu={VALUES}", f"method.align={VALUES}"], "10,201 runs"),
        (["sweep", "training.lr=0.1,0.2", "--seeds", MANY], "15,001 seeds"),
        (["compare", "--seeds", MANY], "15,001 seeds"),
        (["reproduce", "ablation", "--seeds", MANY], "15,001 seeds"),
        (["reproduce", "participation-5", "--seeds", MANY[:3889]], " runs: a study"),
        (["sweep", RATES, "--seeds", "٣"], "--seeds takes whole numbers"),
        (["sweep", RATES, "--seeds", "1_000"], "--seeds takes whole numbers"),
        (["sweep", RATES, "--seeds", "9" * 5000], "--seeds takes whole numbers"),
        (["sweep", RATES, "--parallel", "10000000"], "--parallel"),
        (["predict", "run", "a.png", "--top", "1000000000"], "--top"),
        (["flower", "up", "--sites", "1000000"], "--sites"),
    ],
)
def test_a_line_says_so_within_a_second(
    words: list[str], said: str, cli: Call, tmp_path: Path
) -> None:
    began = time.perf_counter()
    code, out, err = cli(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert time.perf_counter() - began < 5  # on a busy machine
    assert not [*tmp_path.iterdir()]


def test_no_method_and_fewer_than_no_runs_at_a_time_are_named(tmp_path: Path) -> None:
    out = tmp_path / "comparison"
    with pytest.raises(ConfigError, match="no method to compare"):
        dcfl.compare(methods=[], out=out)
    with pytest.raises(ConfigError, match="parallel must be 0 or more"):
        dcfl.compare(methods=["fedavg"], parallel=-1, out=out)
