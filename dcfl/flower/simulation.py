"""Flower's simulation on Ray, as an engine: actors on this machine, or on a cluster (RAY_ADDRESS).

Flower calls a server app and wants to be in charge; here it runs in a thread of its own, and its
grid is handed to whoever asked for an engine. The runner travels to the actors once, so methods,
models and data that exist in this process alone can be trained on.
"""

from __future__ import annotations

import logging
import os
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import ray
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from ray._private import ray_constants, worker
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]
from ray.job_config import JobConfig

from dcfl.engines.allocator import keep_freed_memory
from dcfl.engines.memories import Index
from dcfl.engines.runner import ClientRunner
from dcfl.errors import NetworkError
from dcfl.flower.client_app import Site, SiteOf, client_app
from dcfl.flower.engine import GridEngine
from dcfl.flower.node_memories import NodeMemories
from dcfl.flower.roster import Roster
from dcfl.methods.loading import OWN_FILE
from dcfl.system.processes import handlers_put_back, signals_held_back

MOST_NODES = 100  # Flower looks through all waiting messages once per node, ten times a second


@contextmanager
def simulation(
    runner: ClientRunner,
    run: str,
    memories: Path,
    devices: Sequence[torch.device],
    threads: int,
    deadline: float = 0.0,
    index: Mapping[int, int] | None = None,
    needed: Sequence[Index] = (),
    resumable: bool = False,
) -> Iterator[GridEngine]:
    """`devices` has one entry per actor. `memories`: a folder that all actors reach; it is gone
    afterwards, unless the run can be resumed."""
    nodes = min(len(runner.data.partition), MOST_NODES)
    with _quiet(), _ray(len(devices)):
        _send_own_file(runner)
        site = ray.put(Site(runner, NodeMemories(memories.resolve()), threads))
        resources = _resources(devices)
        with _flower(partial(_site_in_actor, site), nodes, resources) as (grid, alive):
            kept = index, needed
            try:
                yield GridEngine(
                    grid, run, runner, Roster(nodes), deadline, True, alive, True, *kept
                )
            finally:
                if not resumable:
                    shutil.rmtree(memories, ignore_errors=True)


def _site_in_actor(site: Any, context: Context) -> Site:
    return _unpacked(site)


@cache
def _unpacked(site: Any) -> Site:
    """Once per actor."""
    keep_freed_memory()
    found: Site = ray.get(site)
    device = torch.device("cuda" if ray.get_gpu_ids() else "cpu")
    return replace(found, runner=found.runner.on(device))


def _send_own_file(runner: ClientRunner) -> None:
    """A method from `--method-file` lives in a module that no actor can import."""
    module = sys.modules[type(runner.method).__module__]
    if module.__name__.startswith(OWN_FILE):
        ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _resources(devices: Sequence[torch.device]) -> dict[str, Any]:
    """Of one actor."""
    cores = ray.cluster_resources().get("CPU", 1.0)  # type: ignore[no-untyped-call]
    gpus = len({device.index for device in devices if device.type == "cuda"})
    return {
        "num_cpus": max(cores // len(devices), 1.0) if os.environ.get("RAY_ADDRESS") else 1.0,
        "num_gpus": gpus / len(devices),
        "max_restarts": -1,  # an actor that died would fail every client it is given
    }


class _WithoutWorkingFolder(JobConfig):
    """Ray would have its actors import from the folder that we were started in."""

    def _runtime_env_has_working_dir(self) -> bool:
        return True


@contextmanager
def _ray(workers: int) -> Iterator[None]:
    """A Ray of our own, with as many "CPUs" as there are to be actors, or the cluster's."""
    # Actors import what this process can import.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    common["job_config"] = _WithoutWorkingFolder()
    folder = tempfile.mkdtemp(prefix="dcfl-ray-")
    try:
        # Ray makes an abort of a SIGTERM, here and in processes that a round still needs.
        with signals_held_back(), handlers_put_back():
            if os.environ.get("RAY_ADDRESS"):
                ray.init(**common)
            else:
                _close_ray()
                # _temp_dir: a folder that is ours to remove, with a path short enough for sockets.
                # Ray opens its own to everybody, so it lies in one that is closed.
                own: dict[str, Any] = {"_temp_dir": f"{folder}/r", "_node_ip_address": "127.0.0.1"}
                ray.init(num_cpus=workers, include_dashboard=False, **own, **common)
        yield
    except (ConnectionError, RuntimeError) as error:
        if ray.is_initialized():
            raise
        raise NetworkError(f"Ray does not start: {error}") from error
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _close_ray() -> None:
    """Whoever reaches Ray can run code here: it listens on loopback alone, and wants a token. A
    cluster (RAY_ADDRESS) has its own rules, and its machines must reach each other."""
    ray_constants.ENABLE_RAY_CLUSTER = False  # else 127.0.0.1 means all interfaces
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", token_hex(32))  # else it is written to ~/.ray
    Config.initialize("")  # it was read when Ray was imported
    AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _flower(site_of: SiteOf, nodes: int, resources: dict[str, Any]) -> Iterator[Any]:
    """Flower's simulation in a thread, for as long as the context lasts: its grid, and a function
    that says whether it is still there."""
    grids: queue.Queue[Grid | BaseException] = queue.Queue()
    over = threading.Event()
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        grids.put(grid)
        over.wait()

    def simulate() -> None:
        try:
            run_simulation(
                server_app,
                client_app(site_of, reveal=True),
                nodes,
                backend_config={"client_resources": resources},
            )
        except BaseException as error:
            grids.put(error)

    thread = threading.Thread(target=simulate, name="flower-simulation", daemon=True)
    thread.start()
    try:
        found = grids.get()
        if isinstance(found, BaseException):
            raise NetworkError(f"Flower's simulation does not start: {found}") from found
        yield found, thread.is_alive
    finally:
        over.set()
        thread.join()


@contextmanager
def _quiet() -> Iterator[None]:
    """Flower says that its Python interface is deprecated, and Ray prints a page on stdout when an
    actor dies. What matters of that is in clients.jsonl."""
    logger = logging.getLogger("flwr")
    level, show = logger.level, worker.print_to_stdstream
    logger.setLevel(logging.CRITICAL)
    worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        logger.setLevel(level)
        worker.print_to_stdstream = show
