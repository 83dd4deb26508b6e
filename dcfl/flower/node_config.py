"""What a site tells its own SuperNode (`flower-supernode --node-config`), and nobody else.

partition-id, num-partitions   which clients live here: those with client % num-partitions == id
memories                       the folder for what clients keep (MOON, SCAFFOLD)
data                           `folder:PATH` or `sites:PATH` on this disk: the site serves this, to
                               runs whose own data set is `remote`, and nothing else. Without it,
                               the public data sets by name. `any`: whatever a run names, for a
                               trial on one's own machine
site                           names the folder of `sites:PATH`
broken                         `skip` leaves broken pictures out, `refuse` does not serve data with
                               one; without it the run's data.broken holds
data-path                      where the public data sets lie here
code-sha256                    the hashes of the only files that a run may bring, or `none`
privacy-noise                  the least noise of [privacy] with which this site sends anything
privacy-epsilon, privacy-delta what its answers of all runs may spend: it demands [privacy]
rounds-per-run, rounds-per-day how many rounds it trains in
app-sha256                     the hashes of the only Flower apps that run here: see app_pin.py
withhold                       what it keeps to itself: see withholding.py
audit                          the file that records every answer; audit.jsonl beside the memories
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from dcfl.flower.audit_log import AuditLog
from dcfl.flower.site_rules import PrivacyBudget, SiteRules
from dcfl.flower.withholding import withheld_from
from dcfl.privacy import LARGEST_EPSILON, LARGEST_SETTING
from dcfl.system.wording import nearest

ANY_DATA = "any"
# A limit of 0 would be none: whoever means it leaves the key out.
LIMITS = {
    "rounds-per-run": 1e9,
    "rounds-per-day": 1e9,
    "privacy-noise": LARGEST_SETTING,
    "privacy-epsilon": LARGEST_EPSILON,
    "privacy-delta": 0.1,
}


@dataclass(frozen=True)
class NodeConfig:
    partition_id: int
    num_partitions: int
    memories: str = ""
    data: str = ""
    site: str = ""
    data_path: str = ""
    privacy_noise: float = 0.0
    code_sha256: str = ""
    broken: str = ""
    app_sha256: str = ""
    withhold: str = ""
    audit: str = ""
    rounds_per_run: int = 0
    rounds_per_day: int = 0
    privacy_epsilon: float = 0.0
    privacy_delta: float = PrivacyBudget().delta

    @classmethod
    def read(cls, given: Mapping[str, object]) -> NodeConfig:
        """Unknown keys are refused: a protection whose name is misspelt would be off."""
        check_keys(given)
        kinds: dict[str, tuple[type, ...]] = {"int": (int,), "str": (str,), "float": (int, float)}
        for field in fields(cls):
            key = field.name.replace("_", "-")
            if key not in given and field.name in ("partition_id", "num_partitions"):
                raise SiteRefusal(f"its node config has no {key}")
            value = given.get(key, field.default)
            if isinstance(value, bool) or not isinstance(value, kinds[str(field.type)]):
                raise SiteRefusal(f"{key} in its node config is not of the type {field.type}")
            if key in LIMITS and key in given and not 0 < value <= LIMITS[key]:  # type: ignore[operator]
                raise SiteRefusal(f"{key} in its node config must be above 0, to {LIMITS[key]:g}")
        return cls(**{key.replace("-", "_"): value for key, value in given.items()})  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        if self.broken not in ("", *get_args(Broken)):
            raise SiteRefusal(f"broken in its node config is none of {', '.join(get_args(Broken))}")

    @property
    def memories_folder(self) -> Path:
        return Path(self.memories) if self.memories else Path.home() / ".dcfl" / "memories"

    @property
    def rules(self) -> SiteRules:
        audit = Path(self.audit) if self.audit else self.memories_folder / audit_log.NAME
        return SiteRules(
            withheld_from(self.withhold),
            rounds_per_run=self.rounds_per_run,
            rounds_per_day=self.rounds_per_day,
            budget=PrivacyBudget(self.privacy_noise, self.privacy_epsilon, self.privacy_delta),
            one_owner=self.data not in ("", ANY_DATA),
            log=AuditLog(audit),
        )

    def load(self, settings: DataSettings) -> tuple[Dataset, Partition]:
        """The data that a run asks for, if the site serves that."""
        if self.data != ANY_DATA and settings.split_file:
            raise SiteRefusal("data.partition = file: a run does not choose among its files")
        settings = self.with_own_rules(settings)
        if settings.dataset == "remote":
            return load_own_site(settings, self.data, self.site, self.partition_id)
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
        return replace(settings, broken=self.broken) if self.broken else settings  # type: ignore[arg-type]


KEYS = tuple(field.name.replace("_", "-") for field in fields(NodeConfig))


def check_keys(given: Iterable[str]) -> None:
    for key in given:
        if key not in KEYS:
            raise SiteRefusal(f"its node config has an unknown key {key}{nearest(key, KEYS)}")
