"""Whole runs that start from a file and freeze parts of it: the same on every engine, resumable."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dcfl import config, load_model
from dcfl.comparisons.groups import group_runs
from dcfl.engines.engine import Session
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.messages import num_bytes
from dcfl.runs.folder import RecordedRun
from dcfl.runs.prepare import prepare
from dcfl.runs.run import Run
from dcfl.system.tensor_files import read_stored
from tests.engines.runs import bits
from tests.reliability.victims import interrupted
from tests.runs.small_runs import FOUR_CLIENTS, finished, quick_experiment

FREEZE = ["convolutions.0", "norms.0"]


def experiment(folder: Path, **settings: Any) -> Experiment:
    own = {**FOUR_CLIENTS, "method.name": "moon", "federation.rounds": 3}
    return quick_experiment(folder, **{**own, **settings})


def trained(folder: Path, **settings: Any) -> Run:
    return finished(Run(experiment(folder, **settings)))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with another seed."""
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    return trained(folder, **{"federation.seed": 7, "federation.rounds": 1}).folder


@pytest.fixture(scope="module")
def alone(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("alone") / "run", **warm(pretrained))


def warm(folder: Path) -> dict[str, Any]:
    return {"model.weights": str(folder), "model.freeze": FREEZE}


def test_a_damaged_model_of_a_run_is_no_start(pretrained: Path, tmp_path: Path) -> None:
    """As `load_model` notices it: safetensors alone does not."""
    data = bytearray((pretrained / "model.safetensors").read_bytes())
    data[-5] ^= 1
    for place in (tmp_path / "run" / "model.safetensors", tmp_path / "other.safetensors"):
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)
        named = place.parent if place.parent != tmp_path else place
        with pytest.raises(ConfigError, match=r"damaged \(its checksum is another one\)"):
            prepare(experiment(tmp_path / "out", **warm(named)))


def test_the_frozen_part_is_that_of_the_file_and_nobody_sends_it(
    alone: Run, pretrained: Path
) -> None:
    weights, _ = read_stored(alone.folder / "model.safetensors")
    start, _ = read_stored(pretrained / "model.safetensors")
    frozen = {name for name in weights if name.startswith(tuple(f"{part}." for part in FREEZE))}
    assert len(frozen) == 6
    assert {name for name in weights if weights[name].equal(start[name])} == frozen
    sent = num_bytes({name: tensor for name, tensor in weights.items() if name not in frozen})
    for row in RecordedRun.open(alone.folder).rounds:
        assert row.bytes_up == row.bytes_down == row.sampled * sent
    load_model(alone.folder)


def test_a_pool_has_the_same_bits(alone: Run, pretrained: Path, tmp_path: Path) -> None:
    pool = trained(tmp_path / "pool", **warm(pretrained), **{"engine.workers": 2})
    assert bits(pool) == bits(alone)


def test_sites_get_the_frozen_part_once_and_have_the_same_bits(
    alone: Run, pretrained: Path, tmp_path: Path
) -> None:
    """Each site builds its model from the config alone, and has no such file."""
    pytest.importorskip("flwr")
    from dcfl.flower.client_app import app
    from dcfl.flower.engine import GridEngine
    from dcfl.flower.roster import Roster
    from tests.flower.in_process import InProcessGrid

    shutil.copytree(pretrained, tmp_path / "server")
    settings = {**warm(tmp_path / "server"), "engine.device": "cpu"}
    there = experiment(tmp_path / "flower", **settings)
    elsewhere = config.to_toml(config.as_tables(there)).replace("/server", "/nowhere")
    sizes: list[int] = []

    @contextmanager
    def connect(session: Session) -> Iterator[GridEngine]:
        grid = InProcessGrid(app, 2, {"experiment": elsewhere})
        for number, context in enumerate(grid.contexts.values()):
            context.node_config["memories"] = str(tmp_path / f"memories-{number}")
        push = grid.push_messages

        def counted(messages: Any) -> Any:
            messages = list(messages)
            sizes.extend("unsent" in message.content for message in messages)
            return push(messages)

        grid.push_messages = counted  # type: ignore[method-assign]
        engine = GridEngine(session, grid, Roster(2))
        yield engine
        kept = list(tmp_path.glob("memories-*/*/unsent.safetensors"))
        assert len(kept) == 2
        engine.forget()
        assert not any(path.exists() for path in kept)

    run = finished(Run(there, connect=connect))
    assert run.result().summary.weights_sha256 == alone.result().summary.weights_sha256
    assert sum(sizes) == 2
    assert all(row.ok == row.sampled for row in RecordedRun.open(run.folder).rounds)


