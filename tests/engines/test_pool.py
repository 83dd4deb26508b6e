"""The pool loses what a dying client costs and nothing else, and leaves nothing behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.popen_fork import Popen
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dcfl import evaluation
from dcfl.client import Client
from dcfl.engines import placement, regions
from dcfl.engines.pool import Pool
from dcfl.engines.regions import slot_count
from dcfl.engines.worker_processes import WorkerHandle
from dcfl.errors import ConfigError, WorkersLost
from dcfl.methods import METHODS, Method, Objective
from dcfl.models import FeatureModel, Output
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import ClientRow
from dcfl.testing.toys import toy_client, visit
from tests.engines.runs import SIZES, Flat, bits, federation, made_ready, trained

PATIENCE = 20.0  # seconds until something that must happen is given up
ROOT = Path(__file__).parents[2]


def flat() -> FeatureModel:
    torch.manual_seed(0)
    return Flat()


def until(happened: Callable[[], object]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def children_of(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def alive(pid: int) -> bool:
    """Running, and not a zombie that nobody has asked after."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Every test here ends with the processes and files that it began with."""
    processes, files = children_of(os.getpid()), open_files()
    yield
    left = children_of(os.getpid()) - processes
    for process in multiprocessing.active_children():
        process.kill()
        process.join()
    assert not left
    assert open_files() <= files


@dataclass(frozen=True)
class Harmful(Method):
    """Some clients come to harm in one round."""

    how: str = "raise"
    victims: tuple[int, ...] = (1,)
    round: int = 2

    def objective(self, client: Client) -> Objective:
        if client.round == self.round and client.id in self.victims:
            HARMS[self.how]()
        return super().objective(client)


def _raise() -> None:
    raise RuntimeError("no luck")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit() -> None:
    os._exit(3)


def _recurse() -> None:
    _recurse()


def _allocate() -> None:
    bytearray(2**62)


def _refuse() -> None:
    raise ConfigError("method.mu = 7 is too much for any client")


HARMS = {
    "raise": _raise,
    "kill": _kill,
    "exit": _exit,
    "recurse": _recurse,
    "allocate": _allocate,
    "refuse": _refuse,
}


def without_reasons(run_bits: dict[str, Any]) -> dict[str, Any]:
    clients = [{**row, "reason": bool(row["reason"])} for row in run_bits["clients"]]
    return {**run_bits, "clients": clients}


def failures(folder: Path) -> list[ClientRow]:
    return [row for row in RecordedRun.open(folder).clients if row["outcome"] == "failed"]


@pytest.fixture(scope="module")
def harmed_alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """In one process, where a client can only raise."""
    run = trained(tmp_path_factory.mktemp("alone") / "run", Harmful(), 1, model=flat())
    assert [(row["ok"], row["failed"]) for row in run.result().rounds] == [(6, 0), (5, 1), (6, 0)]
    return without_reasons(bits(run))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "RuntimeError: no luck"),
        ("kill", "its worker process was killed by signal 9"),
        ("exit", "its worker process ended with exit code 3"),
        ("recurse", "RecursionError"),
        ("allocate", "MemoryError"),
    ],
)
def test_what_happens_to_a_client_costs_that_client_alone(
    how: str, reason: str, tmp_path: Path, harmed_alone: dict[str, Any]
) -> None:
    run = made_ready(tmp_path / "run", Harmful(how), 2, model=flat())
    before = children_of(os.getpid())
    for row in run.rounds():
        assert len(children_of(os.getpid()) - before) == 2
        assert row["sampled"] == row["ok"] + row["failed"] + row["rejected"] == len(SIZES)
    (failed,) = failures(run.folder)
    assert (failed["round"], failed["client"]) == (2, 1)
    assert reason in failed["reason"]
    assert without_reasons(bits(run)) == harmed_alone


def test_many_deaths_in_one_round_cost_as_many_clients(tmp_path: Path) -> None:
    runs = [
        trained(
            tmp_path / str(workers),
            Harmful(how, (0, 1, 3, 4, 5), 1),
            workers,
            model=flat(),
            rounds=2,
        )
        for how, workers in (("raise", 1), ("kill", 2), ("kill", 3))
    ]
    alone, *pooled = (without_reasons(bits(run)) for run in runs)
    assert [(row["ok"], row["failed"]) for row in alone["rounds"]] == [(1, 5), (6, 0)]
    assert pooled == [alone, alone]


