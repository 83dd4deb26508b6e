"""The command that installs an extra where the user is: into this Python, whatever PATH says."""

from __future__ import annotations

import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

CLONE = Path(__file__).parents[2]  # where it is one, and not the site-packages of a wheel


def install_command(extra: str) -> str:
    """Of dcfl, by name: pip finds the installed dcfl and adds what the extra needs."""
    constraints = CLONE / "constraints.txt"
    here = Path.cwd() == CLONE
    tested = ["-c", constraints.name if here else str(constraints)] if constraints.is_file() else []
    return f"{_install()} {shlex.join([*tested, f'dcfl[{extra}]'])}"


def _install() -> str:
    python, pip = shlex.quote(sys.executable), shutil.which("pip")
    if pip and Path(pip).parent == Path(sys.executable).parent:
        return "pip install"
    if find_spec("pip") is None and shutil.which("uv"):
        return f"uv pip install --python {python}"
    return f"{python} -m pip install"
