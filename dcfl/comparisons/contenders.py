"""Who takes part in a comparison: methods with settings of their own, and baselines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from dcfl.comparisons.cells import marks
from dcfl.comparisons.space import Point, split_commas, tables_of
from dcfl.config import Table, apply, method_named, parse_settings
from dcfl.data import Dataset, FederatedData, load_dataset
from dcfl.data.splits.partition import Partition
from dcfl.errors import ConfigError, DatasetMissing
from dcfl.experiment import Experiment
from dcfl.messages import Tensors
from dcfl.methods import METHODS, Method
from dcfl.methods.method import require_plain_name
from dcfl.runs.identity import flat
from dcfl.runs.prepare import Prepared, prepare
from dcfl.server.server import ServerState
from dcfl.system.wording import nearest
from dcfl.tensors import snapshot

ALL = "all"  # for --methods: every method that there is


@dataclass(frozen=True)
class Contender:
    """A method in a comparison, with settings of its own; or a baseline."""

    experiment: Experiment
    own: Mapping[str, Any]  # by dotted key
    baseline: str = ""
    # Of `over`, what differs from the experiment: its own cells are those of a comparison without.
    point: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> list[str]:
        """The parts of its folders' names before the seed."""
        who = ["baseline", self.baseline] if self.baseline else [self.experiment.method.name]
        return [*who, *marks(self.own, self.point), *marks(self.point, self.own)]

    def tuned(self, chosen: Point) -> Contender:
        own = {**self.own, **chosen}
        return replace(self, experiment=apply(self.experiment, tables_of(chosen)), own=own)


WITH_SETTINGS = re.compile(r"([^()]+)(?:\((.*)\))?")
OF_A_METHOD = ("method", "training", "server")  # tables; all methods share the others


def contender(experiment: Experiment, method: str | Method, fields_for_all: Table) -> Contender:
    """From `fedprox(mu=0.1, training.lr=0.05)`: a key without a table is a field of the method."""
    if isinstance(method, Method):
        require_plain_name(method.name)  # it becomes part of a folder name
        usual = asdict(type(method).for_dataset(experiment.data.dataset))
        own = {k: v for k, v in asdict(method).items() if v != usual[k]}
        return Contender(replace(experiment, method=method), flat({"method": own}))
    found = WITH_SETTINGS.fullmatch(method)
    if found is None:
        raise ConfigError(f"{method!r} is no name for a method, nor NAME(field=value, ...)")
    require_plain_name(found[1])
    given = split_commas(found[2]) if found[2] else []
    tables = parse_settings(
        one if "." in one.partition("=")[0] else f"method.{one}" for one in given
    )
    for table in tables:
        if table not in OF_A_METHOD:
            raise ConfigError(f"{method}: all methods share [{table}]; give it as a setting")
    own = flat(tables)
    chosen = apply(experiment, {"method": {"name": method_named(found[1]).name}})
    known = [one.name for one in fields(chosen.method)]
    shared = {key: value for key, value in fields_for_all.items() if key in known}
    tables["method"] = {**shared, **tables.get("method", {})}
    return Contender(apply(chosen, tables), own)


def refuse_unknown_fields(methods: Sequence[Method], table: Table) -> None:
    known = {one.name for method in methods for one in fields(method)}
    for key in table:
        if key == "name":
            raise ConfigError("method.name: methods are named with --methods")
        if key not in known:
            raise ConfigError(
                f"method.{key}: no method of this comparison has such a field{nearest(key, known)}"
            )


def all_but(named: Sequence[str | Method]) -> Iterator[str]:
    """Every method that is not named beside "all"."""
    given = {one.name if isinstance(one, Method) else one.partition("(")[0] for one in named}
    yield from (name for name in METHODS if name not in given)


def refusals(
    experiment: Experiment, names: Sequence[str], dataset: Dataset | None
) -> dict[str, str]:
    """Which of the methods these settings or this network cannot have, and why. Each trains a
    batch in two rounds, where the images are here."""
    try:
        here = not experiment.engine.at_sites
        images = dataset or (load_dataset(experiment.seeded_data) if here else None)
    except DatasetMissing:
        images = None
    found = {}
    for name in names:
        try:
            one = contender(experiment, name, {}).experiment
            if images is not None:
                _train_a_batch(prepare(one, images))
        except ConfigError as error:
            found[name] = str(error)
    return found


def _train_a_batch(prepared: Prepared) -> None:
    indices = prepared.data.partition.indices[: prepared.experiment.training.batch_size]
    data = FederatedData(prepared.data.dataset, Partition.of_parts([indices]))
    runner = replace(prepared.runner, data=data, faults=None, attack=None)
    server = prepared.server()
    memory: Tensors = {}
    state = ServerState(0, snapshot(prepared.model), {}, {})
    for _ in range(2):
        broadcast = server.broadcast(state)
        update, memory = runner.train(broadcast, 0, memory)
        state, _ = server.aggregate(state, broadcast, [update])
