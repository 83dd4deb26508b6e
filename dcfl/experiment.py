"""A whole run as one frozen value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

from dcfl.clock.selection import LEARNING, Selection
from dcfl.clock.settings import ClockSettings
from dcfl.data import DataSettings
from dcfl.errors import ConfigError
from dcfl.federation import Sampling, cohort_size
from dcfl.local_training import OWN_AND_PERSONAL, LocalTraining
from dcfl.methods import METHODS
from dcfl.methods.method import Method, require_plain_name
from dcfl.models import ModelSettings
from dcfl.privacy import PrivacySettings
from dcfl.server import ServerSettings
from dcfl.server.compression import CompressionSettings
from dcfl.settings import Settings, key

TrackerName = Literal["tensorboard", "csv"]
USUAL_PARTICIPATION = 0.25
Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class FederationSettings(Settings):
    """The [federation] table."""

    table_name: ClassVar = "federation"

    rounds: int = key(80, ge=1)  # how many
    # Share of the clients in each round. "auto": all, where the data comes as sites; a quarter of
    # other clients, and two at least where their number is chosen by the data.
    participation: float | Literal["auto"] = key(
        "auto", gt=0, le=1, hint="0.05 samples 5 % of the clients in each round"
    )
    # "fixed": a round has so many clients; "poisson": each takes part by a coin of its own, so that
    # their number varies; "in-turn": in an order that stays the same, so that everybody is asked
    # once before anybody is asked again. Noise at the server is worth most with coins.
    sampling: Literal["fixed", "poisson", "in-turn"] = "fixed"
    # Clients that take no part, by their numbers: what `dcfl forget` leaves behind.
    without: tuple[int, ...] = key((), ge=0)
    # Seeds the initial weights, the client schedule, batch order and augmentation; also the split,
    # unless data.seed is set.
    seed: int = key(0, ge=0, kind="seed")
    # Who is asked: "samples", by their images; "power-of-choice" and "oort", by what they last
    # reported too.
    selection: Selection = "uniform"
    # Seconds to wait for a round's replies, after which late clients are left out; 0: no limit.
    deadline: float = key(0.0, ge=0, le=10**6, zero="none")
    minimum_replies: int = key(1, ge=1)  # a round with fewer does not change the model
    # Minutes to wait, at Flower's sites, until there are so many again; 0: three such rounds in a
    # row end the run, as they do everywhere else. A site's reboot takes no round.
    quorum_minutes: float = key(30.0, ge=0, le=10**5, zero="none", kind="place")
    # Parts of the model that every client has for itself and never sends: "norms" (all
    # normalisation layers) or names of modules, such as "classifier" or "all but
    # classifier".
    personal: tuple[str, ...] = ()
    # What a federation is compared with: "alone", every client trains a model by itself; "pooled",
    # all clients' images are in one place, and one client of a round trains on all of them.
    baseline: Literal["none", "alone", "pooled"] = "none"
    # Score the model after every so many rounds, and after the last. MAX is of those; EMA keeps 0.9
    # for each round between.
    evaluate_every: int = key(1, ge=1)
    # End the run after so many scores in a row without a new best; 0: never.
    patience: int = key(0, ge=0, zero="no end")
    # End the run once it is reached, in percent; 0: never.
    target_accuracy: float = key(0.0, ge=0, le=100, zero="none")
    # The images that decide when a run ends early and which of its models is the best: training
    # images that data.holdout keeps back, or the test images, whose accuracy is then too high.
    choose_by: Literal["holdout", "test"] = key("holdout", kind="place")

    @property
    def share(self) -> float:
        """The share of the clients in each round, where the data has no say in it."""
        return USUAL_PARTICIPATION if self.participation == "auto" else self.participation

    @property
    def draws(self) -> Sampling:
        poisson, in_turn = self.sampling == "poisson", self.sampling == "in-turn"
        return Sampling(poisson, self.without, in_turn=in_turn)

    def evaluates(self, round: int) -> bool:
        """Whether the model is scored after this round; after the last one it always is."""
        return self.on_schedule(round) or round == self.rounds

    def on_schedule(self, round: int) -> bool:
        """Whether the round would be scored however many more there were."""
        return round % self.evaluate_every == 0

    @property
    def may_end_early(self) -> bool:
        return bool(self.patience or self.target_accuracy)

    def cohort_of(self, clients: int) -> int:
        """The cohort's size, which is checked here: the data may set the number of clients."""
        if self.share * clients < 0.5:
            raise ConfigError(
                f"federation.participation = {self.share:g} of {clients} clients samples "
                f"nobody: use at least {1 / clients:g}"
            )
        if not {*self.without} < {*range(clients)} or len({*self.without}) < len(self.without):
            raise ConfigError(
                f"federation.without = {list(self.without)}: name clients from 0 to {clients - 1}, "
                f"each once, and not all of them"
            )
        cohort = cohort_size(clients, self.share)
        if self.minimum_replies > cohort:
            raise ConfigError(
                f"federation.minimum_replies = {self.minimum_replies} of a round's {cohort} "
                f"clients: the model would never change"
            )
        return cohort