def test_what_waits_at_a_dead_worker_is_done_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[int] = []
    replace = Pool._replace

    def watched(self: Pool, worker: WorkerHandle) -> None:
        waiting.append(len(worker.tasks) - 1)
        replace(self, worker)

    monkeypatch.setattr(Pool, "_replace", watched)
    method = Harmful("kill", (0,), 2)  # in the first round nobody knows how short clients are
    dataset = federation((12,) + (4,) * 11)
    run = trained(tmp_path / "run", method, 2, model=flat(), rounds=2, dataset=dataset)
    assert len(waiting) == 1
    assert waiting[0] >= 1
    assert [row["client"] for row in failures(run.folder)] == [0]
    assert [row["ok"] for row in run.result().rounds] == [12, 11]


def test_a_worker_that_dies_while_idle_costs_no_client(tmp_path: Path) -> None:
    run = made_ready(tmp_path / "run", METHODS["fedavg"](), 2, model=flat())
    before = children_of(os.getpid())
    for row in run.rounds():
        if row["round"] == 1:
            victim = (children_of(os.getpid()) - before).pop()
            os.kill(victim, signal.SIGKILL)
            assert until(lambda pid=victim: not alive(pid))
    assert failures(run.folder) == []


def test_a_worker_that_hangs_at_its_start_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, home = tmp_path / "hung", os.getpid()

    def hang_once() -> None:
        if os.getpid() != home and not hung.exists():
            hung.touch()
            time.sleep(600)

    monkeypatch.setattr("dcfl.engines.worker_processes.first_to_be_killed", hang_once)
    monkeypatch.setattr("dcfl.engines.worker_processes.START_SECONDS", 1, raising=False)
    run = trained(tmp_path / "run", METHODS["fedavg"](), 2, model=flat())
    assert hung.exists()
    assert failures(run.folder) == []


class Mortal(Flat):
    """Kills the worker that evaluates it, as often as there are lives to take."""

    def __init__(self, lives: Path) -> None:
        super().__init__()
        self.lives, self.home = lives, os.getpid()

    def forward(self, images: Tensor) -> Output:
        if not self.training and os.getpid() != self.home:
            for life in self.lives.iterdir():
                with suppress(FileNotFoundError):
                    life.unlink()
                    _kill()
        return super().forward(images)


def mortal(folder: Path, lives: int) -> Mortal:
    folder.mkdir()
    for life in range(lives):
        (folder / str(life)).touch()
    torch.manual_seed(0)
    return Mortal(folder)


def test_a_worker_that_dies_evaluating_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "PART", 8)
    undisturbed = trained(tmp_path / "1", METHODS["fedavg"](), 1, model=flat())
    lives = tmp_path / "lives"
    run = trained(tmp_path / "2", METHODS["fedavg"](), 2, model=mortal(lives, 2))
    assert not list(lives.iterdir())
    evaluated = [{key: row[key] for key in ("accuracy", "loss")} for row in run.result().rounds]
    assert evaluated == [
        {key: row[key] for key in ("accuracy", "loss")} for row in undisturbed.result().rounds
    ]
    assert bits(run)["weights"] == bits(undisturbed)["weights"]


def test_an_evaluation_that_kills_every_worker_ends_the_run(tmp_path: Path) -> None:
    model = mortal(tmp_path / "lives", 99)
    with pytest.raises(WorkersLost, match="was killed by signal 9 each time it evaluated"):
        trained(tmp_path / "run", METHODS["fedavg"](), 2, model=model)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_setting_that_no_client_can_use_ends_the_run_and_earlier_rounds_are_recorded(
    workers: int, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"^method\.mu = 7 is too much for any client$"):
        trained(tmp_path / "run", Harmful("refuse"), workers, model=flat())
    assert [row.round for row in RecordedRun.open(tmp_path / "run").rounds] == [1]


def test_no_shared_memory_has_a_name_that_could_be_left_behind(tmp_path: Path) -> None:
    run = made_ready(tmp_path / "run", METHODS["moon"](), 2, rounds=2, model=flat())
    before = children_of(os.getpid())
    for _ in run.rounds():
        maps = [
            Path(f"/proc/{pid}/maps").read_text()
            for pid in (os.getpid(), *(children_of(os.getpid()) - before))
        ]
        assert len(maps) == 3
        assert all("memfd:dcfl" in each for each in maps)
        assert not any("/dev/shm" in each for each in maps)


