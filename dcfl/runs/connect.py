"""The engines by name: where the clients of a run train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from dcfl.engines.embedded import Embedded
from dcfl.engines.engine import Engine, Session
from dcfl.engines.memories import client_memories
from dcfl.engines.pool import worker_pool
from dcfl.errors import ConfigError


def connect(session: Session) -> AbstractContextManager[Engine]:
    """To the engine that the config names."""
    name = session.experiment.engine.name
    if name == "flower":
        raise ConfigError(
            'engine.name = "flower" trains at SuperNodes: use `dcfl flower run`, or '
            'engine.name = "flower-simulation" on this machine'
        )
    return _flower_simulation(session) if name == "flower-simulation" else _embedded(session)


@contextmanager
def _embedded(session: Session) -> Iterator[Engine]:
    """In this process, or in a pool of workers."""
    engine, devices = session.experiment.engine, session.placement.devices
    budget = engine.memory_budget * 10**6
    with client_memories(
        session.memories, budget, session.index, session.needed, session.resumable
    ) as memories:
        # What a client may do to its process, or nobody but a kill can end, wants one of its own.
        apart = session.experiment.federation.deadline or session.experiment.faults.lethal
        if len(devices) == 1 and not apart:
            yield Embedded(session.runner.on(devices[0]), memories)
        else:
            deadline = session.experiment.federation.deadline
            with worker_pool(session.runner, memories, devices, engine.threads, deadline) as pool:
                yield pool


@contextmanager
def _flower_simulation(session: Session) -> Iterator[Engine]:
    try:
        from dcfl.flower.simulation import simulation
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"engine.name = \"flower-simulation\" needs {error.name}: pip install 'dcfl[flower]'"
        ) from error
    experiment = session.experiment
    with simulation(
        session.runner,
        session.run,
        session.memories,
        session.placement.devices,
        experiment.engine.threads,
        experiment.federation.deadline,
        session.index,
        session.needed,
        session.resumable,
    ) as engine:
        yield engine
