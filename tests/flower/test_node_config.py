"""A site serves what it declared and nothing else, and does not pass over what it cannot read."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from PIL import Image

from dcfl.config import as_tables, to_toml
from dcfl.data.readers import pictures
from dcfl.data.settings import DataSettings
from dcfl.data.splits.partition import MOST_CLIENTS
from dcfl.errors import ConfigError, DatasetMissing, ProtocolError, SiteRefusal
from dcfl.experiment import Experiment
from dcfl.flower import codec
from dcfl.flower.audit_log import AuditLog
from dcfl.flower.client_app import app
from dcfl.flower.codec import Claim, Task
from dcfl.flower.node_config import KEYS, LIMITS, NodeConfig
from dcfl.flower.site_rules import PrivacyBudget, SiteRules
from dcfl.models import build_model
from tests.flower.sites_in_process import remote_experiment

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
    assert codec.read_claim(content, TASK, 2) == Claim(0, 2, [2, 2], examples=16)


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
    with pytest.raises(ConfigError, match=r"folder:PATH, sites:PATH or npz:PATH"):
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


def test_a_node_needs_no_number_and_serves_the_client_that_it_is_taken_for(tmp_path: Path) -> None:
    own = site_of(tmp_path / "own", ("p", "q"))
    node = NodeConfig.read({"data": own})
    assert node.place is None
    for client in (0, 1):
        _, partition = node.load(asked_for("remote"), client)
        assert [size > 0 for size in partition.sizes] == [client == 0, client == 1]


def test_every_key_is_read() -> None:
    given = {**NODE, "data": "any", "site": "n", "data-path": "d", "memories": "m"}
    given |= {"privacy-noise": 2, "code-sha256": "none", "broken": "skip"}
    given |= {"group": "none", "classes": "a,b"}
    given |= {"withhold": "scores", "audit": "a.jsonl", "rounds": 3, "rounds-per-day": 9}
    given |= {"privacy-epsilon": 8.0, "privacy-delta": 1e-6, "app-sha256": "0" * 64}
    given |= {"secure-sum": 5, "lend": "personal"}
    assert {*given} == {*KEYS}
    read = NodeConfig.read(given)
    assert (read.privacy_noise, read.memories_folder, read.data_path) == (2, Path("m"), "d")
    budget = PrivacyBudget(2, 8.0, 1e-6)
    log = AuditLog(Path("a.jsonl"))
    scores = frozenset({"scores"})
    assert read.rules == SiteRules(scores, 3, 9, budget, 5, one_owner=False, lends=True, log=log)
    assert NodeConfig.read({**NODE, "data": "folder:x"}).rules.one_owner


@pytest.mark.parametrize("key", LIMITS)
@pytest.mark.parametrize("value", [0, -1, 10**12])
def test_a_limit_that_would_be_none_is_refused(key: str, value: int) -> None:
    with pytest.raises(SiteRefusal, match=f"^{key} in its node config must be above 0"):
        NodeConfig.read({**NODE, key: value})


# What a run's config might read of names. Each picture of a site is of Smith or of Jones; at the
# other site, of Smyth or of Jonas.
ASKING = {
    "group": ["Smith", "^(?:.*Smith.*|Jon.*)$", "(Smith|.)", "none", "Smith.csv", "(", "(a|aa)+$"],
    "path": ["Smith"],
    "partition": ["file:Smith.json", "file:light/Smith-1.png", "given"],
    "class_names": [("Smith", "Jones"), (*CLASSES, "Smith"), ("light", "dark")],
    "fit": ["crop"],
    "window": [(10.0, 20.0)],
    "broken": ["skip"],
    "image_size": [16],
    "holdout": [0.5],
    "seed": [3],
    "train_images": [3],
    "test_images": [1],
    "test_skip": [5],
    "classes": [2],
    "clients": [1, 3, 10**6],
}


REFUSED: list[dict[str, Any]] = [
    *[{"group": "("}, {"class_names": ("Smith", "Jones")}],
    *[{"partition": "file:Smith.json"}, {"partition": "file:light/Smith-1.png"}],
    *[{"train_images": 3}, {"test_skip": 5}, {"classes": 2}],
]


def site_of(folder: Path, names: tuple[str, str]) -> str:
    for label, shade in enumerate(CLASSES):
        (folder / shade).mkdir(parents=True)
        for number in range(20):
            picture = Image.new("RGB", (8, 8), (10 * number, 100 * label, 0))
            picture.save(folder / shade / f"{names[number % 2]}-{number:02d}.png")
    return f"folder:{folder}"


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two sites with the same pictures, whose names sort alike and differ."""
    folder = tmp_path_factory.mktemp("alike")
    return site_of(folder / "a", ("Smith", "Jones")), site_of(folder / "b", ("Smyth", "Jonas"))


