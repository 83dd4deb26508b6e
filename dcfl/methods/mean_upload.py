"""The uploads of a round as their mean, for methods that need no more than that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dcfl.messages import Tensors
from dcfl.tensors import RunningMean


@dataclass(frozen=True)
class MeanUpload:
    """All that `Method.merge_mean` learns of a round's uploads."""

    tensors: Tensors  # the means, float64; an integer tensor is the first client's
    clients: int  # how many uploads there were, at least one
    dtypes: Mapping[str, torch.dtype]  # of the tensors as clients sent them

    def cast(self, tensors: Tensors) -> dict[str, Tensor]:
        """Convert tensors named like those of the upload to the form in which clients sent them."""
        return {
            name: torch.empty_like(self.tensors[name], dtype=self.dtypes[name]).copy_(tensor)
            for name, tensor in tensors.items()
        }


class UploadsSoFar:
    """Adds up uploads as they come, in the memory of one of them in float64. Keeps none."""

    def __init__(self) -> None:
        self._mean, self._clients = RunningMean(), 0
        self._form: dict[str, tuple[torch.dtype, torch.Size]] = {}

    def add(self, upload: Tensors) -> None:
        """In client order, which decides the last bits."""
        form = {name: (tensor.dtype, tensor.shape) for name, tensor in upload.items()}
        if self._clients and form != self._form:
            raise ValueError(
                "uploads whose names, shapes or dtypes differ have no mean; "
                "with `upload_like` the server rejects the odd ones"
            )
        self._form = form
        self._mean.add(upload, 1.0)
        self._clients += 1

    def mean(self) -> MeanUpload:
        """Do not call `add` afterwards."""
        dtypes = {name: dtype for name, (dtype, _) in self._form.items()}
        return MeanUpload(self._mean.mean(), self._clients, dtypes)


def mean_of(uploads: Sequence[Tensors]) -> MeanUpload:
    so_far = UploadsSoFar()
    for upload in uploads:
        so_far.add(upload)
    return so_far.mean()
