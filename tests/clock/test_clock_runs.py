"""Whole runs by the clock: the plain run's bits, the same bits everywhere, and one line for what
does not go together."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import dcfl
from dcfl.clock.events import Clock
from dcfl.clock.settings import ClockSettings
from dcfl.engines.engine import Connect
from dcfl.engines.runner import expected_upload
from dcfl.errors import ConfigError
from dcfl.experiment import EngineSettings, Experiment, FederationSettings, OutputSettings
from dcfl.messages import ClientUpdate, num_bytes
from dcfl.methods import METHODS
from dcfl.runs.connect import connect
from dcfl.runs.folder import RecordedRun
from dcfl.runs.identity import differences, identity, of_run
from dcfl.runs.prepare import prepare
from dcfl.runs.run import Run
from dcfl.server import Server, ServerState
from dcfl.server.compression import CompressionSettings
from dcfl.tensors import snapshot
from dcfl.testing.toys import toy_model
from tests import toys
from tests.engines.runs import TRAINING, Flat, bits, federation, trained
from tests.flower.in_process import in_process
from tests.reliability.victims import flat

MODEL = flat()
SIZES = (8, 8, 8, 8, 8, 8)
UNEQUAL = (4, 9, 6, 12, 3, 7)
PLAIN = CompressionSettings()
TIMES = ("virtual_time", "began", "ended", "staleness")


def clocked(
    folder: Path,
    workers: int = 1,
    method: str = "fedavg",
    selection: Any = "uniform",
    sizes: tuple[int, ...] = UNEQUAL,
    connect: Connect = connect,
    compression: CompressionSettings = PLAIN,
    **clock: Any,
) -> Run:
    experiment = Experiment(
        method=METHODS[method](),
        training=TRAINING,
        federation=FederationSettings(5, 0.5, selection=selection),
        engine=EngineSettings(workers=workers, device="cpu"),
        output=OutputSettings(str(folder), report=False, checkpoint=1),
        clock=ClockSettings(**clock),
        compression=compression,
    )
    return Run(experiment, federation(sizes), MODEL, connect)


def finished(run: Run) -> dict[str, Any]:
    for _ in run.rounds():
        pass
    return bits(run)


def without_bytes(found: dict[str, Any]) -> dict[str, Any]:
    """On Flower's wire tensors have names and shapes too."""
    rows = {
        kind: [{n: v for n, v in row.items() if n[:5] != "bytes"} for row in found[kind]]
        for kind in ("rounds", "clients")
    }
    return {**found, **rows}


def untimed(found: dict[str, Any]) -> dict[str, Any]:
    for row in (*found["rounds"], *found["clients"]):
        for name in TIMES:
            row.pop(name, None)
    return found


@pytest.mark.parametrize("method", ["moon", "dcfl-pw"])
def test_equal_devices_without_a_deadline_are_the_plain_run_to_the_last_bit(
    method: str, tmp_path: Path
) -> None:
    plain = finished(clocked(tmp_path / "plain", method=method))
    timed = finished(clocked(tmp_path / "timed", method=method, devices="uniform"))
    times = [row["virtual_time"] for row in timed["rounds"]]
    assert times == sorted(times)
    assert times[0] > 0
    assert "virtual_time" not in plain["rounds"][0]
    assert untimed(timed) == plain


def test_fedbuff_with_a_buffer_of_the_cohort_is_fedavg_where_nobody_is_stale(
    tmp_path: Path,
) -> None:
    plain = finished(clocked(tmp_path / "plain", sizes=SIZES))
    asynchronous = {"devices": "uniform", "mode": "fedbuff", "buffer": 3}
    buffered = finished(clocked(tmp_path / "buffered", sizes=SIZES, **asynchronous))
    assert {row["staleness"] for row in buffered["clients"]} == {0}
    assert untimed(buffered) == plain


ALL_AT_ONCE = {
    "fedbuff": {"mode": "fedbuff", "buffer": 2, "drop_out": 0.2, "availability": "day-night"},
    "fedasync": {"mode": "fedasync"},
    "kept": {"deadline": 1.0, "late": "keep", "over_selection": 1.4},
    "packed": {
        "mode": "fedbuff",
        "buffer": 2,
        "compression": CompressionSettings("top-k", "int8", 0.1),
    },
}


@pytest.mark.parametrize("name", ALL_AT_ONCE)
def test_the_same_bits_in_a_pool_on_flower_and_after_a_kill(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "method": "moon",
        "devices": "phones",
        "selection": "oort",
        **ALL_AT_ONCE[name],
    }
    run, killed = clocked(tmp_path / "one", **settings), tmp_path / "killed"
    for row in run.rounds():
        if row.round == 3:  # what a kill leaves, wherever it comes before the next checkpoint
            shutil.copytree(run.folder, killed)
    wanted = bits(run)
    assert any(row["staleness"] for row in wanted["clients"])
    assert finished(clocked(tmp_path / "two", 2, **settings)) == wanted
    there = finished(clocked(tmp_path / "flower", connect=in_process(3), **settings))
    assert without_bytes(there) == without_bytes(wanted)
    resumed = Run.resume(killed, federation(UNEQUAL), MODEL, trust=True)
    assert finished(resumed) == wanted
    summary = RecordedRun.open(killed).summary
    assert summary is not None
    assert summary.virtual_time == wanted["rounds"][-1]["virtual_time"]
    assert summary.clock.startswith("phones, ")


