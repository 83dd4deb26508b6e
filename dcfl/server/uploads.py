"""The uploads of a round on their way to the method's merge.

A method with `merge_mean` has them added up as they arrive: memory does not grow with the cohort.
All others get a list of them at the end of the round, and so does every method under a robust
aggregation, which knows only then whose replies it rejects. Those rules keep all weights anyway.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods.method import Method, UploadsSoFar
from dcfl.tensors import copies


class Uploads(Protocol):
    def add(self, update: ClientUpdate) -> None:
        """Take the upload of a valid reply. The next reply may reuse its memory."""

    def merged(self, shared: Tensors, population: int, rejected: Collection[int]) -> Tensors:
        """What the method shares next. Do not call `add` afterwards."""


class KeptUploads:
    def __init__(self, method: Method) -> None:
        self._method = method
        self._kept: list[tuple[int, Tensors]] = []

    def add(self, update: ClientUpdate) -> None:
        self._kept.append((update.client, copies(update.upload)))

    def merged(self, shared: Tensors, population: int, rejected: Collection[int]) -> Tensors:
        used = [upload for client, upload in self._kept if client not in rejected]
        return self._method.merge(shared, used, population)


class FoldedUploads:
    """For rules that reject nobody."""

    def __init__(self, method: Method) -> None:
        self._method, self._so_far = method, UploadsSoFar()

    def add(self, update: ClientUpdate) -> None:
        self._so_far.add(update.upload)

    def merged(self, shared: Tensors, population: int, rejected: Collection[int]) -> Tensors:
        return self._method.merge_mean(shared, self._so_far.mean(), population)


def uploads_for(method: Method, robust: bool) -> Uploads:
    """`robust`: the aggregation may reject replies at the end of the round."""
    # A `merge` of its own wins: it may stand in a class derived from one with `merge_mean`.
    folds = method.overrides("merge_mean") and not method.overrides("merge")
    return FoldedUploads(method) if folds and not robust else KeptUploads(method)