def test_a_site_that_lost_the_frozen_part_says_so(pretrained: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from dcfl.flower.client_app import Site, _complete
    from dcfl.flower.codec import Task
    from dcfl.flower.node_memories import NodeMemories

    prepared = Run(experiment(tmp_path / "run", **warm(pretrained))).prepared
    site = Site(prepared.runner, NodeMemories(tmp_path), 1, awaits_unsent=True)
    with pytest.raises(Exception, match="not there any more") as error:
        _complete(site, Task("a" * 32, 1, 0))
    assert getattr(error.value, "code", "") == "unsent"


def test_a_stopped_run_ends_with_the_same_bits_though_the_file_has_moved(
    alone: Run, pretrained: Path, tmp_path: Path
) -> None:
    shutil.copytree(pretrained, tmp_path / "before")
    interrupted(Run(experiment(tmp_path / "run", **warm(tmp_path / "before"))), 1)
    (tmp_path / "before").rename(tmp_path / "after")
    with pytest.raises(ConfigError, match=r"before/model.safetensors: no such file"):
        Run.resume(tmp_path / "run")
    settings = tmp_path / "run" / "config.toml"
    settings.write_text(settings.read_text().replace("/before/", "/after/"))
    assert bits(finished(Run.resume(tmp_path / "run", trust=True))) == bits(alone)


def test_another_file_is_another_run(alone: Run, pretrained: Path, tmp_path: Path) -> None:
    shutil.copytree(pretrained, tmp_path / "weights")
    interrupted(Run(experiment(tmp_path / "run", **warm(tmp_path / "weights"))), 1)
    shutil.copy(alone.folder / "model.safetensors", tmp_path / "weights")
    with pytest.raises(ConfigError, match="begun with something else: weights was"):
        Run.resume(tmp_path / "run")
    other = trained(tmp_path / "other", **warm(tmp_path / "weights"))
    runs = [RecordedRun.open(run.folder) for run in (alone, other)]
    groups = group_runs(runs)
    assert len(groups) == 2
    assert all("model.weights.sha256=" in group.label for group in groups)


def test_a_moved_file_is_the_same_experiment(alone: Run, pretrained: Path, tmp_path: Path) -> None:
    shutil.copy(pretrained / "model.safetensors", tmp_path / "moved.safetensors")
    moved = trained(tmp_path / "run", **warm(tmp_path / "moved.safetensors"))
    assert bits(moved) == bits(alone)
    assert len(group_runs([RecordedRun.open(run.folder) for run in (alone, moved)])) == 1
    files = [(run.folder / "model.safetensors").read_bytes() for run in (alone, moved)]
    assert files[0] == files[1]


def test_privacy_clips_what_is_sent_and_frozen_statistics_are_no_secret(
    pretrained: Path, tmp_path: Path
) -> None:
    private = {"privacy.clip": 1e-3, "method.name": "fedavg"}
    with pytest.raises(ConfigError, match="running statistics"):
        Run(experiment(tmp_path / "refused", **warm(pretrained), **private))
    parts = {**warm(pretrained), "model.freeze": ["convolutions", "norms"]}
    run = trained(tmp_path / "run", **parts, **private, **{"federation.rounds": 1})
    assert run.result().summary.ok == 2
    moved, _ = read_stored(run.folder / "model.safetensors")
    start, _ = read_stored(pretrained / "model.safetensors")
    squares = sum(float((moved[n].double() - start[n].double()).square().sum()) for n in moved)
    assert 0 < squares**0.5 <= 1.0001e-3


@pytest.mark.parametrize("kind", ["sign-flip", "noise", "scaling"])
def test_attackers_forge_what_is_sent(kind: str, pretrained: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", **warm(pretrained), **{"attack.kind": kind})
    assert run.result().summary.ok == 6
