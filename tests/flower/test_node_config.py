"""A site serves what it declared and nothing else, and does not pass over what it cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from PIL import Image

from dcfl.config import as_tables, to_toml
from dcfl.data.settings import DataSettings
from dcfl.errors import ConfigError, DatasetMissing, ProtocolError, SiteRefusal
from dcfl.experiment import Experiment
from dcfl.flower import codec
from dcfl.flower.audit_log import AuditLog
from dcfl.flower.client_app import app
from dcfl.flower.codec import Claim, Task
from dcfl.flower.node_config import KEYS, LIMITS, NodeConfig
from dcfl.flower.site_rules import PrivacyBudget, SiteRules
from tests.flower import in_process  # noqa: F401  (Flower makes no messages without it)

NODE = {"partition-id": 0, "num-partitions": 2}
CLASSES = ("dark", "light")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of pictures and an archive: `scans` has been declared, the others not."""
    folder = tmp_path_factory.mktemp("disk")
    for name in ("scans", "secret"):
        for shade, value in zip(CLASSES, (0, 255), strict=True):
            (folder / name / shade).mkdir(parents=True)
            for number in range(10):
                Image.new("RGB", (8, 8), (value,) * 3).save(folder / name / shade / f"{number}.png")
    images = {f"{part}_images": np.zeros((20, 8, 8, 3), np.uint8) for part in ("train", "test")}
    labels = {f"{part}_labels": np.arange(20) % 2 for part in ("train", "test")}
    np.savez(folder / "any.npz", **images, **labels)
    return folder


def asked_for(dataset: str, **more: Any) -> DataSettings:
    own = {} if dataset.startswith(("digits", "npz", "cifar")) else {"class_names": CLASSES}
    return DataSettings(dataset, clients=2, partition="iid", image_size=8, **own, **more)


def whoami(node: dict[str, Any], data: DataSettings) -> RecordDict:
    """What a SuperNode's client app answers."""
    run = {"experiment": to_toml(as_tables(Experiment(data=data)))}
    message = Message(codec.message(TASK), dst_node_id=1, message_type="query.whoami")
    return app(message, Context(1, 1, node, RecordDict(), run)).content


TASK = Task("a" * 32, 0, 0).ticketed()


def test_a_site_serves_the_folder_that_it_declared(disk: Path) -> None:
    node = {**NODE, "data": f"folder:{disk / 'scans'}"}
    content = whoami(node, asked_for("remote"))
    assert codec.read_claim(content, TASK, 2) == Claim(0, 2, [2, 2])


DECLARED = ["folder:{disk}/scans", "", "sites:{disk}"]
WANTED = ["folder:{disk}/secret", "npz:{disk}/any.npz", "sites:{disk}", "folder:{disk}/scans"]


@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize("wanted", WANTED)
def test_a_run_does_not_choose_among_a_sites_files(declared: str, wanted: str, disk: Path) -> None:
    node = {**NODE, "data": declared.format(disk=disk)}
    content = whoami(node, asked_for(wanted.format(disk=disk)))
    with pytest.raises(ProtocolError, match=r"data of its own|names no data") as caught:
        codec.read_claim(content, TASK, 2)
    assert str(disk) not in str(caught.value)


def test_who_declared_pictures_serves_no_public_data_either(disk: Path) -> None:
    content = whoami({**NODE, "data": f"folder:{disk / 'scans'}"}, asked_for("digits"))
    with pytest.raises(ProtocolError, match="data of its own"):
        codec.read_claim(content, TASK, 10)


def test_public_data_needs_no_word_of_the_site() -> None:
    images = codec.read_claim(whoami(NODE, asked_for("digits")), TASK, 10).images
    assert sum(images) > 100


def test_a_run_does_not_say_where_public_data_lie(disk: Path) -> None:
    """Its own path is for the operator's machine."""
    settings = asked_for("cifar10", path=str(disk))
    for node, where in (({}, "data"), ({"data-path": "/there"}, "/there")):
        with pytest.raises(DatasetMissing, match=f"in {where}:"):
            NodeConfig.read({**NODE, **node}).load(settings)
    with pytest.raises(DatasetMissing, match=f"in {disk}:"):
        NodeConfig.read({**NODE, "data": "any"}).load(settings)


def test_a_trial_on_ones_own_machine_serves_whatever_is_named(disk: Path) -> None:
    node = NodeConfig.read({**NODE, "data": "any"})
    dataset, partition = node.load(asked_for(f"npz:{disk / 'any.npz'}"))
    assert (len(dataset.train), len(partition)) == (20, 2)


def test_nothing_declared_is_nothing_for_a_remote_run() -> None:
    with pytest.raises(ConfigError, match=r"folder:PATH or sites:PATH"):
        NodeConfig.read(NODE).load(asked_for("remote"))


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("privacy_noise", "privacy-noise"),
        ("memory", "memories"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_nearest_and_the_server_reads_it(
    key: str, nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = whoami({**NODE, key: "a secret"}, asked_for("digits"))
    said = f"its node config has an unknown key {key}: did you mean {nearest}?"
    with pytest.raises(ProtocolError) as caught:
        codec.read_claim(content, TASK, 10)
    assert str(caught.value) == said
    assert said in capsys.readouterr().err  # at the site too
    assert "a secret" not in str(content)


@pytest.mark.parametrize(
    "wrong",
    [
        {"privacy-noise": "1.0"},
        {"privacy-noise": True},
        {"partition-id": "0"},
        {"num-partitions": 2.0},
        {"data": 3},
    ],
)
def test_a_value_of_another_type_is_refused_by_its_key(wrong: dict[str, Any]) -> None:
    (key,) = wrong
    with pytest.raises(SiteRefusal, match=f"^{key} in its node config"):
        NodeConfig.read({**NODE, **wrong})


@pytest.mark.parametrize("key", NODE)
def test_a_node_without_its_number_is_refused(key: str) -> None:
    with pytest.raises(SiteRefusal, match=f"no {key}"):
        NodeConfig.read({name: value for name, value in NODE.items() if name != key})


def test_every_key_is_read() -> None:
    given = {**NODE, "data": "any", "site": "n", "data-path": "d", "memories": "m"}
    given |= {"privacy-noise": 2, "code-sha256": "none", "broken": "skip"}
    given |= {"withhold": "scores", "audit": "a.jsonl", "rounds-per-run": 3, "rounds-per-day": 9}
    given |= {"privacy-epsilon": 8.0, "privacy-delta": 1e-6, "app-sha256": "0" * 64}
    assert {*given} == {*KEYS}
    read = NodeConfig.read(given)
    assert (read.privacy_noise, read.memories_folder, read.data_path) == (2, Path("m"), "d")
    budget = PrivacyBudget(2, 8.0, 1e-6)
    log = AuditLog(Path("a.jsonl"))
    assert read.rules == SiteRules(frozenset({"scores"}), 3, 9, budget, one_owner=False, log=log)
    assert NodeConfig.read({**NODE, "data": "folder:x"}).rules.one_owner


@pytest.mark.parametrize("key", LIMITS)
@pytest.mark.parametrize("value", [0, -1, 10**12])
def test_a_limit_that_would_be_none_is_refused(key: str, value: int) -> None:
    with pytest.raises(SiteRefusal, match=f"^{key} in its node config must be above 0"):
        NodeConfig.read({**NODE, key: value})
