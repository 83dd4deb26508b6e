"""The user's own files that a run was trained with: which they are, and their copies in its folder.

A copy is there to be read and compared. It runs only if somebody names it, like any other file:
a run folder may come from anybody.
"""

from __future__ import annotations

from pathlib import Path

from dcfl.experiment import Experiment
from dcfl.models.own_models import OWN_MODELS
from dcfl.system.own_files import OwnFile, own_file_of
from dcfl.system.storage import replacing

METHOD_COPY, MODEL_COPY = "method.py", "model.py"


def own_files(experiment: Experiment) -> dict[str, OwnFile]:
    """By the names of their copies."""
    own_model = OWN_MODELS.get(experiment.model.name)
    files = {
        METHOD_COPY: own_file_of(type(experiment.method)),
        MODEL_COPY: own_model.file if own_model else None,
    }
    return {name: file for name, file in files.items() if file is not None}


def write_copies(folder: Path, experiment: Experiment) -> None:
    for name, file in own_files(experiment).items():
        with replacing(folder / name) as partial:
            partial.write_bytes(file.source)


def own_hashes(experiment: Experiment) -> dict[str, str]:
    """SHA-256 of each of the files, by the name of its copy."""
    return {name: file.sha256 for name, file in own_files(experiment).items()}
