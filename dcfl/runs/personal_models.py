"""The clients' own models of a run with `federation.personal`: scored once, at the end, and kept in
the run folder.

A client's model is the global one with the client's personal part in place of the initial one. Only
that part is written: the rest is in model.safetensors.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dcfl.data import FederatedData
from dcfl.engines.engine import Engine
from dcfl.errors import CheckpointError, DCFLError, RunMissing
from dcfl.evaluation import own_mix_accuracies
from dcfl.messages import Tensors
from dcfl.runs.reading import damaged
from dcfl.system.storage import storage
from dcfl.system.tensor_files import read_tensors, write_tensors
from dcfl.tensors import sha256

PERSONAL = "personal"  # the subfolder of the clients' parts
MOST_NAMED = 20  # clients in an error message


def keep_personal_models(
    engine: Engine, weights: Tensors, data: FederatedData, folder: Path
) -> Tensor:
    """Write the personal part of each client, and score its model on its own mix of classes:
    [clients] in percent, NaN for those that have never trained. Clients that are elsewhere keep
    their parts and score their models themselves."""
    mixes, weights_sha256 = data.label_mixes(), sha256(weights)
    accuracies = torch.full((len(mixes),), torch.nan, dtype=torch.float64)
    for client, accuracy in _told(engine, weights).items():
        accuracies[client] = accuracy
    for client, part in engine.personal_parts():
        engine.begin_evaluation({**weights, **part})
        by_class = engine.end_evaluation().by_class
        accuracies[client] = own_mix_accuracies(by_class, mixes[client : client + 1])[0]
        path = _path(folder, client)
        with storage(path):
            path.parent.mkdir(exist_ok=True)
        write_tensors(path, part, _owner(client, weights_sha256))
    return accuracies


def _told(engine: Engine, weights: Tensors) -> Mapping[int, float]:
    """Sites that do not answer must not spoil a finished run."""
    try:
        return engine.personal_accuracies(weights)
    except DCFLError as error:
        warnings.warn(f"the sites have not scored their own models: {error}", stacklevel=3)
        return {}


def read_personal_part(folder: Path, client: int, weights: Tensors) -> dict[str, Tensor]:
    """What the client has in place of some of the global weights."""
    path = _path(folder, client)
    if not path.is_file():
        kept = [file.stem[-6:] for file in path.parent.glob("client-??????.safetensors")]
        numbers = sorted(int(number) for number in kept if number.isdecimal())
        raise RunMissing(
            f"{folder}: client {client} has no personal model; these have one: {_some(numbers)}"
            if numbers
            else f"{folder} holds no personal models: train with federation.personal"
        )
    try:
        part, owner = read_tensors(path)
    except CheckpointError as error:
        raise damaged(path, str(error)) from error
    if owner != _owner(client, sha256(weights)):
        raise damaged(path, "it belongs to another run")
    return part


def _some(clients: Sequence[int]) -> str:
    shown = ", ".join(map(str, clients[:MOST_NAMED]))
    return f"{shown}, ... ({len(clients)} clients)" if len(clients) > MOST_NAMED else shown


def _path(folder: Path, client: int) -> Path:
    return folder / PERSONAL / f"client-{client:06d}.safetensors"


def _owner(client: int, weights_sha256: str) -> str:
    return f"client {client} of the model {weights_sha256}"
