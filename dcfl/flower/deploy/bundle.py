"""The Flower app that is submitted: a pyproject.toml that points into the installed dcfl, and the
user's own files."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from dcfl.config import as_tables, to_toml
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.flower.app_code import APP_FILES, declared_text
from dcfl.runs.own_code import METHOD_COPY, MODEL_COPY, own_files
from dcfl.system.own_files import OwnFile
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
# fingerprint of its key and its name. And the hashes of the user's own files in this folder.
[tool.flwr.app.config]
experiment = {experiment}
resume = ""
sites = {sites}
code = {code}
"""


def experiment_text(experiment: Experiment) -> str:
    """As Flower sends it to the sites."""
    text = to_toml(as_tables(experiment))
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ConfigError("Flower carries valid Unicode only: rename the paths of the config")
    return text


def app_code(experiment: Experiment) -> dict[str, OwnFile]:
    """The user's own files that the experiment needs: its method's, its network's."""
    files, names = own_files(experiment), {"method": METHOD_COPY, "model": MODEL_COPY}
    return {kind: files[name] for kind, name in names.items() if name in files}


def code_text(files: Mapping[str, OwnFile]) -> str:
    """The hashes of the files, for the run's config."""
    return declared_text({kind: file.sha256 for kind, file in files.items()})


def write_bundle(
    folder: Path, experiment: str = "", sites: str = "", files: Mapping[str, OwnFile] | None = None
) -> Path:
    """Write the app into a new or empty folder. `experiment` and `sites`: the defaults of
    `flwr run`. `files`: from `app_code`."""
    files = files or {}
    with storage(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder}: exists and is not empty; give a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        given = {"experiment": experiment, "sites": sites, "code": code_text(files)}
        given = {key: to_toml(value) for key, value in given.items()}
        text = _PYPROJECT.format(version=version("dcfl"), **given)
        write_whole(folder / "pyproject.toml", text)
        for kind, file in files.items():
            (folder / APP_FILES[kind]).write_bytes(file.source)
    return folder