def test_nothing_is_left_when_the_rounds_are_abandoned(tmp_path: Path) -> None:
    run = made_ready(tmp_path / "run", METHODS["moon"](), 2, model=flat(), memory_budget=0)
    rounds = run.rounds()
    next(rounds)
    assert len(multiprocessing.active_children()) == 2
    rounds.close()
    assert not multiprocessing.active_children()
    assert not (run.folder / "memories").exists()


def test_a_process_that_cannot_be_forked_is_said_and_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before multiprocessing opens its pipes, which it would not close."""
    launch, tries = Popen._launch, iter([True, False, True])

    def sometimes(self: Popen, process: Any) -> None:
        if not next(tries):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        launch(self, process)

    monkeypatch.setattr(Popen, "_launch", sometimes)
    with pytest.raises(WorkersLost, match="Resource temporarily unavailable"):
        trained(tmp_path / "run", METHODS["fedavg"](), 3, model=flat())


def test_nothing_is_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("pickled")

    run = made_ready(tmp_path / "run", METHODS["moon"](), 2, model=flat(), memory_budget=0)
    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refused)
    for name in ("dumps", "loads"):
        monkeypatch.setattr(ForkingPickler, name, refused)
    rows = list(run.rounds())
    assert [row["ok"] for row in rows] == [6, 6, 6]


@dataclass(frozen=True)
class Queueing(Method):
    """Writes down who starts; nobody goes on before two have started."""

    log: str = ""

    def objective(self, client: Client) -> Objective:
        path = Path(f"{self.log}-{client.round}")
        with path.open("a") as stream:
            stream.write(f"{client.id}\n")
        until(lambda: len(path.read_text().splitlines()) >= 2)
        return super().objective(client)

    def _started(self, round: int) -> list[int]:
        return [int(line) for line in Path(f"{self.log}-{round}").read_text().splitlines()]


def test_the_longest_clients_start_first(tmp_path: Path) -> None:
    method = Queueing(str(tmp_path / "log"))
    dataset = federation((4, 40, 4, 4, 30, 4))
    trained(tmp_path / "run", method, 2, model=flat(), dataset=dataset, rounds=2)
    assert {*method._started(1)[:2]} == {1, 4}
    assert {*method._started(2)[:2]} == {1, 4}


def shared_bytes() -> int:
    """Of shared memory in this process's hands."""
    sizes = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if "memfd:dcfl" in os.readlink(link):
                status = os.stat(link)
                sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


def test_shared_memory_does_not_grow_with_the_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "SLOTS_BYTES", 0)
    taken = []
    for clients in (8, 40):
        dataset = federation((4,) * clients)
        folder = tmp_path / str(clients)
        run = made_ready(folder, METHODS["moon"](), 2, model=flat(), dataset=dataset, rounds=2)
        taken.append([shared_bytes() for _ in run.rounds()])
    assert taken[0] == taken[1]
    assert min(taken[0]) > 0


def test_slots_are_at_least_two_for_each_worker_and_few() -> None:
    mega = 2**20
    assert slot_count(45 * mega, 2) == 4
    assert slot_count(mega, 2) == 32
    assert 16 <= slot_count(1, 8) <= 256
    assert slot_count(0, 300) >= 600


def ends_well(work: Callable[[], object], daemon: bool = False) -> bool:
    """Whether the work ends within reasonable time, in a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=work, daemon=daemon)
    process.start()
    process.join(PATIENCE / 2)
    for child in (*children_of(process.pid or 0), process.pid or 0) if process.is_alive() else ():
        os.kill(child, signal.SIGKILL)
    process.join()
    exitcode = process.exitcode
    process.close()
    return exitcode == 0


def test_a_thousand_open_files_are_enough(tmp_path: Path) -> None:
    """That is what most systems allow a process."""

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
        dataset = federation((4,) * 100)
        trained(tmp_path / "run", METHODS["moon"](), 4, model=flat(), dataset=dataset, rounds=1)

    assert ends_well(work)


def test_a_model_of_many_tensors_does_not_block_the_pipes(tmp_path: Path) -> None:

    class Many(Flat):
        def __init__(self) -> None:
            super().__init__()
            for number in range(800):
                name = f"{number:->300}"
                self.register_parameter(name, nn.Parameter(torch.zeros(1), requires_grad=False))

    def work() -> None:
        trained(tmp_path / "run", METHODS["moon"](), 2, model=Many(), rounds=2)

    assert ends_well(work)


def test_workers_start_one_by_one_as_long_as_there_is_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was free when the run was placed may be taken when its workers start."""
    need, own = 10**8, placement.conducting_bytes(flat())
    others, readings = children_of(os.getpid()), list[int]()

    def free() -> int:
        started = children_of(os.getpid()) - others
        scores = {Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in started}
        assert scores <= {"1000"}  # each is ready: the first to be killed
        readings.append(len(started))
        return int(own + 2.9 * need) - len(started) * need // 4  # what each takes as it starts

    monkeypatch.setattr(placement, "training_bytes", lambda _: need)
    monkeypatch.setattr("dcfl.engines.worker_processes.available_bytes", free)
    with pytest.warns(UserWarning, match=r"memory for 2 of 4 worker processes: a client takes"):
        few = trained(tmp_path / "few", METHODS["fedavg"](), 4, model=flat())
    assert readings == [0, 1, 1, 2, 2]
    monkeypatch.undo()
    assert bits(few) == bits(trained(tmp_path / "all", METHODS["fedavg"](), 4, model=flat()))


