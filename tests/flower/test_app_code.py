"""Code that a run brings to the sites: declared, found by its hash, run with a site's leave."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk

from dcfl.config import as_tables, experiment_from, to_toml
from dcfl.errors import ConfigError, ProtocolError, SiteRefusal
from dcfl.flower import codec
from dcfl.flower.app_code import declared, declared_text, run_app_code
from dcfl.flower.client_app import app
from dcfl.flower.codec import Task
from dcfl.flower.deploy.submission import app_code, code_text, write_bundle
from dcfl.methods import METHODS
from dcfl.methods.loading import register_methods
from dcfl.models.own_models import OWN_MODELS, register_model
from tests.flower import in_process  # noqa: F401  (Flower makes no messages without it)
from tests.models.test_own_models import FUNCTION

MODEL = "from pathlib import Path\nPath('ran').touch()\n" + FUNCTION
METHOD = "import dcfl\nclass Mine(dcfl.METHODS['fedavg']):\n    name = 'mine'\n"
DIGEST = hashlib.sha256(MODEL.encode()).hexdigest()
TASK = Task("a" * 32, 0, 0).ticketed()
NODE = {"partition-id": 0, "num-partitions": 2}


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The run's config of an app that lies where Flower would put it, in a process that has not
    seen its code yet."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "idea.py").write_text(METHOD)
    register_model(tmp_path / "net.py")
    register_methods(tmp_path / "idea.py")
    experiment = experiment_from(None, {"model": {"name": "tiny"}, "method": {"name": "mine"}})
    files = app_code(experiment)
    folder = write_bundle(tmp_path / "app", files)
    assert len(build_fab_from_disk(folder)) < 20_000
    config = {"experiment": to_toml(as_tables(experiment)), "code": code_text(files)}
    OWN_MODELS.clear()
    METHODS.pop("mine")
    (tmp_path / "ran").unlink()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return config


def whoami(run: dict[str, str], **node: Any) -> list[int]:
    message = Message(codec.message(TASK), dst_node_id=1, message_type="query.whoami")
    content = app(message, Context(1, 1, {**NODE, **node}, RecordDict(), run)).content
    return codec.read_claim(content, TASK, 10).images


def test_the_app_brings_both_files_and_the_site_logs_their_hashes(
    sent: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {path.name for path in (tmp_path / "app").iterdir()} == {
        "pyproject.toml", "dcfl_app_method.py", "dcfl_app_model.py"
    }  # fmt: skip
    assert sum(whoami(sent)) > 100
    assert f"this run brings a model of its own: SHA-256 {DIGEST}" in capsys.readouterr().err
    assert (tmp_path / "ran").exists()
    assert "tiny" in OWN_MODELS
    assert "mine" in METHODS


def test_a_site_that_pinned_the_hashes_takes_these_files(sent: dict[str, str]) -> None:
    pin = ",".join(declared(sent["code"]).values())
    assert sum(whoami(sent, **{"code-sha256": pin})) > 100


@pytest.mark.parametrize(
    ("pin", "said"),
    [
        ("none", "it runs no code of a run's own, and this one brings a method"),
        ("0" * 64, "it runs code with other hashes than the method's, "),
        (hashlib.sha256(METHOD.encode()).hexdigest(), f"than the model's, {DIGEST}"),
        ("0" * 63, 'code-sha256 (if not "none") in its node config must be SHA-256 hashes'),
        (DIGEST.upper(), 'code-sha256 (if not "none") in its node config must be SHA-256 hashes'),
    ],
)
def test_other_code_is_refused_in_one_line_and_does_not_run(
    pin: str, said: str, sent: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(ProtocolError) as caught:
        whoami(sent, **{"code-sha256": pin})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()
    assert not OWN_MODELS


@pytest.mark.parametrize("pin", ["", "none", DIGEST])
def test_a_run_without_code_needs_no_leave(pin: str) -> None:
    assert run_app_code("", pin) == []


def test_a_pin_that_is_no_hash_is_refused_even_if_nothing_comes() -> None:
    with pytest.raises(SiteRefusal, match="must be SHA-256"):
        run_app_code("", "abc")


def test_a_changed_file_is_not_run(sent: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "app" / "dcfl_app_model.py").write_text(MODEL + "\n")
    with pytest.raises(ConfigError, match="does not have the model's file"):
        run_app_code(sent["code"])
    assert not (tmp_path / "ran").exists()


def test_a_file_that_the_run_does_not_declare_is_not_run(
    sent: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(ProtocolError):
        whoami({**sent, "code": ""})
    assert not (tmp_path / "ran").exists()


def test_what_is_declared_is_read_back() -> None:
    hashes = {"method": "0" * 64, "model": DIGEST}
    assert declared(declared_text(hashes)) == hashes
    for text in ("model", f"code={DIGEST}", f"model={DIGEST} model={DIGEST}", "model=../x"):
        with pytest.raises(ConfigError, match="which says nothing"):
            declared(text)
