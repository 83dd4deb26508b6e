"""The hash of the only Flower apps that a site runs: `app-sha256` in its node config.

An app is code, and whoever reaches the SuperLink's control path can submit one. The SuperNode gets
it before any other process does, so the check is there: an app with another hash is neither kept
nor unpacked, and no process that answers messages could get hold of it. A Flower in which the check
has no place does not start. What starts an app can therefore fail in any way it likes.
"""

from __future__ import annotations

import hashlib
import re
from importlib import import_module
from typing import Any

from flwr.app import Message
from flwr.app.error import Error
from flwr.common.constant import ErrorCode

from dcfl.errors import ConfigError, SiteRefusal
from dcfl.flower.site_failures import Refusal

KEY = "app-sha256"
RUNNING_APP = (
    "running-app"  # the hash of the one that runs, which `guard` puts into its node config
)
LOOP = "flwr.supernode.start_client_internal"
REFUSED_APP = re.compile(re.escape(Refusal.APP_NOT_PINNED).replace(r"\{digest\}", "[0-9a-f]{64}"))


# Flower makes the folder of an app from its name and version, which the SuperLink tells.
_PLAIN = re.compile(r"[A-Za-z0-9_-]+/[A-Za-z0-9_-]+ [A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*")
_HASHES = re.compile(r"[0-9a-f]{64}(,[0-9a-f]{64})*")


def check_pin(pin: str, key: str = KEY) -> None:
    """Refuse a pin that could never match: a protection that is misspelt."""
    if pin and not _HASHES.fullmatch(pin):
        raise SiteRefusal(
            f"{key} in its node config must be SHA-256 hashes (64 lower-case "
            f"hexadecimal digits), separated by commas"
        )


def require_guard(pin: str) -> None:
    """For an app that runs: `guard` has taken the pin out of the node config, or there is none."""
    if pin:
        raise Refusal.APP_NOT_CHECKED.error()


def guard() -> None:
    """Have this process's SuperNode check each app by the node's own config before it keeps it."""
    loop: Any = import_module(LOOP)
    try:
        pull, insert = loop._pull_and_store_message, loop._insert_message
    except AttributeError:
        raise ConfigError(
            "this version of Flower takes apps in another way than dcfl knows, so app-sha256 could "
            "not be checked: install the version in constraints.txt"
        ) from None

    def pull_and_store(
        *, node_config: Any, receive: Any, get_run: Any, get_fab: Any, **more: Any
    ) -> Any:
        pin = str(node_config.get(KEY, ""))
        received: list[Any] = []

        def receive_and_keep() -> Any:
            received[:] = [receive()]
            return received[0]

        def plain(run_id: int) -> Any:
            run = get_run(run_id)
            if pin and not _PLAIN.fullmatch(f"{run.fab_id} {run.fab_version}"):
                raise Refusal.APP_NAME.error()
            return run

        def pinned(*which: Any) -> Any:
            app = get_fab(*which)
            own[RUNNING_APP] = require_pinned(pin, app.content)
            return app

        own = {key: value for key, value in node_config.items() if key not in (KEY, RUNNING_APP)}
        more |= {"node_config": own}
        try:
            return pull(receive=receive_and_keep, get_run=plain, get_fab=pinned, **more)
        except SiteRefusal as refusal:
            message = received[0][0]
            _record(node_config, message.metadata.message_type, refusal)
            reply = Message(Error(ErrorCode.INVALID_FAB, str(refusal)), reply_to=message)
            insert(reply, more["state"], more["object_store"])
            return message.metadata.run_id

    loop._pull_and_store_message = pull_and_store


def require_pinned(pin: str, app: bytes) -> str:
    """The hash of the app."""
    check_pin(pin)
    digest = hashlib.sha256(app).hexdigest()
    if pin and digest not in pin.split(","):
        raise Refusal.APP_NOT_PINNED.error(digest=digest)
    return digest


def _record(node_config: Any, kind: str, refusal: SiteRefusal) -> None:
    """In the site's log and record. With torch, which a SuperNode otherwise does without."""
    from dcfl.flower.client_app import refused_app

    refused_app(node_config, kind, refusal)
