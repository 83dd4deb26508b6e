"""Pure functions of tensors: the contrastive losses and their relatives."""

from dcfl.losses.contrastive import (
    cosine_similarity,
    decoupled_contrastive,
    model_contrastive,
    supervised_contrastive,
)
from dcfl.losses.decorrelation import decorrelation
from dcfl.losses.relaxed import relaxed_contrastive

__all__ = [
    "cosine_similarity",
    "decorrelation",
    "decoupled_contrastive",
    "model_contrastive",
    "relaxed_contrastive",
    "supervised_contrastive",
]