def test_auto_works_in_a_process_that_may_have_no_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "available_cores", lambda: 2)

    def work() -> None:
        run = trained(tmp_path / "run", METHODS["fedavg"](), "auto", model=flat(), rounds=1)  # type: ignore[arg-type]
        assert run.result().rounds[0]["ok"] == len(SIZES)

    assert ends_well(work, daemon=True)


def test_training_on_the_cpu_does_not_start_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:

    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a GPU was asked for its generator")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", started)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: None)
    visit(METHODS["fedavg"](), toy_client([0, 1, 2, 3]))


LONG = """
import os, sys, time
from dataclasses import dataclass
from pathlib import Path
from dcfl.methods import Method
from tests.engines.runs import trained

@dataclass(frozen=True)
class Endless(Method):
    def objective(self, client):
        (Path(sys.argv[1]) / str(os.getpid())).touch()
        time.sleep(600)

trained(Path(sys.argv[1]) / "run", Endless(), 2, memory_budget=0)
"""


@contextmanager
def started(
    code: str, *words: str, said: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """Python code in a process of its own, with everything that it starts gone at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=said,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """Ctrl-C reaches a whole group of processes, other signals the one that is named."""
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    return process.wait(PATIENCE)


def test_workers_end_in_the_middle_of_a_client_when_their_parent_is_killed(tmp_path: Path) -> None:
    def workers() -> list[int]:
        return [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]

    with started(LONG, str(tmp_path)) as parent:
        assert until(lambda: len(workers()) == 2)
        assert all(alive(pid) for pid in workers())
        assert end(parent, signal.SIGKILL) == -signal.SIGKILL
        assert until(lambda: not any(alive(pid) for pid in workers()))


def test_workers_of_two_pools_end_in_the_middle_of_a_client_too(tmp_path: Path) -> None:
    """BUG, fails today: a worker that replaces another inherits the lifeline of the other pool too;
    with one in each pool they keep each other alive as long as their clients last."""

    @dataclass(frozen=True)
    class Endless(Harmful):
        def objective(self, client: Client) -> Objective:
            if client.round == 4:
                (tmp_path / "started").touch()
                time.sleep(600)
            return super().objective(client)

    def work() -> None:
        method = Endless("kill", (0,), 3)
        one, other = (
            made_ready(tmp_path / name, method, 2, model=flat(), rounds=4).rounds() for name in "ab"
        )
        for run in (one, other, one, other, one):
            next(run)

    parent = multiprocessing.get_context("fork").Process(target=work)
    parent.start()
    assert until(lambda: (tmp_path / "started").exists())
    workers = children_of(parent.pid or 0)
    assert len(workers) == 4
    try:
        parent.kill()
        parent.join()
        parent.close()
        assert until(lambda: not any(alive(pid) for pid in workers))
    finally:
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_leaves_no_worker_and_what_resume_needs(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    quick = ("data.clients=4", "federation.participation=0.5", "training.epochs=1")
    words = (*quick, "method.name=moon", "federation.rounds=9999", "engine.memory_budget=0")
    words = ("run", *words, "engine.workers=2", "--out", str(folder))
    main = "from dcfl.cli.main import main; main()"
    with said.open("w") as stream, started(main, *words, said=stream.fileno()) as parent:
        assert until(lambda: (folder / "rounds.jsonl").exists())
        workers = children_of(parent.pid)
        assert len(workers) == 2
        assert end(parent, number) == code
        assert until(lambda: not any(alive(pid) for pid in workers))
    assert "Traceback" not in said.read_text()
    assert f"dcfl resume {folder}" in said.read_text()
    assert list((folder / "memories").glob("client-*"))
