"""A site runs the apps that it has pinned, and nothing of another is even unpacked."""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk

from dcfl.config import as_tables, to_toml
from dcfl.errors import ProtocolError
from dcfl.experiment import Experiment
from dcfl.flower import app_pin, codec
from dcfl.flower.app_pin import guard
from dcfl.flower.audit_log import AuditLog
from dcfl.flower.client_app import app
from dcfl.flower.codec import Task
from dcfl.flower.deploy.submission import write_bundle
from dcfl.flower.site_failures import Refusal
from tests.flower import in_process  # noqa: F401  (Flower makes no messages without it)

APP = b"an app"
DIGEST = hashlib.sha256(APP).hexdigest()
TASK = Task("a" * 32, 0, 0).ticketed()
NODE = {"partition-id": 0, "num-partitions": 1}


@pytest.fixture(autouse=True)
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_pin, "_guarded", [])


def asked(node: dict[str, Any], guarded: bool = True) -> tuple[RecordDict, list[str]]:
    """What Flower's client process does, in its order; what was done with the app."""
    done: list[str] = []
    run = {"experiment": to_toml(as_tables(Experiment()))}
    context = Context(1, 1, {**NODE, **node}, RecordDict(), run)
    message = Message(codec.message(TASK), dst_node_id=1, message_type="query.whoami")
    runtime = SimpleNamespace(
        pull_task_input=lambda client: (message, context, "run", SimpleNamespace(content=APP)),
        install_from_fab=lambda content, skip_prompt: done.append("installed"),
        get_load_client_app_fn=lambda **_: lambda *_: done.append("loaded") or app,
    )
    if guarded:
        guard(runtime)
    _, _, _, fab = runtime.pull_task_input("client")
    runtime.install_from_fab(fab.content, skip_prompt=True)
    loaded = runtime.get_load_client_app_fn(default_app_ref="")("id", "1.0", "hash")
    return loaded(message, context).content, done


@pytest.mark.parametrize(
    "pin", [{}, {"app-sha256": DIGEST}, {"app-sha256": f"{'0' * 64},{DIGEST}"}]
)
def test_a_pinned_app_runs_and_any_where_none_is(pin: dict[str, str]) -> None:
    content, done = asked(pin)
    assert done == ["installed", "loaded"]
    assert sum(codec.read_claim(content, TASK, 10).images) > 100


def test_nothing_of_another_app_is_unpacked_and_the_server_reads_why(tmp_path: Path) -> None:
    content, done = asked({"app-sha256": "0" * 64, "audit": str(tmp_path / "a.jsonl")})
    assert done == []
    with pytest.raises(ProtocolError) as caught:
        codec.read_claim(content, TASK, 10)
    assert str(caught.value) == f"it runs apps with other hashes than this one's, {DIGEST}"
    (entry,) = AuditLog(tmp_path / "a.jsonl").read().entries
    assert (entry.outcome, entry.reason) == ("refused", str(caught.value))


def test_a_pin_that_nobody_checks_is_refused() -> None:
    content, _ = asked({"app-sha256": DIGEST}, guarded=False)
    with pytest.raises(ProtocolError, match="dcfl flower supernode"):
        codec.read_claim(content, TASK, 10)
    assert Refusal.APP_NOT_CHECKED.value in str(content)


@pytest.mark.parametrize("pin", ["none", "0" * 63, DIGEST.upper()])
def test_a_pin_that_is_no_hash_lets_nothing_in(pin: str) -> None:
    content, done = asked({"app-sha256": pin})
    assert done == []
    assert "failed" in content


def test_flowers_process_has_what_is_guarded() -> None:
    runtime = import_module("flwr.supernode.runtime.run_clientapp")
    for name in ("pull_task_input", "install_from_fab", "get_load_client_app_fn"):
        assert callable(getattr(runtime, name))


def test_the_same_app_has_the_same_hash(tmp_path: Path) -> None:
    first, second = (build_fab_from_disk(write_bundle(tmp_path / name)) for name in "ab")
    assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()
