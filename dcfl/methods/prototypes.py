"""Class prototypes, for DCFL-PW and FedProc: clients send sums and counts and receive means.

A class that no client of the round holds keeps its old prototype. A class that was never seen is
masked: a zero vector would add exp(0) to every denominator. In round one there are no prototypes.

One forged sum or count can move a weighted mean anywhere, and every client receives it. With
`prototype_merge = "median"` each client that holds a class has one vote, its class mean, whatever
count it claims. The old prototype has a vote too, and each coordinate is the median of the votes. A
class with fewer than three votes does not change, because two votes cannot outvote a liar. "auto"
is the median if the server's aggregation is robust, and the mean otherwise.

A method on several levels of the network has prototypes on each: what is summed, sent and merged is
the levels side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client, evaluating
from dcfl.errors import ProtocolError
from dcfl.local_training import LocalTraining
from dcfl.losses import cosine_similarity
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods.method import Cost, Objective, OnEmbeddings
from dcfl.models.output import FeatureModel, Output
from dcfl.settings import key
from dcfl.tensors import clip_share

ENOUGH_VOTES = 3  # a majority against one liar


@dataclass(frozen=True)
class Prototypes:
    """The prototypes a client receives: a vector per class [K, d], and which are known [K]."""

    vectors: Tensor
    known: Tensor

    def masks(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Masks of the known prototypes of each label's class and of the other classes: [B, K]."""
        classes = torch.arange(len(self.known), device=labels.device)
        same = labels[:, None] == classes[None, :]
        return same & self.known, ~same & self.known


