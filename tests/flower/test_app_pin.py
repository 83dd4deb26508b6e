"""A SuperNode keeps the apps that its site has pinned, and no other. With real processes:
test_hostile_app.py."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode

from dcfl.errors import ConfigError, ProtocolError
from dcfl.flower import app_pin, codec
from dcfl.flower.app_pin import REFUSED_APP, RUNNING_APP, guard
from dcfl.flower.audit_log import AuditLog
from dcfl.flower.client_app import app
from dcfl.flower.codec import Task
from dcfl.flower.deploy.submission import write_bundle
from dcfl.flower.site_failures import Refusal
from tests.flower import in_process  # noqa: F401  (Flower makes no messages without it)

APP = b"an app"
DIGEST = hashlib.sha256(APP).hexdigest()
NODE = {"partition-id": 0, "num-partitions": 1}


@pytest.fixture
def pull(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Flower's own, guarded, with a state that keeps what it is given."""
    loop: Any = import_module(app_pin.LOOP)
    monkeypatch.setattr(loop, "_pull_and_store_message", loop._pull_and_store_message)
    monkeypatch.setattr(loop, "get_fused_config_from_fab", lambda content, run: {})
    monkeypatch.setattr(loop, "_insert_message", lambda reply, state, store: state.append(reply))
    guard()

    def pulled(
        node: dict[str, Any], app: tuple[str, str] = ("dcfl/dcfl-app", "0.2.0")
    ) -> tuple[list[Any], list[Any]]:
        """What became of a message: the replies that the SuperNode itself gave, and what it kept
        for a process."""
        message = Message(RecordDict(), dst_node_id=1, message_type="train")
        kept: list[Any] = []
        state = State(kept)
        store = SimpleNamespace(preregister=lambda run, tree: [], put=None)
        loop._pull_and_store_message(
            state=state,
            object_store=store,
            node_config={**NODE, **node},
            receive=lambda: (message, None),
            get_run=lambda run: SimpleNamespace(
                fab_hash="h",
                series_id=1,
                primary_task_type="",
                run_id=run,
                fab_id=app[0],
                fab_version=app[1],
            ),
            get_fab=lambda digest, run: SimpleNamespace(content=APP, verifications={}),
            pull_object=None,
            confirm_message_received=lambda run, message: None,
            trusted_entities=None,
        )
        return state, kept

    return pulled


class State(list[Any]):
    """Replies; and in `kept` the app and the context."""

    def __init__(self, kept: list[Any]) -> None:
        super().__init__()
        self.store_fab = kept.append
        self.set_run_series_context = lambda series, context: kept.append(context)
        self.store_run = self.store_message = lambda *_: None
        self.get_run = self.get_run_series_context = lambda *_: None
        self.get_node_id = lambda: 1
        self.create_task = lambda **_: 1


@pytest.mark.parametrize(
    "pin", [{}, {"app-sha256": DIGEST}, {"app-sha256": f"{'0' * 64},{DIGEST}"}]
)
def test_a_pinned_app_is_kept_and_any_where_none_is(
    pin: dict[str, str], pull: Callable[..., Any]
) -> None:
    replies, (context, kept) = pull(pin)
    assert replies == []
    assert kept.content == APP
    # For the app, which refuses a pin that nobody has checked, and records which app it is.
    assert context.node_config == {**NODE, RUNNING_APP: DIGEST}


def test_another_app_is_not_kept_and_the_server_reads_why(
    tmp_path: Path, pull: Callable[..., Any]
) -> None:
    log = tmp_path / "a.jsonl"
    (reply,), kept = pull({"app-sha256": "0" * 64, "audit": str(log)})
    assert kept == []
    assert reply.error.code == ErrorCode.INVALID_FAB
    assert reply.error.reason == f"it runs apps with other hashes than this one's, {DIGEST}"
    assert REFUSED_APP.fullmatch(reply.error.reason)
    (entry,) = AuditLog(log).read().entries
    assert (entry.asked, entry.outcome, entry.reason) == ("train", "refused", reply.error.reason)


@pytest.mark.parametrize(
    "app", [("/", "/../evil"), ("dcfl/app", ".."), ("../..", "1"), ("dcfl/app", "1/2"), ("", "")]
)
def test_a_name_that_leads_to_another_folder_is_refused(
    app: tuple[str, str], tmp_path: Path, pull: Callable[..., Any]
) -> None:
    """Flower would run what lies there."""
    (reply,), kept = pull({"app-sha256": DIGEST, "audit": str(tmp_path / "a.jsonl")}, app)
    assert kept == []
    assert reply.error.reason == Refusal.APP_NAME


@pytest.mark.parametrize("pin", ["none", "0" * 63, DIGEST.upper(), f"{DIGEST},", f" {DIGEST}"])
def test_a_pin_that_is_no_hash_lets_nothing_in(pin: str, pull: Callable[..., Any]) -> None:
    (reply,), kept = pull({"app-sha256": pin, "memories": "/dev/null/nowhere"})
    assert kept == []
    assert "must be SHA-256 hashes (64 lower-case hexadecimal digits)" in reply.error.reason


def test_an_app_whose_pin_nobody_has_checked_refuses() -> None:
    task = Task("a" * 32, 0, 0).ticketed()
    context = Context(1, 1, {**NODE, "app-sha256": DIGEST}, RecordDict(), {})
    message = Message(codec.message(task), dst_node_id=1, message_type="query.whoami")
    content = app(message, context).content
    with pytest.raises(ProtocolError, match="dcfl flower supernode"):
        codec.read_claim(content, task, 10)
    assert Refusal.APP_NOT_CHECKED.value in str(content)


def test_a_flower_that_takes_apps_in_another_way_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(f"{app_pin.LOOP}._pull_and_store_message")
    with pytest.raises(ConfigError, match="app-sha256 could not be checked"):
        guard()


def test_the_same_app_has_the_same_hash(tmp_path: Path) -> None:
    first, second = (build_fab_from_disk(write_bundle(tmp_path / name)) for name in "ab")
    assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()
