"""Class prototypes: sums and counts go up, means come down.

For DCFL-PW and FedProc. A class that no client of the round holds keeps its old prototype; one that
was never seen is masked, not a zero vector (which would add exp(0) to every denominator). In round
one there are no prototypes.

One forged sum or count can move a weighted mean anywhere, and it goes to every client. With
`prototype_merge = "median"` each client that holds a class has one vote, its class mean, whatever
count it claims, and so has the old prototype; each coordinate is the median of the votes. A class
with fewer than three votes stays as it is, known or not, since two cannot outvote a liar. "auto" is
the median if the server's aggregation is robust, and otherwise the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client, LocalTraining, evaluating
from dcfl.errors import ProtocolError, require
from dcfl.losses import cosine_similarity
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods.method import Cost, Method, Objective
from dcfl.models.output import FeatureModel

ENOUGH_VOTES = 3  # for a majority against one


@dataclass(frozen=True)
class Prototypes:
    """What a client receives: a vector per class [K, d], and which classes are known [K]."""

    vectors: Tensor
    known: Tensor

    def masks(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """For each label, masks of its class's prototype and of the others, if known: [B, K]."""
        classes = torch.arange(len(self.known), device=labels.device)
        same = labels[:, None] == classes[None, :]
        return same & self.known, ~same & self.known