@dataclass(frozen=True)
class PrototypeMethod(OnEmbeddings):
    # The embeddings to sum: those of the trained or the received model over all clean data at the
    # end of the round, or ("running") those computed during training.
    prototype_model: Literal["trained", "received", "running"] = "trained"
    prototype_weights: Literal["counts", "uniform"] = (
        "counts"  # weights of the clients in a class's mean
    )
    prototype_normalize: bool = False  # scale embeddings to unit length before summing
    prototype_momentum: float = key(0.0, ge=0, lt=1)  # weight of the old prototype
    # "median" withstands forged prototypes; "auto" uses it if server.aggregation is robust.
    prototype_merge: Literal["auto", "mean", "median"] = "auto"
    # Clients withhold classes with fewer images: the mean of one image *is* its embedding.
    min_class_count: int = key(1, ge=1)

    cost: ClassVar = Cost(
        passes=1, up="4 * classes * d + 8 * classes", down="4 * classes * d + classes"
    )

    def against_prototypes(
        self, round: int, cross_entropy: Tensor, similarity: Tensor, same: Tensor, others: Tensor
    ) -> Tensor:
        """The loss, given the cosines with all prototypes and the masks of each image's class and
        of the other classes, all [B, K]. Methods override this."""
        return cross_entropy

    def objective(self, client: Client) -> Objective:
        prototypes = self._received(client)

        def loss(batch: Batch) -> Tensor:
            output = client.model(batch.images)
            levels = self.levels_of(output)
            if self.prototype_model == "running":
                self._count(client, levels, batch.labels)
            cross_entropy = F.cross_entropy(output.logits, batch.labels)
            if prototypes is None:
                return cross_entropy
            same, others = prototypes.masks(batch.labels)
            widths = [level.shape[1] for level in levels]
            by_level = torch.split(prototypes.vectors, widths, dim=1)
            losses = [
                self.against_prototypes(
                    client.round, cross_entropy, cosine_similarity(level, vectors), same, others
                )
                for level, vectors in zip(levels, by_level, strict=True)
            ]
            return torch.stack(losses).mean()

        return loss

    def _received(self, client: Client) -> Prototypes | None:
        """The prototypes that came with the weights; None in the first round."""
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
        """Counts images afresh: running sums include each image once per epoch."""
        held = F.one_hot(client.data.images.labels, client.data.classes).sum(dim=0)
        withheld = held < self.min_class_count
        client.tally["sums"] = client.tally["sums"].masked_fill(withheld[:, None], 0)
        client.tally["counts"] = client.tally["counts"].masked_fill(withheld, 0)

    @torch.no_grad()
    def _count_all(self, client: Client, model: FeatureModel) -> None:
        with evaluating(model):
            for batch in client.data.clean_batches(model):
                self._count(client, self.levels_of(model(batch.images)), batch.labels)

    def _count(self, client: Client, levels: Sequence[Tensor], labels: Tensor) -> None:
        features = self._side_by_side(levels)
        # A product with one-hot labels is deterministic, unlike a scatter on a GPU.
        member = F.one_hot(labels, client.data.classes)
        sums, counts = member.to(features.dtype).T @ features, member.sum(dim=0)
        client.tally["sums"] = client.tally.get("sums", 0) + sums
        client.tally["counts"] = client.tally.get("counts", 0) + counts

    def summed(self, output: Output) -> Tensor:
        return self._side_by_side(self.levels_of(output))

    def _side_by_side(self, levels: Sequence[Tensor]) -> Tensor:
        parts = [level.detach().float() for level in levels]
        if self.prototype_normalize:  # all levels together are of unit length
            parts = [F.normalize(part, dim=1) / len(parts) ** 0.5 for part in parts]
        return torch.cat(parts, dim=1)

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors:
        return {
            "sums": torch.empty(classes, width, device="meta"),
            "counts": torch.empty(classes, dtype=torch.int64, device="meta"),
        }

    def check_upload(self, update: ClientUpdate, training: LocalTraining) -> None:
        """Counts must match the number of images, and sums must match the counts."""
        sums, counts = update.upload["sums"], update.upload["counts"]
        if counts.is_floating_point():  # [privacy] has clipped both, and there may be noise
            return
        passes = training.all_epochs if self.prototype_model == "running" else 1
        if int(counts.min()) < 0 or int(counts.sum()) > passes * update.num_examples:
            raise ProtocolError("counts of images per class that cannot be")
        if sums[counts == 0].any():
            raise ProtocolError("a sum over no images that is not zero")
        if self.prototype_normalize and (sums.norm(dim=1) > 1.001 * counts).any():
            raise ProtocolError("a sum of unit vectors that is longer than their number")

    def upload_sensitivity(self) -> Mapping[str, float] | None:
        """For embeddings of length 1, whose sums are no longer than their counts, if the merge adds
        up what clients send."""
        private = self.prototype_normalize and self.adds_up
        return {"sums": 2.0, "counts": 2.0} if private else None

    def clip_upload(self, upload: Tensors) -> Tensors:
        """Both to a length of 1, by one factor: a client's means stay what they are, and clients
        with many images count no more than others."""
        share = torch.stack([clip_share([tensor], 1.0) for tensor in upload.values()]).amin()
        return {name: tensor * share for name, tensor in upload.items()}

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

    @property
    def adds_up(self) -> bool:
        """A mean that weighs clients by their counts is a sum over a sum."""
        by_counts = self.prototype_weights == "counts" and self.prototype_merge != "median"
        return by_counts and type(self).merge is PrototypeMethod.merge

    def fitted(self, robust: bool) -> Self:
        if self.prototype_merge != "auto":
            return self
        return replace(self, prototype_merge="median" if robust else "mean")

    def _means(self, sums: Tensor, counts: Tensor, shared: Tensors) -> tuple[Tensor, Tensor]:
        """The new prototype of each class, and which classes have one."""
        if self.prototype_merge == "median":
            return _outvoted(sums / _or_one(counts), counts > 0, shared)
        if self.prototype_weights == "uniform":
            sums, counts = sums / _or_one(counts), (counts > 0).double()
        total = counts.sum(dim=0)
        return sums.sum(dim=0) / _or_one(total), total > 0


def _or_one(counts: Tensor) -> Tensor:
    """Counts to divide by. Those with noise may be fractions, or below 0."""
    return counts.where(counts > 0, 1.0)


def _outvoted(votes: Tensor, cast: Tensor, shared: Tensors) -> tuple[Tensor, Tensor]:
    """The median vote of each coordinate [K, d], and which classes had enough votes [K, 1].

    `votes` [clients, K, d]; `cast` [clients, K, 1] says which votes exist.
    """
    if shared:
        votes = torch.cat([votes, shared["prototypes"].double()[None]])
        cast = torch.cat([cast, shared["known"][None, :, None]])
    count = cast.sum(dim=0)  # [K, 1]
    # Missing votes sort last, so the median is taken over those cast.
    ranked = votes.where(cast, torch.inf).sort(dim=0).values
    middle = torch.stack([(count - 1).clamp(min=0) // 2, count // 2])
    pair = ranked.gather(0, middle.expand(-1, -1, votes.shape[2]))
    enough = count >= ENOUGH_VOTES
    return pair.mean(dim=0).where(enough, 0), enough
