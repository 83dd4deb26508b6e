"""A whole run as one frozen value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from dcfl.client import LocalTraining
from dcfl.data import DataSettings
from dcfl.errors import require
from dcfl.methods import METHODS
from dcfl.methods.method import Method
from dcfl.models import ModelSettings
from dcfl.server import ServerSettings


@dataclass(frozen=True)
class FederationSettings:
    """The [federation] table."""

    rounds: int = 80
    participation: float = 0.25  # share of the clients in each round
    seed: int = 0  # of the initial weights, the client schedule, batch order and augmentation

    def __post_init__(self) -> None:
        require(self.rounds >= 1, f"federation.rounds must be at least 1, not {self.rounds}")
        require(
            0 < self.participation <= 1,
            f"federation.participation must lie in (0, 1], not {self.participation:g}: "
            f"0.05 samples 5 % of the clients in each round",
        )
        require(self.seed >= 0, f"federation.seed must not be negative: {self.seed}")


@dataclass(frozen=True)
class EngineSettings:
    """The [engine] table."""

    name: Literal["embedded"] = "embedded"
    threads: int = 1  # of torch within a client; the last bits of a result depend on it
    device: str = "auto"  # "cpu", "cuda", "cuda:1"; "auto" takes a GPU if there is one

    def __post_init__(self) -> None:
        require(
            1 <= self.threads <= 1024, f"engine.threads must lie in 1 to 1024, not {self.threads}"
        )
        require(
            re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device) is not None,
            f'engine.device must be "auto", "cpu", "cuda" or "cuda:N", not {self.device!r}',
        )


@dataclass(frozen=True)
class OutputSettings:
    """The [output] table."""

    dir: str = ""  # the run's folder; empty: a new one below runs/


@dataclass(frozen=True)
class Experiment:
    """One field per table of the config file. The defaults train DCFL-PW on the built-in digits."""

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    training: LocalTraining = LocalTraining()
    method: Method = field(default_factory=METHODS["dcfl-pw"])
    server: ServerSettings = ServerSettings()
    federation: FederationSettings = FederationSettings()
    engine: EngineSettings = EngineSettings()
    output: OutputSettings = OutputSettings()

    def __post_init__(self) -> None:
        expected = self.federation.participation * self.data.clients
        require(
            expected >= 0.5,
            f"federation.participation = {self.federation.participation:g} of {self.data.clients} "
            f"clients samples nobody: use at least {1 / self.data.clients:g}",
        )