@dataclass(frozen=True)
class EngineSettings(Settings):
    """The [engine] table. All engines agree to the last bit."""

    table_name: ClassVar = "engine"

    # "flower-simulation": Flower's simulation on Ray; "flower": SuperNodes, by `dcfl flower run`.
    name: Literal["embedded", "flower-simulation", "flower"] = key("embedded", kind="place")
    # Processes; 1: only this one. Fewer where cores or memory are short. Does not change results.
    workers: int | Literal["auto"] = key("auto", ge=1, le=1024, kind="place")
    threads: int = key(1, ge=1, le=1024)  # torch threads per client; changes the last bits
    # "cpu", "cuda", "cuda:0,1"; "auto" uses all GPUs. CPU and GPU differ only in rounding, as two
    # versions of torch do; a run resumes only on the kind of device it was begun on.
    device: str = key("auto", kind="place")
    # Processes that share a GPU, if `workers` is "auto".
    workers_per_device: int = key(1, ge=1, le=64, kind="place")
    # Of the network. bfloat16 pays on CPUs that have units for it (`dcfl doctor`), both on GPUs.
    precision: Precision = "float32"
    compile: bool = False  # the model, by torch.compile: pays off on GPUs in runs of hours
    # MB of RAM for clients' memories (MOON, SCAFFOLD); the rest: disk.
    memory_budget: int = key(1024, ge=0, kind="place")

    def __post_init__(self) -> None:
        super().__post_init__()
        if re.fullmatch(r"auto|cpu|cuda(:\d{1,3}(,\d{1,3})*)?", self.device) is None:
            raise ConfigError(
                f'engine.device must be "auto", "cpu", "cuda" or "cuda:0,1", not {self.device!r}'
            )

    @property
    def at_sites(self) -> bool:
        """Whether clients train at sites elsewhere, with data and devices of their own."""
        return self.name == "flower"


@dataclass(frozen=True)
class OutputSettings(Settings):
    """The [output] table."""

    table_name: ClassVar = "output"

    dir: str = key("", kind="place")  # the run's folder; empty: a new one below runs/
    # Rounds between checkpoints for `dcfl resume`; 0: none; "auto": by elapsed time.
    checkpoint: int | Literal["auto"] = key("auto", ge=0, zero="none", kind="place")
    report: bool = key(True, kind="place")  # write report.html at the end
    # Keep the model of the round with the best accuracy too, in best.safetensors; by which images
    # is federation.choose_by.
    keep_best: bool = key(False, kind="place")
    # Keep the model of every so many rounds, in rounds/; 0: of none.
    keep_every: int = key(0, ge=0, zero="none", kind="place")
    keep_updates: bool = key(False, kind="place")  # and what clients sent in those rounds
    # Keep the last checkpoint of a finished run, with what its clients remember, so that
    # `dcfl resume --rounds` can make the run longer.
    keep_checkpoint: bool = key(True, kind="place")
    # Programs that follow the run, each an extra of its own. One that fails costs a warning.
    trackers: tuple[TrackerName, ...] = key((), kind="place")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.trackers)) != len(self.trackers):
            raise ConfigError("output.trackers: each may be named once")
        if self.keep_updates and not self.keep_every:
            raise ConfigError("output.keep_updates is of the rounds that output.keep_every keeps")

    def keeps(self, round: int) -> bool:
        return self.keep_every > 0 and round % self.keep_every == 0


