"""The user's own files inside a Flower app: `dcfl flower run --method-file --model-file`.

The app carries them beside its pyproject.toml, and the run's config has their hashes. A file runs
at a site only if its content has the hash that the run declares and the site allows that hash.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from dcfl.errors import ConfigError, SiteRefusal
from dcfl.flower.app_pin import check_pin
from dcfl.methods.loading import register_methods
from dcfl.models.own_models import register_model

APP_FILES = {"method": "dcfl_app_method.py", "model": "dcfl_app_model.py"}  # names in the app
NO_CODE = "none"  # for `code-sha256`: the site runs no code that a run brings
_DECLARED = re.compile(r"(method|model)=([0-9a-f]{64})")


def declared_text(hashes: Mapping[str, str]) -> str:
    """The hashes, by kind, as one text for the run's config."""
    return " ".join(f"{kind}={digest}" for kind, digest in hashes.items())


def declared(text: str) -> dict[str, str]:
    """Undo `declared_text`."""
    found = {}
    for word in text.split():
        match = _DECLARED.fullmatch(word)
        if match is None or match[1] in found:
            raise ConfigError(f"the run's config declares code as {text!r}, which says nothing")
        found[match[1]] = match[2]
    return found


def require_allowed(hashes: Mapping[str, str], pin: str) -> None:
    """The site's word on the code that a run brings; without a pin it takes any."""
    check_pin("" if pin == NO_CODE else pin, f'code-sha256 (if not "{NO_CODE}")')
    for kind, digest in hashes.items():
        if pin == NO_CODE:
            raise SiteRefusal(f"it runs no code of a run's own, and this one brings a {kind}")
        if pin and digest not in pin.split(","):
            raise SiteRefusal(f"it runs code with other hashes than the {kind}'s, {digest}")


def run_app_code(text: str, pin: str = "") -> list[str]:
    """Make the methods and the network that the app brings known to this process. Returns a line
    for each file, for the log. Nothing runs before all of it is allowed."""
    hashes = declared(text)
    require_allowed(hashes, pin)
    files = {kind: _found(kind, digest) for kind, digest in hashes.items()}
    if "method" in files:
        register_methods(files["method"])
    if "model" in files:
        register_model(files["model"])
    return [f"this run brings a {kind} of its own: SHA-256 {hashes[kind]}" for kind in files]


def _found(kind: str, digest: str) -> Path:
    """Flower puts the app's folder on the path of modules."""
    for folder in sys.path:
        path = Path(folder) / APP_FILES[kind]
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            return path
    raise ConfigError(f"the app does not have the {kind}'s file that its run declares")
