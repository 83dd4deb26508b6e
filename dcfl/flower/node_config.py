"""What a site tells its own SuperNode (`flower-supernode --node-config`), and nobody else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import get_args

from dcfl.data import Dataset, load_dataset
from dcfl.data.catalogue import load_own_site
from dcfl.data.readers.pictures import Broken
from dcfl.data.settings import DataSettings
from dcfl.data.splits.partition import Partition
from dcfl.errors import SiteRefusal
from dcfl.flower import audit_log
from dcfl.flower.app_pin import RUNNING_APP
from dcfl.flower.audit_log import AuditLog
from dcfl.flower.site_rules import PrivacyBudget, SiteRules
from dcfl.flower.withholding import withheld_from
from dcfl.privacy import LARGEST_EPSILON, LARGEST_SETTING
from dcfl.system.wording import nearest

ANY_DATA = "any"
PERSONAL_PART = "personal"
# A limit of 0 would be none: whoever means it leaves the key out.
LIMITS = {
    "rounds": 1e9,
    "rounds-per-day": 1e9,
    "secure-sum": 1e6,
    "privacy-noise": LARGEST_SETTING,
    "privacy-epsilon": LARGEST_EPSILON,
    "privacy-delta": 0.1,
}


@dataclass(frozen=True)
class NodeConfig:
    """The keys, with dashes for underscores; docs/flower.md says more of each."""

    partition_id: int = -1  # which site this is, counted from 0, where keys do not tell
    num_partitions: int = 0  # how many sites there must be; 0: any number
    memories: str = ""  # the folder for what clients keep
    # `folder:PATH` or `sites:PATH`: served to runs whose data set is `remote`, and nothing else.
    # Empty: the public data sets by name. `any`: whatever a run names, for a trial.
    data: str = ""
    site: str = ""  # names the folder of `sites:PATH`
    data_path: str = ""  # where the public data sets lie here
    privacy_noise: float = 0.0  # the least of [privacy] with which this site sends anything
    code_sha256: str = ""  # of the only files that a run may bring, or `none`
    broken: str = ""  # data.broken of this site
    group: str = ""  # data.group of this site
    classes: str = ""  # the only data.class_names that it answers
    app_sha256: str = ""  # of the only Flower apps that run here: see app_pin.py
    withhold: str = ""  # see withholding.py
    lend: str = ""  # what other sites may score: `personal`, its own part of the model
    audit: str = ""  # the file that records every answer; empty: audit.jsonl beside the memories
    rounds: int = 0  # that it trains in, over all runs; scoring counts likewise
    rounds_per_day: int = 0
    secure_sum: int = 0  # the least number of replies of which the server may see the sum
    privacy_epsilon: float = 0.0  # what its answers of all runs may spend
    privacy_delta: float = PrivacyBudget().delta

    @classmethod
    def read(cls, given: Mapping[str, object]) -> NodeConfig:
        """Unknown keys are refused: a protection whose name is misspelt would be off."""
        given = {key: value for key, value in given.items() if key != RUNNING_APP}
        check_keys(given)
        kinds: dict[str, tuple[type, ...]] = {"int": (int,), "str": (str,), "float": (int, float)}
        for field in fields(cls):
            key = field.name.replace("_", "-")
            value = given.get(key, field.default)
            if isinstance(value, bool) or not isinstance(value, kinds[str(field.type)]):
                raise SiteRefusal(f"{key} in its node config is not of the type {field.type}")
            if isinstance(value, str) and "\0" in value:
                raise SiteRefusal(f"{key} in its node config has a character that no path has")
            if key in LIMITS and key in given and not 0 < value <= LIMITS[key]:  # type: ignore[operator]
                raise SiteRefusal(f"{key} in its node config must be above 0, to {LIMITS[key]:g}")
        return cls(**{key.replace("-", "_"): value for key, value in given.items()})  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        if self.broken not in ("", *get_args(Broken)):
            raise SiteRefusal(f"broken in its node config is none of {', '.join(get_args(Broken))}")
        if self.lend not in ("", PERSONAL_PART):
            raise SiteRefusal(f'lend in its node config is not "{PERSONAL_PART}"')

    @property
    def place(self) -> int | None:
        return None if self.partition_id < 0 else self.partition_id

    @property
    def memories_folder(self) -> Path:
        return Path(self.memories) if self.memories else Path.home() / ".dcfl" / "memories"

    @property
    def rules(self) -> SiteRules:
        audit = Path(self.audit) if self.audit else self.memories_folder / audit_log.NAME
        return SiteRules(
            withheld_from(self.withhold),
            rounds=self.rounds,
            rounds_per_day=self.rounds_per_day,
            budget=PrivacyBudget(self.privacy_noise, self.privacy_epsilon, self.privacy_delta),
            least_sum=self.secure_sum,
            one_owner=self.data not in ("", ANY_DATA),
            lends=bool(self.lend),
            log=AuditLog(audit),
        )

    def load(self, settings: DataSettings, client: int = 0) -> tuple[Dataset, Partition]:
        """The data that a run asks for, if the site serves that. `client`: whose own pictures are
        here."""
        if self.data != ANY_DATA and settings.split_file:
            raise SiteRefusal("data.partition = file: a run does not choose among its files")
        settings = self.with_own_rules(settings)
        if settings.dataset == "remote":
            if not self.agrees(settings.class_names):
                raise SiteRefusal("data.class_names are not `classes` of its node config, in order")
            return load_own_site(settings, self.data, self.site, client)
        if self.data not in ("", ANY_DATA):
            raise SiteRefusal(
                'it has data of its own, and serves that to runs with data.dataset = "remote" only'
            )
        if self.data != ANY_DATA and ":" in settings.dataset:
            raise SiteRefusal(
                "its node config names no data: a run does not choose among its files"
            )
        run_path = settings.path if self.data == ANY_DATA else DataSettings().path
        settings = replace(settings, path=self.data_path or run_path)
        dataset = load_dataset(settings)
        return dataset, settings.split(dataset)

    def with_own_rules(self, settings: DataSettings) -> DataSettings:
        """What the site decides about its own pictures."""
        if self.data not in ("", ANY_DATA):
            settings = replace(settings, group=self.group or DataSettings().group)
        return replace(settings, broken=self.broken) if self.broken else settings  # type: ignore[arg-type]

    def agrees(self, class_names: Sequence[str]) -> bool:
        """Decided without a look at the folders: a run must not ask for their names."""
        return not self.classes or [*class_names] == [n.strip() for n in self.classes.split(",")]


KEYS = tuple(field.name.replace("_", "-") for field in fields(NodeConfig))


def check_keys(given: Iterable[str]) -> None:
    for key in given:
        if key not in KEYS:
            raise SiteRefusal(f"its node config has an unknown key {key}{nearest(key, KEYS)}")
