"""Flower's simulation on Ray, as an engine: actors on this machine, or on a cluster (RAY_ADDRESS).

Flower expects to call a server app; here it runs in a thread of its own and hands its grid to the
engine. The runner is sent to the actors once, so methods, models and data that exist in this
process alone can be used.
"""

from __future__ import annotations

import logging
import os
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

import ray
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from dcfl.engines.engine import Session
from dcfl.errors import NetworkError
from dcfl.flower import RAY_CAME_FIRST
from dcfl.flower.client_app import Site, SiteOf, client_app
from dcfl.flower.codec import Task
from dcfl.flower.engine import GridEngine
from dcfl.flower.node_memories import NodeMemories
from dcfl.flower.roster import Roster
from dcfl.system.memory import keep_freed_memory
from dcfl.system.own_files import own_modules
from dcfl.system.processes import handlers_put_back, signals_held_back

MOST_NODES = 100  # Flower looks through all waiting messages once per node, ten times a second


@contextmanager
def simulation(session: Session) -> Iterator[GridEngine]:
    """One actor per device of the placement. All actors must reach the folder of the memories; it
    is removed afterwards, unless the run can be resumed."""
    runner, devices = session.runner, session.placement.devices
    nodes = min(len(runner.data.partition), MOST_NODES)
    with _quiet(), _ray(len(devices)):
        _send_own_files()
        memories = NodeMemories(session.memories.resolve())
        site = ray.put(Site(runner, memories, session.experiment.engine.threads))
        resources = _resources(devices)
        site_of = partial(_site_in_actor, site, os.getcwd())
        with _flower(site_of, nodes, resources) as (grid, alive):
            try:
                yield GridEngine(
                    session,
                    grid,
                    Roster(nodes),
                    reveal=True,
                    alive=alive,
                    overlaps=True,
                    same_runner=True,
                )
            finally:
                if not session.resumable:
                    shutil.rmtree(session.memories, ignore_errors=True)


def _site_in_actor(site: Any, folder: str, context: Context, task: Task) -> Site:
    return _unpacked(site, folder)


@cache
def _unpacked(site: Any, folder: str) -> Site:
    """Called once per actor. `folder`: for the relative paths of a user's code, where it is there
    too."""
    with suppress(OSError):
        os.chdir(folder)
    keep_freed_memory()
    unpacked: Site = ray.get(site)
    device = torch.device("cuda" if ray.get_gpu_ids() else "cpu")
    return replace(unpacked, runner=unpacked.runner.on(device))


def _send_own_files() -> None:
    """What comes from `--method-file` and `--model-file` is in modules that no actor can import."""
    for module in own_modules():
        ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _resources(devices: Sequence[torch.device]) -> dict[str, Any]:
    """What one actor takes."""
    cores = ray.cluster_resources().get("CPU", 1.0)  # type: ignore[no-untyped-call]
    gpus = len({device.index for device in devices if device.type == "cuda"})
    return {
        "num_cpus": max(cores // len(devices), 1.0) if os.environ.get("RAY_ADDRESS") else 1.0,
        "num_gpus": gpus / len(devices),
        "max_restarts": -1,  # an actor that died would fail every client it is given
    }


@contextmanager
def _ray(workers: int) -> Iterator[None]:
    """A private Ray with one "CPU" per actor, or the cluster's."""
    # Actors import what this process can import.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    folder = tempfile.mkdtemp(prefix="dcfl-ray-")
    try:
        # Ray turns a SIGTERM into an abort, here and in processes that a round still needs.
        # Its actors import from the folder that it is started in.
        with signals_held_back(), handlers_put_back(), chdir(folder):
            if os.environ.get("RAY_ADDRESS"):
                ray.init(**common)
            else:
                # _temp_dir: a folder that we can remove, with a path short enough for sockets. Ray
                # makes it readable for everybody, so it is inside a private one.
                local: dict[str, Any] = {"_temp_dir": f"{folder}/r", "include_dashboard": False}
                ray.init(num_cpus=workers, **local, **common)
        yield
    except (ConnectionError, RuntimeError) as error:
        if ray.is_initialized():
            raise
        hint = "import dcfl.flower before ray: " if RAY_CAME_FIRST else ""
        raise NetworkError(f"Ray does not start: {hint}{error}") from error
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


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
        grid = grids.get()
        if isinstance(grid, BaseException):
            raise NetworkError(f"Flower's simulation does not start: {grid}") from grid
        yield grid, thread.is_alive
    finally:
        over.set()
        thread.join()


@contextmanager
def _quiet() -> Iterator[None]:
    """Flower warns that its Python interface is deprecated."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
