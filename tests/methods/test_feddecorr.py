"""FedDecorr's penalty as a loop over pairs of dimensions."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcfl.client import Batch, Client
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.feddecorr import FedDecorr
from dcfl.models import FeatureModel
from dcfl.models.output import Output
from dcfl.tensors import snapshot
from dcfl.testing.toys import TRAINING, toy_client
from tests.methods.cases import LABELS, require_same


class Tiny(FeatureModel):
    """Six features, the last of which is dead."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.classifier = nn.Linear(9, 6), nn.Linear(6, 4)
        with torch.no_grad():
            self.body.bias[-1] = -100.0

    def forward(self, images: Tensor) -> Output:
        before = self.body(images.flatten(1))
        embedding = F.relu(before)
        return Output(self.classifier(embedding), embedding, (before,))


def client() -> tuple[Client, Batch]:
    network = Tiny().double().train()
    torch.manual_seed(1)
    images = torch.randn(len(LABELS), 1, 3, 3, dtype=torch.float64)
    who = Client(0, 2, network, snapshot(network), {}, {}, toy_client(LABELS), TRAINING)
    return who, Batch(images, torch.tensor(LABELS))


def released(features: Tensor) -> Tensor:
    """(1/N) mean over a != b of C_ab^2, C = X~^T X~."""
    n, d = features.shape
    columns = []
    for x in features.unbind(dim=1):
        mean = sum(x.unbind()) / n
        variance = sum((v - mean) ** 2 for v in x.unbind()) / (n - 1)
        columns.append([(v - mean) / (variance + 1e-8) ** 0.5 for v in x.unbind()])
    squares = [
        sum(p * q for p, q in zip(columns[a], columns[b], strict=True)) ** 2
        for a in range(d)
        for b in range(d)
        if a != b
    ]
    return sum(squares) / len(squares) / n


def penalty(who: Client, given: Batch) -> float:
    return (FedDecorr(mu=1.0).objective(who)(given) - FedAvg().objective(who)(given)).item()


def test_value_and_gradient_are_those_of_the_formula() -> None:
    who, given = client()
    loss = FedDecorr(mu=0.3).objective(who)(given)
    output = who.model(given.images)
    expected = F.cross_entropy(output.logits, given.labels) + 0.3 * released(output.embedding)
    require_same(loss, expected, who.model)


def test_features_are_not_normalised_per_sample() -> None:
    """Standardising is per dimension: the scale of one feature does not matter, that of a sample
    does."""
    who, given = client()
    before = penalty(who, given)
    with torch.no_grad():
        who.model.body.weight[0] *= 7  # type: ignore[union-attr, operator, index]
        who.model.body.bias[0] *= 7  # type: ignore[union-attr, operator, index]
    assert penalty(who, given) == pytest.approx(before, rel=1e-6)
    scaled = given.images * torch.linspace(0.2, 3, len(LABELS), dtype=torch.float64).view(
        -1, 1, 1, 1
    )
    assert penalty(who, Batch(scaled, given.labels)) != pytest.approx(before, rel=1e-3)
