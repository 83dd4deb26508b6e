"""The Flower app that is submitted: a pyproject.toml that points into the installed dcfl."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from dcfl.config import as_tables, to_toml
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.system.storage import storage, write_whole

# No dependencies: dcfl and torch are installed at each site beforehand, never by a run.
_PYPROJECT = """\
[project]
name = "dcfl-app"
version = "{version}"
description = "Runs a dcfl experiment with the dcfl that is installed at each site"
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "dcfl"

[tool.flwr.app.components]
serverapp = "dcfl.flower.deploy.server_app:app"
clientapp = "dcfl.flower.client_app:app"

# A whole config file as one text, because Flower accepts only keys that stand here; or the folder
# of a run to resume. And the sites: how many SuperNodes there are, or a line for each with the
# fingerprint of its key and its name.
[tool.flwr.app.config]
experiment = {experiment}
resume = ""
sites = {sites}
"""


def experiment_text(experiment: Experiment) -> str:
    """As Flower sends it to the sites."""
    text = to_toml(as_tables(experiment))
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ConfigError("Flower carries valid Unicode only: rename the paths of the config")
    return text


def write_bundle(folder: Path, experiment: str = "", sites: str = "") -> Path:
    """Write the app into a new or empty folder. `experiment` and `sites`: the defaults of
    `flwr run`."""
    with storage(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder}: exists and is not empty; give a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        given = {"experiment": to_toml(experiment), "sites": to_toml(sites)}
        text = _PYPROJECT.format(version=version("dcfl"), **given)
        write_whole(folder / "pyproject.toml", text)
    return folder