@pytest.mark.parametrize("name", METHODS)
def test_the_clock_knows_the_size_of_every_methods_messages(name: str) -> None:
    """Before it is trained: else nobody would know whose replies to train."""
    model, data = toys.network_for(name, toy_model()), toys.federated(3)
    engine = toys.embedded(name, model, data)
    names = frozenset(name for name, _ in model.named_parameters())
    upload = expected_upload(engine.runner)
    server = Server(METHODS[name](), 3, names, TRAINING, upload=upload)
    clock = Clock(server, ClockSettings(), 1.0, 0, data.sizes)
    broadcast = server.broadcast(ServerState(0, snapshot(model), {}, {}))
    reply = next(iter(engine.run(broadcast, [1])))
    assert isinstance(reply, ClientUpdate)
    assert clock._bytes_up(broadcast) == num_bytes(reply.weights) + num_bytes(reply.upload)


REFUSED: dict[str, dict[str, Any]] = {
    "clock.devices: no devices 'fones': did you mean phones": {"clock.devices": "fones"},
    "clock.availability: no availability 'nights'": {
        "clock.devices": "phones",
        "clock.availability": "nights",
    },
    "clock.deadline needs to know how quick clients are": {"clock.deadline": 3.0},
    "clock.drop_out must": {"clock.devices": "phones", "clock.drop_out": 1.0},
    "are of rounds, and clock.mode": {
        "clock.devices": "phones",
        "clock.mode": "fedbuff",
        "clock.deadline": 3.0,
    },
    "nobody is late without": {"clock.devices": "phones", "clock.late": "keep"},
    "scaffold puts together what the clients of one round make": {
        "clock.devices": "phones",
        "clock.mode": "fedbuff",
        "method.name": "scaffold",
    },
    "dcfl-pw puts together what the clients of one round make": {
        "clock.devices": "phones",
        "clock.deadline": 1.0,
        "clock.late": "keep",
    },
    "clock.buffer = 30 of 20 clients would never be full": {
        "clock.devices": "phones",
        "clock.mode": "fedbuff",
        "clock.buffer": 30,
        "method.name": "fedavg",
    },
    "asks other clients than \\[privacy\\] accounts for": {
        "method.name": "fedavg",
        "federation.selection": "oort",
        "privacy.clip": 1.0,
    },
    "a baseline asks all clients": {
        "clock.devices": "phones",
        "federation.baseline": "alone",
        "method.name": "fedavg",
    },
    "does not know how many images sites have": {
        "federation.selection": "samples",
        "engine.name": "flower",
    },
    "is for simulations": {"clock.devices": "phones", "engine.name": "flower"},
    "federation.minimum_replies = 3": {
        "clock.devices": "phones",
        "clock.mode": "fedasync",
        "federation.minimum_replies": 3,
        "method.name": "fedavg",
    },
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_does_not_go_together_is_refused_in_a_line(line: str) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        prepare(dcfl.load_experiment(**REFUSED[line]))
    assert "\n" not in str(caught.value)


def test_a_bad_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("seconds_per_sample,up,down,latency,memory\n1,0,1,1,1\n")
    with pytest.raises(ConfigError, match="line 2: up and down must be above 0"):
        clocked(tmp_path / "run", devices=f"file:{tmp_path / 'd.csv'}")
    assert not (tmp_path / "run").exists()


def test_a_file_counts_by_its_content_and_not_by_its_path(tmp_path: Path) -> None:
    first, other = tmp_path / "d.csv", tmp_path / "elsewhere.csv"
    first.write_text("seconds_per_sample,up,down,latency,memory\n1,1,1,1,1000\n")
    runs = []
    for number, (file, pace) in enumerate([(first, 1), (other, 1), (other, 2)]):
        file.write_text(f"seconds_per_sample,up,down,latency,memory\n{pace},1,1,1,1000\n")
        run = clocked(tmp_path / str(number), devices=f"file:{file}")
        finished(run)
        runs.append(identity(of_run(RecordedRun.open(run.folder))))
    assert differences(runs[0], runs[1]) == []
    assert [one.key for one in differences(runs[0], runs[2])] == ["devices"]


def test_without_a_clock_a_run_is_what_it_was(tmp_path: Path) -> None:
    found = bits(trained(tmp_path, METHODS["fedavg"](), 1, model=Flat()))
    assert not {*TIMES} & {*found["rounds"][0], *found["clients"][0]}
