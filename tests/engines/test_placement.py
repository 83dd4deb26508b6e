"""How many workers, on which devices, and why."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch

from dcfl.config import experiment_from, parse_settings
from dcfl.engines import placement
from dcfl.engines import placement as asked_gpus
from dcfl.engines.placement import (
    Load,
    Placement,
    available_cores,
    choose_devices,
    name_of,
    place,
)
from dcfl.errors import ConfigError
from dcfl.experiment import EngineSettings
from dcfl.methods import METHODS
from dcfl.testing.toys import toy_model
from tests.engines.runs import made_ready, trained

GB = 10**9
Place = Callable[..., Placement]


def toy_load(batch_size: int = 8) -> Load:
    return Load(toy_model(), torch.zeros(2, 1, 8, 8), batch_size)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Place:
    """Place a toy on a machine of this kind."""

    def decide(
        workers: int | Literal["auto"] = "auto",
        *,
        threads: int = 1,
        device: str = "auto",
        cohort: int = 100,
        cores: int = 8,
        memory: int = 64 * GB,
        gpus: int = 0,
        cuda_started: bool = False,
        forks: bool = True,
        batch_size: int = 8,
        per_device: int = 1,
    ) -> Placement:
        monkeypatch.setattr(placement, "available_cores", lambda: cores)
        monkeypatch.setattr(placement, "available_bytes", lambda: memory)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: cuda_started)
        if not forks:
            monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
        engine = EngineSettings(
            workers=workers, threads=threads, device=device, workers_per_device=per_device
        )
        return place(engine, cohort, toy_load(batch_size))

    return decide


def count(chosen: Placement) -> int:
    return len(chosen.devices)


def test_auto_takes_a_worker_for_each_core(on: Place) -> None:
    chosen = on(cores=8)
    assert chosen[:2] == ([torch.device("cpu")] * 8, "8 cores, 1 thread each")
    assert chosen.name == "cpu"
    assert on(cores=1)[:2] == ([torch.device("cpu")], "1 core, 1 thread each")


def test_auto_shares_the_cores_among_the_threads(on: Place) -> None:
    assert on(cores=8, threads=4)[:2] == ([torch.device("cpu")] * 2, "8 cores, 4 threads each")
    assert count(on(cores=8, threads=3)) == 2
    assert count(on(cores=2, threads=5)) == 1


def test_auto_takes_no_more_workers_than_clients_and_one_that_evaluates(on: Place) -> None:
    assert on(cohort=5)[1] == "5 clients a round, 1 thread each"
    assert [count(on(cohort=cohort)) for cohort in (1, 2, 5, 8, 9)] == [2, 2, 5, 8, 8]


def test_auto_leaves_out_workers_that_memory_has_no_room_for(on: Place) -> None:
    need = placement.training_bytes(toy_load())
    for fitting in (1, 3):
        chosen = on(memory=fitting * need + need // 2)
        assert count(chosen) == fitting
        assert chosen.reason == f"memory for {fitting}: a client takes about 0.1 GB"
    assert count(on(memory=0)) == 1


def test_workers_that_were_asked_for_need_memory_too(on: Place) -> None:
    need = placement.training_bytes(toy_load())
    chosen = on(4, memory=2 * need + need // 2)
    assert (count(chosen), chosen.worker_bytes) == (2, need)
    assert chosen.reason == "memory for 2 of 4 asked for: a client takes about 0.1 GB"
    assert count(on(4, memory=0)) == count(on(1, memory=0)) == 1


def test_what_a_client_takes_grows_with_the_batch_and_leaves_the_model_alone() -> None:
    load = toy_load()
    model = load.model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    small, large = (placement.training_bytes(load._replace(batch_size=size)) for size in (8, 800))
    feature_maps = 4 * (32 * 64 + 64 * 16 + 128 * 4)
    assert large - small > 2 * (800 - 8) * feature_maps
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_without_fork_a_pool_is_refused_and_one_worker_is_not(on: Place) -> None:
    assert on(forks=False) == Placement([torch.device("cpu")], "no fork on this system")
    assert count(on(1, forks=False)) == 1
    with pytest.raises(ConfigError, match=r"engine.workers = 2: .*no fork.*workers = 1"):
        on(2)


def test_a_number_of_workers_is_taken_as_given(on: Place) -> None:
    chosen = on(3, cores=1, cohort=1)
    assert chosen[:2] == ([torch.device("cpu")] * 3, "as asked for")


def test_more_workers_than_the_cores_can_use_are_not_started(on: Place) -> None:
    """As a run folder of somebody else's may ask for."""
    chosen = on(1024, cores=16, cohort=5000)
    assert (count(chosen), chosen.reason) == (64, "1,024 asked for, more than 16 cores can use")
    assert count(on(1024, cores=1)) == count(on(8, cores=1)) == 8
    assert count(on(1024, gpus=2, cores=4)) == 16


def gpus(*numbers: int) -> list[torch.device]:
    return [torch.device("cuda", number) for number in numbers]


def test_auto_takes_a_worker_for_each_gpu(on: Place) -> None:
    chosen = on(gpus=2)
    assert chosen == Placement(gpus(0, 1), "one for each GPU")
    assert chosen.name == "cuda:0,1"
    assert on(gpus=4, device="cuda:3,1").devices == gpus(3, 1)
    assert on(gpus=2, device="cpu").devices == [torch.device("cpu")] * 8


def test_workers_take_turns_on_the_gpus(on: Place) -> None:
    assert on(2, gpus=2, device="cuda:0,1").devices == gpus(0, 1)
    assert on(4, gpus=2, device="cuda").devices == gpus(0, 1, 0, 1)
    assert on(4, gpus=2).name == "cuda:0,1"
    assert on(1, gpus=2).devices == gpus(0)
    assert on(3, gpus=2, device="cuda:1").devices == gpus(1, 1, 1)


