"""FedDecorr's two forms as loops over pairs of dimensions, and how they relate."""

import numpy as np
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


def client(samples: int = len(LABELS)) -> tuple[Client, Batch]:
    network = Tiny().double().train()
    torch.manual_seed(1)
    images = torch.randn(samples, 1, 3, 3, dtype=torch.float64)
    who = Client(0, 2, network, snapshot(network), {}, {}, toy_client(LABELS), TRAINING)
    return who, Batch(images, torch.tensor((LABELS * 20)[:samples]))


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


def paper(features: Tensor) -> Tensor:
    """(1/d^2) times the sum of all squared correlations; a dead dimension has none."""
    n, d = features.shape
    centred = [x - sum(x.unbind()) / n for x in features.unbind(dim=1)]
    value = features.new_zeros(())
    for a in centred:
        for b in centred:
            var_a, var_b = (a * a).sum() / (n - 1), (b * b).sum() / (n - 1)
            covariance = (a * b).sum() / (n - 1)
            value = value + covariance**2 / ((var_a + 1e-8) * (var_b + 1e-8))
    return value / d**2


def penalty(form: str, who: Client, given: Batch) -> float:
    whole = FedDecorr(mu=1.0, form=form).objective(who)(given)  # type: ignore[arg-type]
    return (whole - FedAvg().objective(who)(given)).item()


@pytest.mark.parametrize(("form", "formula"), [("released", released), ("paper", paper)])
def test_value_and_gradient_are_those_of_the_formula(form, formula) -> None:  # type: ignore[no-untyped-def]
    who, given = client()
    loss = FedDecorr(mu=0.3, form=form).objective(who)(given)
    output = who.model(given.images)
    expected = F.cross_entropy(output.logits, given.labels) + 0.3 * formula(output.embedding)
    require_same(loss, expected, who.model)


def test_the_paper_form_has_the_diagonal_and_no_factor_of_the_batch() -> None:
    who, given = client(64)
    features = who.model(given.images).embedding.detach().numpy()
    rho = np.corrcoef(features[:, :5].T)
    assert penalty("paper", who, given) == pytest.approx((rho**2).sum() / 6**2, rel=1e-6)


def test_the_two_forms_differ_by_the_diagonal_and_the_batch_size() -> None:
    """d^2 paper = live diagonal + d (d - 1) N / (N - 1)^2 released."""
    who, given = client(64)
    off_diagonal = 6 * 5 * 64 / 63**2 * penalty("released", who, given)
    assert 36 * penalty("paper", who, given) == pytest.approx(5 + off_diagonal, rel=1e-6)


def test_features_are_not_normalised_per_sample() -> None:
    """Standardising is per dimension: the scale of one feature does not matter, that of a sample
    does."""
    who, given = client()
    before = penalty("released", who, given)
    with torch.no_grad():
        who.model.body.weight[0] *= 7  # type: ignore[union-attr, operator, index]
        who.model.body.bias[0] *= 7  # type: ignore[union-attr, operator, index]
    assert penalty("released", who, given) == pytest.approx(before, rel=1e-6)
    scaled = given.images * torch.linspace(0.2, 3, len(LABELS), dtype=torch.float64).view(
        -1, 1, 1, 1
    )
    assert penalty("released", who, Batch(scaled, given.labels)) != pytest.approx(before, rel=1e-3)
