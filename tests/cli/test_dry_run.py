"""`dcfl run --dry-run` and the first line of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dcfl.cli.cards import dataset_card, estimate_card
from dcfl.cli.terminal import duration, megabytes
from dcfl.config import experiment_from
from dcfl.data import DataSettings, load_dataset
from dcfl.data.dataset_summary import DatasetSummary, summarise_dataset
from dcfl.runs import estimate as estimates
from dcfl.runs.estimate import estimate
from dcfl.runs.prepare import Prepared, prepare
from tests.command_line import Call
from tests.runs.rates import RATES


@pytest.fixture
def cli(cli: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setattr(estimates, "measure", lambda prepared: RATES)
    return cli


def ready() -> Prepared:
    return prepare(experiment_from(None, {"engine": {"workers": 1, "device": "cpu"}}))


def test_a_dry_run_says_what_a_run_would_cost_and_writes_nothing(cli: Call, tmp_path: Path) -> None:
    code, out, _ = cli("run", "--dry-run", "--out", "here")
    assert code == 0
    said = {line.split()[0]: line for line in out.splitlines() if line}
    assert {*said} >= {"what", "clients", "time", "memory", "engine", "disk", "sent", "measured"}
    assert "dcfl-pw on digits, cnn with 94,186 parameters, float32" in said["what"]
    assert "5 of 20 a round, 72 images each; 80 rounds" in said["clients"]
    assert "a round" in said["time"]
    assert not list(tmp_path.iterdir())


def test_a_dry_run_in_json(cli: Call) -> None:
    code, out, _ = cli("run", "--dry-run", "--json", "federation.rounds=2")
    assert code == 0
    said = json.loads(out)
    assert said["bytes_up"] == 2 * 5 * RATES.up
    assert said["seconds"] > 0
    assert isinstance(said["fits"], bool)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method.name=nonsense",), "nonsense"),
        (("federation.participation=2",), "federation.participation"),
        (("engine.name=flower",), "dcfl flower run"),
    ],
)
def test_a_dry_run_refuses_what_a_run_refuses(
    words: tuple[str, ...], message: str, cli: Call
) -> None:
    for dry in ((), ("--dry-run",)):
        code, _, err = cli("run", *words, *dry)
        assert code == 2
        assert message in err.splitlines()[-1]
        assert "Traceback" not in err


@pytest.mark.usefixtures("cli")
def test_a_run_that_does_not_fit_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "available_bytes", lambda: 0)
    monkeypatch.setattr(estimates, "memory_of", lambda pid: 10**8)
    prepared = ready()
    card = estimate_card(prepared, estimate(prepared))
    assert "100.0 MB are free: it does not fit" in card


def test_the_first_line_says_what_trains_where(cli: Call) -> None:
    fast = ("federation.rounds=1", "training.epochs=1", "engine.workers=1")
    _, _, err = cli("run", *fast)
    expected = "dcfl-pw  cnn with 94,186 parameters, float32; 1 worker x 1 thread"
    assert err.splitlines()[0] == expected
    _, _, err = cli("run", *fast, "--json")
    assert "parameters" not in err


def test_numbers_have_units() -> None:
    assert [duration(s) for s in (0.123, 45.4, 200, 8000, 1e6)] == [
        "0.12 seconds",
        "45 seconds",
        "3.3 minutes",
        "2.2 hours",
        "11.6 days",
    ]
    assert [megabytes(b) for b in (2.5e6, 3.21e9)] == ["2.5 MB", "3.2 GB"]


@pytest.fixture(scope="module")
def digits() -> DatasetSummary:
    settings = DataSettings()
    return summarise_dataset(load_dataset(settings), settings)


@pytest.mark.parametrize(
    ("sites", "words"),
    [
        ({"north": 75, "south": 75}, "2, of 75 images each: north, south"),
        ({"north": 9, "south": 1200}, "2, of 9 to 1,200 images: north, south"),
    ],
)
def test_sites_and_their_sizes(digits: DatasetSummary, sites: dict[str, int], words: str) -> None:
    assert dataset_card(replace(digits, sites=sites)).endswith(f"sites      {words}")


def test_classes_that_sites_lack(digits: DatasetSummary) -> None:
    def line(lacking: dict[str, list[str]]) -> str:
        return dataset_card(replace(digits, lacking=lacking)).splitlines()[-1]

    assert line({"south": ["unclear"]}) == "lacking    south has no unclear"
    many = {f"s{n}": ["a", "b", "c", "d"] for n in range(9)}
    assert line(many).startswith("lacking    s0 has no a, b, c, ...; s1 has no a, b")
    assert line(many).endswith("; and 6 more sites lack classes")
    assert "lacking" not in line({})


@pytest.mark.parametrize(
    ("of_a_class", "words"),
    [((0.2, 0.2), "(20 %)"), ((0.304, 0.451), "(20 %, 30 to 45 % of a class)")],
)
def test_the_share_to_test_on(
    digits: DatasetSummary, of_a_class: tuple[float, float], words: str
) -> None:
    least, most = of_a_class
    card = dataset_card(replace(digits, smallest_test_share=least, largest_test_share=most))
    assert card.splitlines()[1] == f"images     1,442 to train on, 355 to test on {words}"