@dataclass(frozen=True)
class FaultSettings(Settings):
    """The [faults] table: the share of a round's clients that fail in each way, for tests."""

    table_name: ClassVar = "faults"

    crash: float = key(0.0, ge=0, le=1)  # raise an exception
    memory: float = key(0.0, ge=0, le=1)  # run out of memory
    exit: float = key(0.0, ge=0, le=1)  # end their process
    hang: float = key(0.0, ge=0, le=1)  # never answer; needs federation.deadline

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.crash + self.memory + self.exit + self.hang > 1:
            raise ConfigError("faults: all shares together must lie in 0 to 1")

    @property
    def lethal(self) -> bool:
        """Whether a fault ends the process it happens in."""
        return bool(self.exit or self.hang)


@dataclass(frozen=True)
class AttackSettings(Settings):
    """The [attack] table."""

    table_name: ClassVar = "attack"

    # What attackers do.
    kind: Literal["none", "sign-flip", "noise", "scaling", "label-flip", "prototype-flip"] = "none"
    share: float = key(0.2, gt=0, le=1)  # of the clients that attack, rounded up
    # How strongly; what it multiplies depends on the kind.
    strength: float = key(10.0, gt=0, le=10**6)


@dataclass(frozen=True)
class Experiment:
    """A whole run as one frozen value, with a field per table of the config file.

    The defaults train DCFL-PW on the built-in digits. `dcfl.load_experiment` builds one from a file
    or from keywords.

    Example:
        >>> import dcfl
        >>> dcfl.Experiment().method.name
        'dcfl-pw'
    """

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    training: LocalTraining = LocalTraining()
    method: Method = field(default_factory=METHODS["dcfl-pw"])
    server: ServerSettings = ServerSettings()
    federation: FederationSettings = FederationSettings()
    engine: EngineSettings = EngineSettings()
    privacy: PrivacySettings = PrivacySettings()
    compression: CompressionSettings = CompressionSettings()
    output: OutputSettings = OutputSettings()
    faults: FaultSettings = FaultSettings()
    attack: AttackSettings = AttackSettings()
    clock: ClockSettings = ClockSettings()

    def __post_init__(self) -> None:
        require_plain_name(self.method.name)
        self.server.check_method(self.method)
        if self.faults.hang and not self.federation.deadline:
            raise ConfigError(
                "faults.hang needs federation.deadline: nobody else would end the round"
            )
        if self.attack.kind == "prototype-flip" and not self.method.overrides("upload"):
            raise ConfigError(
                f'attack.kind = "prototype-flip": {self.method.name} sends nothing beside the '
                f"weights; dcfl-pw, fedproc and scaffold do"
            )
        if self.personal and self.method.has_own_model:
            raise ConfigError(OWN_AND_PERSONAL.format(self.method.name))
        if self.compression.sparse and self.server.aggregation in ("median", "trimmed-mean"):
            raise ConfigError(
                f'compression.up = "{self.compression.up}" with server.aggregation = '
                f'"{self.server.aggregation}": few clients send the same numbers, so that most '
                f'medians are 0; use "int8" or another aggregation'
            )
        self._check_baseline()
        self._check_clock()
        self._check_secure()
        if self.training.head_epochs and not self.personal:
            raise ConfigError(
                "training.head_epochs are of the part that federation.personal names: set "
                'federation.personal = ["classifier"]'
            )
        self._check_choice()
        if self.privacy.correlated and not self.federation.draws.in_turn:
            raise ConfigError(
                "privacy.correlated counts on no client being asked again soon: set "
                'federation.sampling = "in-turn"'
            )
        if self.privacy.central and self.federation.minimum_replies > 1:
            raise ConfigError(
                'privacy.where = "server" adds noise to every round: one that does not count for '
                "want of replies would tell how many there were; leave out "
                "federation.minimum_replies"
            )

    def _check_secure(self) -> None:
        """Refuse what needs more of a round than one sum of so many replies."""
        if not self.server.secure:
            if self.privacy.shared:
                raise ConfigError(
                    'privacy.where = "sum": the server would see single replies, which a share '
                    "of the noise does not hide: set server.secure = true"
                )
            return
        clock, federation = self.clock, self.federation
        if self.output.keep_updates:
            raise ConfigError("output.keep_updates: with server.secure nobody has single updates")
        if self.privacy.central:
            raise ConfigError(
                'privacy.where = "server" clips what single clients send, and with server.secure '
                'the server does not see it: set privacy.where = "sum"'
            )
        if self.compression.up != "none":
            raise ConfigError(
                f'compression.up = "{self.compression.up}": with server.secure replies are '
                f"numbers in fixed point, which add up as they are"
            )
        if federation.sampling != "fixed":
            raise ConfigError(
                f'federation.sampling = "{federation.sampling}": a sum by server.secure is of as '
                f'many clients in every round, drawn by "fixed"'
            )
        if clock.takes_stale or federation.selection in LEARNING:
            raise ConfigError(
                "[clock] and federation.selection look at single replies here, and with "
                "server.secure nobody sees them"
            )

    def _check_baseline(self) -> None:
        kind = self.federation.baseline
        if kind == "none":
            return
        if self.server.secure:
            raise ConfigError(
                f'federation.baseline = "{kind}" sums nothing: leave out server.secure'
            )
        if self.method.name != "fedavg" or self.federation.personal:
            raise ConfigError(
                f'federation.baseline = "{kind}" trains as FedAvg does: set method.name = '
                f'"fedavg", and no federation.personal'
            )
        if kind == "pooled" and self.federation.without:
            raise ConfigError(
                'federation.baseline = "pooled" trains on all clients: leave out federation.without'
            )
        if kind == "pooled" and self.engine.at_sites:
            raise ConfigError('federation.baseline = "pooled": the images are at the sites')

    @property
    def personal(self) -> tuple[str, ...]:
        """The parts that every client has for itself: the method's, and those of the setting."""
        return (*self.method.personal, *self.federation.personal)

    @property
    def own_models(self) -> bool:
        """Whether every client ends with a model of its own: the run is judged by those."""
        alone = self.federation.baseline == "alone"
        return alone or bool(self.personal) or self.method.has_own_model

    @property
    def by_clock(self) -> bool:
        """Whether the clock's generator trains, and not the plain one."""
        return self.clock.active or self.federation.selection != "uniform"

    def _check_clock(self) -> None:
        clock, selection = self.clock, self.federation.selection
        others = f'federation.selection = "{selection}"' if selection != "uniform" else "[clock]"
        if clock.active and self.engine.at_sites:
            raise ConfigError(
                '[clock] is for simulations: with engine.name = "flower" time passes by itself'
            )
        if self.by_clock and self.federation.baseline != "none":
            raise ConfigError(f"{others}: a baseline asks all clients in every round")
        if self.privacy.active and (clock.asks_others or selection != "uniform"):
            raise ConfigError(
                f"{others} asks other clients than [privacy] accounts for: its guarantee is for "
                f'federation.selection = "uniform" and rounds in which everybody can be asked once'
            )
        if self.by_clock and self.federation.sampling != "fixed":
            raise ConfigError(
                f"{others} says itself who is asked: leave out federation.sampling = "
                f'"{self.federation.sampling}"'
            )
        if selection == "samples" and self.engine.at_sites:
            raise ConfigError(f"{others}: the server does not know how many images sites have")
        least = self.federation.minimum_replies
        if clock.asynchronous and least > clock.replies(least):
            raise ConfigError(
                f"federation.minimum_replies = {least}, and a step of clock.mode = "
                f'"{clock.mode}" has {clock.replies(least)}: the model would never change'
            )

    def _check_choice(self) -> None:
        """Nothing is chosen by the test images unless the user says so."""
        federation, held_out = self.federation, self.data.holdout > 0
        choosing = {
            "output.keep_best": self.output.keep_best,
            "federation.patience": federation.patience,
            "federation.target_accuracy": federation.target_accuracy,
        }
        key = next((key for key, value in choosing.items() if value), None)
        if key is None:
            return
        if self.personal or federation.baseline == "alone":
            own = "federation.personal" if federation.personal else f"method {self.method.name}"
            own = own if self.personal else "federation.baseline"
            raise ConfigError(
                f"{key} goes by the global model, of which nobody trains the clients' own part: "
                f"leave out {key} or {own}"
            )
        if not held_out and federation.choose_by != "test":
            raise ConfigError(
                f"{key} goes by images that are kept back from training: set data.holdout = 0.1, "
                f'or federation.choose_by = "test" to go by the test images'
            )
        if held_out and federation.choose_by != "holdout":
            raise ConfigError(
                f'federation.choose_by = "test": with data.holdout = {self.data.holdout:g} nobody '
                f"looks at the test images; leave out one of the two"
            )

    @cached_property
    def seeded_data(self) -> DataSettings:
        """The [data] table with the seed of the split filled in."""
        if self.data.seed != "federation":
            return self.data
        return replace(self.data, seed=self.federation.seed)
