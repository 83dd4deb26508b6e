"""`dcfl flower stats`: what sites tell before a training, within their rules."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, RecordDict

from dcfl.config import as_tables, to_toml
from dcfl.data import DataSettings, load_dataset
from dcfl.errors import ProtocolError
from dcfl.flower import codec
from dcfl.flower.client_app import app
from dcfl.flower.codec import SiteStatistics, Task
from dcfl.flower.deploy import server_app, superlink
from dcfl.flower.deploy import statistics as pooling
from dcfl.flower.deploy.server_app import ask_sites
from dcfl.flower.deploy.statistics import pooled
from dcfl.flower.deploy.submission import Submitted
from dcfl.flower.deploy.superlink import Connection
from dcfl.flower.roster import Roster
from dcfl.flower.site_failures import Refusal
from dcfl.flower.withholding import STATISTICS
from tests.flower.in_process import InProcessGrid
from tests.flower.sites_in_process import RUN, Sites, pictures, remote_experiment


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    disk = tmp_path_factory.mktemp("disk")
    return [pictures(disk / "north", 20, 10), pictures(disk / "south", 10, 40)]


def asked(
    folders: list[Path], logs: Path, *rules: dict[str, Any], **changes: Any
) -> dict[str, Any]:
    own = [{**one, "audit": str(logs / f"{place}.jsonl")} for place, one in enumerate(rules)]
    sites = Sites(folders, own)
    experiment = remote_experiment(Path("never written"), **changes)
    text = to_toml(as_tables(experiment))
    grid = InProcessGrid(app, 2, {"experiment": text})
    for place, context in enumerate(grid.contexts.values()):
        context.node_config.update(sites.node(place))
    return ask_sites(grid, Roster(2, names=("north", "south")), experiment.data)


def told(answers: dict[str, Any]) -> dict[str, SiteStatistics | str]:
    return {
        name: one if isinstance(one, str) else SiteStatistics(**one)
        for name, one in answers.items()
    }


def test_what_is_proposed_is_what_all_pixels_together_have(
    folders: list[Path], tmp_path: Path
) -> None:
    answers = asked(folders, tmp_path, {}, {})
    parts = [
        load_dataset(DataSettings(dataset=f"folder:{folder}", image_size=8)).train
        for folder in folders
    ]
    for name, part in zip(("north", "south"), parts, strict=True):
        assert answers[name]["by_class"] == np.bincount(part.labels.numpy()).tolist()
        assert answers[name]["images"] == len(part)
    pixels = np.concatenate([part.pixels.numpy() for part in parts]) / 255
    mean, std = pooled(told(answers))
    assert mean == pytest.approx(pixels.mean(axis=(0, 1, 2)).tolist(), abs=2e-4)
    assert std == pytest.approx(pixels.std(axis=(0, 1, 2)).tolist(), abs=2e-4)


def test_a_site_tells_what_it_does_not_withhold_and_records_it(
    folders: list[Path], tmp_path: Path
) -> None:
    rules = {"withhold": "class-counts"}, {"withhold": "sizes,statistics"}
    answers = asked(folders, tmp_path, *rules)
    assert answers["north"]["images"] == 24
    assert answers["north"]["by_class"] == []
    assert len(answers["north"]["mean"]) == 3
    assert answers["south"] == {"images": None, "by_class": [], "mean": [], "std": []}
    mean, _ = pooled(told(answers))
    assert mean == pytest.approx(answers["north"]["mean"], abs=1e-4)
    log = (tmp_path / "0.jsonl").read_text().splitlines()[-1]
    assert '"query.statistics"' in log
    assert "statistics.mean" in log
    assert "by_class" not in log


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"privacy-noise": 1.0}, Refusal.NOISE_DEMANDED.value.split("{")[0]),
        ({"rounds": 1}, ""),
    ],
)
def test_a_sites_rules_hold(
    rules: dict[str, Any], said: str, folders: list[Path], tmp_path: Path
) -> None:
    answers = [asked(folders, tmp_path, rules, {})["north"] for _ in range(3)]
    if said:
        assert said in answers[0]
    else:  # as often as it trains, and once more
        assert [isinstance(one, str) for one in answers] == [False, False, True]
        assert "query.statistics as often as it allows" in answers[2]


def test_a_site_that_sends_with_noise_alone_tells_none(folders: list[Path], tmp_path: Path) -> None:
    """Whatever the run's config says of noise."""
    private = {"privacy__clip": 1.0, "privacy__noise": 2.0}
    answers = asked(folders, tmp_path, {"privacy-noise": 1.0}, {}, **private)
    assert answers["north"] == Refusal.STATISTICS_UNPROTECTED.value
    assert not isinstance(answers["south"], str)


@pytest.mark.parametrize(
    "said",
    [
        {"images": -1},
        {"images": 3, "by_class": [1, 1]},
        {"by_class": [1, 1, 1]},
        {"mean": [0.5]},
        {"mean": [2.0], "std": [0.5]},
        {"mean": [float("nan")], "std": [0.5]},
        {"mean": [0.5] * 9, "std": [0.5] * 9},
        {"mean": [0.5], "std": [0.5]},  # the others' pictures have three channels
        {"mean": "dark", "std": "light"},
    ],
)
def test_statistics_that_cannot_be_are_refused(said: dict[str, Any]) -> None:
    task = Task(RUN, 0, 0).ticketed()
    content = codec.message(task, statistics=ConfigRecord(said))
    with pytest.raises(ProtocolError):
        codec.read_statistics(content, task, 2)


def test_the_log_of_a_run_that_has_ended_is_worth_half_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine `flwr log` takes so long, and the answer is there."""

    def slow(link: Connection, command: list[str], wait: float) -> CompletedProcess[bytes]:
        if wait < 30:
            raise TimeoutExpired(command, wait)
        return CompletedProcess(command, 0, b"dcfl statistics: {}", b"")

    monkeypatch.setattr(superlink, "_call", slow)
    monkeypatch.setattr(superlink, "prepare_calls", lambda link: None)
    assert superlink.log(Connection("localhost:1", tmp_path), 1) == "dcfl statistics: {}"


def test_a_site_without_training_images_has_no_say() -> None:
    empty = SiteStatistics(0, [0, 0], [1.0] * 3, [0.1] * 3)
    assert pooled({"south": empty}) == ([], [])
    grey = SiteStatistics(4, [2, 2], [0.5] * 3, [0.25] * 3)
    assert pooled({"south": empty, "north": grey}) == ([0.5] * 3, [0.25] * 3)


def test_what_many_sites_tell_arrives_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the server's program by its log to the command."""
    one = SiteStatistics(4, [2, 2], [0.5] * 3, [0.25] * 3)
    names = [f"hospital-{number:02d}" for number in range(40)]
    found = {name: one._asdict() for name in names}
    monkeypatch.setattr(server_app, "ask_sites", lambda *question: found)
    asked = remote_experiment(tmp_path, data__clients=40)
    config = {"experiment": to_toml(as_tables(asked)), "sites": "40", "asks": STATISTICS}
    server_app.main(InProcessGrid(app, 1), Context(1, 1, {}, RecordDict(), config))
    log = capsys.readouterr().out
    submitted = Submitted(Connection("127.0.0.1:9", tmp_path, None, True), 1, tmp_path)
    monkeypatch.setattr(pooling, "submit", lambda *about, **more: submitted)
    monkeypatch.setattr(superlink, "run_status", lambda link, run: "finished:completed")
    monkeypatch.setattr(superlink, "log", lambda link, run: log)
    assert pooling.statistics(submitted.link, asked, Roster(40)) == dict.fromkeys(names, one)