@pytest.mark.parametrize("kind", ["query.whoami", "train"])
@pytest.mark.parametrize(
    "asked", [{key: value} for key, values in ASKING.items() for value in values], ids=str
)
def test_no_setting_of_a_run_tells_a_name(
    asked: dict[str, Any], kind: str, alike: tuple[str, str]
) -> None:
    """A hostile operator's config comes as it is: no server has checked it."""
    experiment = remote_experiment(Path("never written"), data__class_names=list(CLASSES))
    classes = len(asked.get("class_names", CLASSES))
    weights = build_model(experiment.model, 3, 8, classes, 0).state_dict()
    records = {"weights": codec.encode(weights), "shared": codec.encode({})}
    tables = as_tables(experiment)
    tables["data"] |= {key: list(v) if isinstance(v, tuple) else v for key, v in asked.items()}
    replies = []
    for data in alike:
        content = codec.message(TASK, **(records if kind == "train" else {}))
        message = Message(content, dst_node_id=1, message_type=kind)
        context = Context(1, 1, {**NODE, "data": data}, RecordDict(), {"experiment": ""})
        context.run_config["experiment"] = to_toml(tables)
        answer = app(message, context).content
        answer.get("metrics", {}).pop("seconds", None)
        answer.pop("record")  # how often it was asked, and a salted hash
        replies.append({name: record.deflate() for name, record in answer.items()})
    assert replies[0] == replies[1]
    answered = "weights" if kind == "train" else "node"
    assert ("failed" if asked in REFUSED else answered) in replies[0]


def test_every_key_that_could_ask_is_asked_with() -> None:
    harmless = {"dataset", "alpha", "per_client", "min_size", "mean", "std"}  # numbers alone
    harmless |= {"crop", "flip", "rotation", "cutout", "features"}
    assert {field.name for field in fields(DataSettings)} == harmless | ASKING.keys()


def test_a_sites_own_rule_says_which_pictures_stay_together(alike: tuple[str, str]) -> None:
    def groups(**own: str) -> int | None:
        node = NodeConfig.read({**NODE, "data": alike[0], **own})
        return node.load(asked_for("remote", group="-(1)"))[0].group_count

    assert (groups(), groups(group="(?i)^(smith|jones)"), groups(group="none")) == (None, 2, None)
    with pytest.raises(ConfigError, match="not an expression that RE2 reads"):
        groups(group="(")


@pytest.mark.parametrize("agreed", ["dark,light", " dark , light "])
def test_a_site_that_names_its_classes_answers_no_other_question(
    agreed: str, tmp_path: Path
) -> None:
    """Whether or not it has the folder that is asked for."""
    site, more = (site_of(tmp_path / name, ("p", "q")) for name in "ab")
    (tmp_path / "b" / "hiv").mkdir()
    told = set()
    for data in (site, more):
        for names in (("dark", "light", "hiv"), ("dark", "light", "flu"), ("light", "dark")):
            node = {**NODE, "data": data, "classes": agreed}
            content = whoami(node, replace(asked_for("remote"), class_names=names))
            with pytest.raises(ProtocolError) as caught:
                codec.read_claim(content, TASK, len(names))
            told.add(str(caught.value))
    assert told == {"data.class_names are not `classes` of its node config, in order"}
    served = whoami({**NODE, "data": site, "classes": agreed}, asked_for("remote"))
    assert codec.read_claim(served, TASK, 2).images == [4, 4]


@pytest.mark.parametrize("clients", [MOST_CLIENTS, MOST_CLIENTS + 1, 2**31 - 1])
@pytest.mark.parametrize("data", ["folder", ""])
def test_a_run_of_a_billion_clients_is_answered_at_once(
    clients: int, data: str, alike: tuple[str, str]
) -> None:
    tables = as_tables(Experiment(data=asked_for("remote" if data else "digits")))
    tables["data"]["clients"] = clients
    message = Message(codec.message(TASK), dst_node_id=1, message_type="query.whoami")
    own = {"data": alike[0]} if data else {}
    context = Context(1, 1, {**NODE, **own}, RecordDict(), {"experiment": to_toml(tables)})
    began = time.monotonic()
    answer = app(message, context).content
    assert time.monotonic() - began < 2
    if data and clients == MOST_CLIENTS:  # its own is one
        assert codec.read_claim(answer, TASK, 2).images == [4, 4]
        return
    reason = "an error" if clients == MOST_CLIENTS else "another version"  # in which it is allowed
    with pytest.raises(ProtocolError, match=reason):
        codec.read_claim(answer, TASK, 2 if data else 10)


def test_pictures_that_do_not_fit_into_memory_are_not_decoded(
    alike: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "available_bytes", lambda: 10**8)
    monkeypatch.setattr(pictures, "_decode", lambda *_: pytest.fail("it was decoded"))
    node = NodeConfig.read({**NODE, "data": alike[0]})
    with pytest.raises(ConfigError, match=r"40 images of 1024x1024 pixels need 0.1 GiB"):
        node.load(replace(asked_for("remote"), image_size=1024))