@dataclass(frozen=True)
class PrototypeMethod(Method):
    # Whose embeddings: the trained model's or the received model's, over all clean data at the end
    # of the round, or those that pass by during training.
    prototype_model: Literal["trained", "received", "running"] = "trained"
    prototype_weights: Literal["counts", "uniform"] = "counts"  # of the clients in a class's mean
    prototype_normalize: bool = False  # embeddings to unit length before they are summed
    prototype_momentum: float = 0.0  # share of the old prototype that is kept
    # "median" withstands forged prototypes; "auto": it is used if server.aggregation is robust.
    prototype_merge: Literal["auto", "mean", "median"] = "auto"
    # Classes that a client has fewer images of are not sent: the mean of one *is* its embedding.
    min_class_count: int = 1

    cost: ClassVar = Cost(
        passes=1, up="4 * classes * d + 8 * classes", down="4 * classes * d + classes"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 <= self.prototype_momentum < 1,
            f"method.prototype_momentum must lie in [0, 1), not {self.prototype_momentum:g}",
        )
        require(
            self.min_class_count >= 1,
            f"method.min_class_count must be at least 1, not {self.min_class_count}",
        )

    def against_prototypes(
        self, round: int, cross_entropy: Tensor, similarity: Tensor, same: Tensor, others: Tensor
    ) -> Tensor:
        """The loss, from the cosines with all prototypes and the masks of each image's class and of
        the other classes, all [B, K]; for a method to define."""
        return cross_entropy

    def objective(self, client: Client) -> Objective:
        prototypes = self._received(client)

        def loss(batch: Batch) -> Tensor:
            output = client.model(batch.images)
            if self.prototype_model == "running":
                self._count(client, output.embedding.detach(), batch.labels)
            cross_entropy = F.cross_entropy(output.logits, batch.labels)
            if prototypes is None:
                return cross_entropy
            same, others = prototypes.masks(batch.labels)
            similarity = cosine_similarity(output.embedding, prototypes.vectors)
            return self.against_prototypes(client.round, cross_entropy, similarity, same, others)

        return loss

    def _received(self, client: Client) -> Prototypes | None:
        """None in the first round."""
        if not client.shared:
            return None
        return Prototypes(client.shared["prototypes"].detach(), client.shared["known"])

    def upload(self, client: Client) -> Tensors:
        if self.prototype_model == "trained":
            self._count_all(client, client.model)
        elif self.prototype_model == "received":
            self._count_all(client, client.global_model)
        if self.min_class_count > 1:
            self._withhold(client)
        return client.tally

    def _withhold(self, client: Client) -> None:
        """Counts the client's images: running sums include each of them once per epoch."""
        held = torch.bincount(client.data.images.labels, minlength=client.data.classes)
        for sums in client.tally.values():
            sums[held < self.min_class_count] = 0

    @torch.no_grad()
    def _count_all(self, client: Client, model: FeatureModel) -> None:
        with evaluating(model):
            for batch in client.data.clean_batches(model):
                self._count(client, model(batch.images).embedding, batch.labels)

    def _count(self, client: Client, embedding: Tensor, labels: Tensor) -> None:
        features = embedding.float()
        if self.prototype_normalize:
            features = F.normalize(features, dim=1)
        # A product with the one-hot labels: the same sums on every run, unlike a scatter on a GPU.
        member = F.one_hot(labels, client.data.classes)
        sums, counts = member.to(features.dtype).T @ features, member.sum(dim=0)
        client.tally["sums"] = client.tally.get("sums", 0) + sums
        client.tally["counts"] = client.tally.get("counts", 0) + counts

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors:
        return {
            "sums": torch.empty(classes, width, device="meta"),
            "counts": torch.empty(classes, dtype=torch.int64, device="meta"),
        }

    def check_upload(self, update: ClientUpdate, training: LocalTraining) -> None:
        """Counts must fit the number of images, and sums must fit the counts."""
        sums, counts = update.upload["sums"], update.upload["counts"]
        passes = training.epochs if self.prototype_model == "running" else 1
        if int(counts.min()) < 0 or int(counts.sum()) > passes * update.num_examples:
            raise ProtocolError("counts of images per class that cannot be")
        if sums[counts == 0].any():
            raise ProtocolError("a sum over no images that is not zero")
        if self.prototype_normalize and (sums.norm(dim=1) > 1.001 * counts).any():
            raise ProtocolError("a sum of unit vectors that is longer than their number")

    def flip_upload(self, upload: Tensors, strength: float) -> Tensors:
        """The sums times -strength; a sum of unit vectors that grew longer would be rejected."""
        factor = -1.0 if self.prototype_normalize else -strength
        return {**upload, "sums": upload["sums"] * factor}

    def merge(self, shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
        if not uploads:
            return shared
        sums = torch.stack([upload["sums"].double() for upload in uploads])  # [clients, K, d]
        counts = torch.stack([upload["counts"].double() for upload in uploads])[:, :, None]
        means, seen = self._means(sums, counts, shared)  # [K, d], [K, 1]
        if not shared:
            return {"prototypes": means.float(), "known": seen[:, 0]}
        old, known = shared["prototypes"], shared["known"]
        blended = self.prototype_momentum * old.double() + (1 - self.prototype_momentum) * means
        fresh = torch.where(known[:, None], blended, means).float()
        return {"prototypes": torch.where(seen, fresh, old), "known": known | seen[:, 0]}

    def fitted(self, robust: bool) -> Self:
        if self.prototype_merge != "auto":
            return self
        return replace(self, prototype_merge="median" if robust else "mean")

    def _means(self, sums: Tensor, counts: Tensor, shared: Tensors) -> tuple[Tensor, Tensor]:
        """Each class's new prototype, and which classes have one."""
        if self.prototype_merge == "median":
            return _outvoted(sums / counts.clamp(min=1), counts > 0, shared)
        if self.prototype_weights == "uniform":
            sums, counts = sums / counts.clamp(min=1), (counts > 0).double()
        return sums.sum(dim=0) / counts.sum(dim=0).clamp(min=1), counts.sum(dim=0) > 0


def _outvoted(votes: Tensor, cast: Tensor, shared: Tensors) -> tuple[Tensor, Tensor]:
    """The middle vote of each coordinate [K, d], and which classes had enough of them [K, 1].

    `votes` [clients, K, d]; `cast` [clients, K, 1] says which are there.
    """
    if shared:
        votes = torch.cat([votes, shared["prototypes"].double()[None]])
        cast = torch.cat([cast, shared["known"][None, :, None]])
    number = cast.sum(dim=0)  # [K, 1]
    # Absent votes are sorted behind all others, so that the middle is that of those cast.
    ranked = votes.where(cast, torch.inf).sort(dim=0).values
    middle = torch.stack([(number - 1).clamp(min=0) // 2, number // 2])
    pair = ranked.gather(0, middle.expand(-1, -1, votes.shape[2]))
    enough = number >= ENOUGH_VOTES
    return pair.mean(dim=0).where(enough, 0), enough
