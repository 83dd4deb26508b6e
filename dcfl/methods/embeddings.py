"""Methods with a term on embeddings choose what the term sees of a model with a side head."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from dcfl.methods.method import Method
from dcfl.models.output import Embedding, Output


@dataclass(frozen=True)
class OnEmbeddings(Method):
    # The output of a side head (model.head = "side256"), or what the classifier sees. They are the
    # same in a model without such a head.
    embedding: Embedding = field(default="projection", kw_only=True)

    def embedding_of(self, output: Output) -> Tensor:
        return output.z(self.embedding)
