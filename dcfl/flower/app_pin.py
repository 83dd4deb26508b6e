"""The hash of the only Flower apps that a site runs: `app-sha256` in its node config.

An app is code, and whoever reaches the SuperLink's control path can submit one. So the check comes
before anything of the app is unpacked or imported, in the process that `dcfl flower supernode`
starts for a message. Under another SuperNode nobody would check: there the key is refused.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp

from dcfl.errors import SiteRefusal
from dcfl.flower.app_code import check_pin
from dcfl.flower.site_failures import Refusal

KEY = "app-sha256"
_guarded: list[str] = []  # the module whose apps are checked


def refusal_of_app(pin: str, app: bytes) -> SiteRefusal | None:
    digest = hashlib.sha256(app).hexdigest()
    return Refusal.APP_NOT_PINNED.error(digest=digest) if digest not in pin.split(",") else None


def require_guard(pin: str) -> None:
    """For an app that runs: it was checked, or nobody has asked for that."""
    check_pin(pin, KEY)
    if pin and not _guarded:
        raise Refusal.APP_NOT_CHECKED.error()


def guard(runtime: Any = None) -> None:
    """Have Flower check what it is about to run in this process, by the node's own config."""
    runtime = runtime or import_module("flwr.supernode.runtime.run_clientapp")
    pull, install = runtime.pull_task_input, runtime.install_from_fab
    load, refusals = runtime.get_load_client_app_fn, []

    def pull_task_input(*args: Any, **more: Any) -> Any:
        message, context, run, app = pull(*args, **more)
        pin = str(context.node_config.get(KEY, ""))
        refusal = refusal_of_app(pin, app.content) if pin else None
        refusals.extend([refusal] if refusal else [])
        return message, context, run, app

    def install_from_fab(*args: Any, **more: Any) -> Any:
        return None if refusals else install(*args, **more)

    def get_load_client_app_fn(*args: Any, **more: Any) -> Any:
        return (lambda *_: _refusing(refusals[0])) if refusals else load(*args, **more)

    runtime.pull_task_input, runtime.install_from_fab = pull_task_input, install_from_fab
    runtime.get_load_client_app_fn = get_load_client_app_fn
    _guarded.append(str(runtime))


def _refusing(refusal: SiteRefusal) -> ClientApp:
    """Answers every question of dcfl's with the refusal, by the rules of the site."""
    from dcfl.flower.client_app import Desk, Site, rules_from_config

    def refuse(context: Context) -> Site:
        raise refusal

    return Desk(refuse, rules_from_config).app()