def test_several_workers_may_share_a_gpu(on: Place) -> None:
    chosen = on(gpus=2, per_device=2)
    assert chosen == Placement(gpus(0, 1, 0, 1), "2 for each GPU, as asked for")
    assert chosen.name == "cuda:0,1"
    assert on(gpus=1, per_device=3).devices == gpus(0, 0, 0)
    assert on(3, gpus=2, per_device=2).devices == gpus(0, 1, 0)  # a number of workers decides
    assert on(cores=4, per_device=3).devices == [torch.device("cpu")] * 4  # not on CPUs


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Another program in place of the Python that asks the GPUs."""

    def replaced(script: str) -> None:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))
        asked_gpus._all_gpus.cache_clear()

    yield replaced
    asked_gpus._all_gpus.cache_clear()


def test_gpus_are_asked_in_another_process(python: Callable[[str], None]) -> None:
    python("""echo '["NVIDIA A", "NVIDIA B"]'""")
    assert name_of(torch.device("cuda", 0)) == "NVIDIA A"
    assert name_of(torch.device("cuda", 1)) == "NVIDIA B"
    assert name_of(torch.device("cuda", 2)) is None
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "echo 1", "echo '[]'", "true"])
def test_gpus_that_give_no_answer(script: str, python: Callable[[str], None]) -> None:
    python(script)
    assert name_of(torch.device("cuda", 0)) is None


def test_the_question_is_one_that_torch_can_answer() -> None:
    """Without a GPU the answer is an empty list."""
    asked_gpus._all_gpus.cache_clear()
    assert len(asked_gpus._all_gpus()) == torch.cuda.device_count()


def test_cuda_that_has_started_cannot_be_forked(on: Place) -> None:
    assert count(on(gpus=2, cuda_started=True)) == 1
    assert "CUDA is already in use" in on(gpus=2, cuda_started=True).reason
    with pytest.raises(ConfigError, match="CUDA is already in use"):
        on(2, gpus=1, cuda_started=True)
    assert count(on(2, gpus=1, cuda_started=True, device="cpu")) == 2


@pytest.mark.parametrize(("name", "found"), [("cuda", 0), ("cuda:0", 0), ("cuda:0,2", 2)])
def test_gpus_that_are_not_there_are_refused(
    name: str, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    with pytest.raises(ConfigError, match=f"torch sees {found} GPUs"):
        choose_devices(name)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("400000 100000", 4),
        ("150000 100000", 1),
        ("50000 100000", 1),
        ("9900000 100000", 8),
        ("nonsense", 8),
        (None, 8),
    ],
)
def test_cores_are_those_of_the_affinity_and_the_container(
    quota: str | None, cores: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    system(tmp_path, monkeypatch, {} if quota is None else {"/sys/fs/cgroup/cpu.max": quota})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert available_cores() == cores


def system(folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """A system that says these things of itself, and nothing else."""
    for name, text in files.items():
        path = folder / name[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    monkeypatch.setattr(placement, "Path", lambda name: folder / name[1:])


def test_cores_without_affinity_are_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(placement, "Path", lambda _: Path("/nowhere"))
    assert available_cores() == 6


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("engine.workers=0", r'engine.workers must lie in 1 to 1024, or be "auto", not 0'),
        ("engine.workers=1025", "not 1025"),
        ("engine.workers=many", "engine.workers must be a whole number or \"auto\", not 'many'"),
        ("engine.workers=1.5", "engine.workers must be"),
        ("engine.workers=true", "engine.workers must be"),
        ("engine.threads=0", "engine.threads must lie in 1 to 1024, not 0"),
        ("engine.device=cuda:", "engine.device must be"),
        ("engine.device=cuda:0,", "engine.device must be"),
        ("engine.device=cuda:-1", "engine.device must be"),
        ("engine.device=cuda:a", "engine.device must be"),
        ("engine.device=gpu", "engine.device must be"),
        ("engine.workers_per_device=0", "must lie in 1 to 64, not 0"),
        ("engine.workers_per_device=65", "not 65"),
        ("engine.workers_per_device=half", "engine.workers_per_device must be a whole number"),
        ("engine.memory_budget=-1", "engine.memory_budget must be 0 or more"),
        ("engine.precision=float64", "engine.precision must be"),
    ],
)
def test_engines_that_make_no_sense_are_refused(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment_from(None, parse_settings([word]))


def test_engines_that_make_sense_are_read() -> None:
    words = ["engine.workers=3", "engine.device=cuda:0,1", "engine.memory_budget=0"]
    engine = experiment_from(None, parse_settings(words)).engine
    assert (engine.workers, engine.device, engine.memory_budget) == (3, "cuda:0,1", 0)
    assert EngineSettings().workers == "auto"


def test_a_run_says_what_was_picked_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "available_cores", lambda: 2)
    run = trained(tmp_path / "auto", METHODS["fedavg"](), "auto", rounds=1)
    assert run.prepared.workers == "2 worker processes (2 cores, 1 thread each)"
    assert run.experiment.engine.workers == "auto"  # the config may go to another machine
    environment = json.loads((run.folder / "environment.json").read_text())
    assert (environment["workers"], environment["device"]) == (2, "cpu")
    assert environment["workers_because"] == "2 cores, 1 thread each"
    one = made_ready(tmp_path / "one", METHODS["fedavg"](), 1)
    assert one.prepared.workers == "clients train in this process (as asked for)"
