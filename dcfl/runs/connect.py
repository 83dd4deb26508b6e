"""Creates the engine that trains the clients of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING

from dcfl.engines.embedded import Embedded
from dcfl.engines.engine import Engine, Session
from dcfl.engines.memories import Memories
from dcfl.engines.placement import NO_FORK, can_fork
from dcfl.errors import ConfigError
from dcfl.experiment import EngineSettings
from dcfl.system.wording import install_command

if TYPE_CHECKING:
    from dcfl.engines.pool import Pool


def connect(session: Session) -> AbstractContextManager[Engine]:
    engine = session.experiment.engine
    require_startable(engine)
    return on_this_machine(session) if engine.name == "embedded" else _flower_simulation(session)


def require_startable(engine: EngineSettings) -> None:
    if engine.at_sites:
        raise ConfigError(
            'engine.name = "flower" trains at SuperNodes: use `dcfl flower run`, or '
            'engine.name = "flower-simulation" on this machine'
        )


@contextmanager
def on_this_machine(session: Session) -> Iterator[Embedded | Pool]:
    devices = session.placement.devices
    with Memories(
        session.memories,
        budget=session.experiment.engine.memory_budget * 10**6,
        index=session.index,
        needed=session.needed,
        resumable=session.resumable,
    ) as memories:
        if len(devices) == 1 and not _must_be_killable(session):
            yield Embedded(session.runner.on(devices[0]), memories)
        else:
            from dcfl.engines.pool import Pool

            with closing(Pool(session, memories)) as pool:
                yield pool


def _must_be_killable(session: Session) -> bool:
    """Whether clients need processes of their own, because they may be killed or may exit."""
    experiment = session.experiment
    if not (experiment.federation.deadline or experiment.faults.lethal):
        return False
    if not can_fork():
        raise ConfigError(
            f"federation.deadline, faults.exit and faults.hang need worker processes: {NO_FORK}"
        )
    return True


def _flower_simulation(session: Session) -> AbstractContextManager[Engine]:
    try:
        from dcfl.flower.simulation import simulation
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'engine.name = "flower-simulation" needs {error.name}: {install_command("flower")}'
        ) from error
    return simulation(session)
