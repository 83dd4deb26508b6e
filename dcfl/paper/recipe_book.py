"""All recipes, by name: the paper's own first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dcfl.config import Table, Tables
from dcfl.paper.recipe import REFERENCE, ROWS, CellFactory, Cells, Recipe, recipe
from dcfl.paper.scales import IID, Scale, Where

SPLITS = (IID, 0.5, 0.3)
HARD = Where("cifar10", 0.3, 0.05)  # the split at which questions are asked in detail


def _accuracies(
    scale: Scale, seeds: Sequence[int], datasets: Sequence[str], participation: float
) -> Cells:
    for dataset in datasets:
        for alpha in SPLITS:
            where = Where(dataset, alpha, participation)
            for seed in seeds:
                at = CellFactory(scale, where, seed)
                for row, method in ROWS.items():
                    yield at.cell(row, where.split, method)


@recipe(
    "participation-5",
    "Accuracy at 5 % participation",
    "Ten methods on CIFAR-10 and CIFAR-100, five of a hundred clients in each round.",
    published="participation-5",
)
def participation_5(scale: Scale, seeds: Sequence[int]) -> Cells:
    return _accuracies(scale, seeds, ("cifar10", "cifar100"), 0.05)


@recipe(
    "participation-10",
    "Accuracy at 10 % participation",
    "Ten methods on CIFAR-10 and CIFAR-100, ten of a hundred clients in each round.",
    published="participation-10",
)
def participation_10(scale: Scale, seeds: Sequence[int]) -> Cells:
    return _accuracies(scale, seeds, ("cifar10", "cifar100"), 0.1)


@recipe(
    "participation-2",
    "Accuracy at 2 % participation",
    "Ten methods on CIFAR-10 and CIFAR-100, two of a hundred clients in each round.",
    published="participation-2",
)
def participation_2(scale: Scale, seeds: Sequence[int]) -> Cells:
    return _accuracies(scale, seeds, ("cifar10", "cifar100"), 0.02)


@recipe(
    "tiny-imagenet",
    "Accuracy on Tiny-ImageNet",
    "Ten methods on 200 classes, five of a hundred clients in each round.",
    published="tiny-imagenet",
)
def tiny_imagenet(scale: Scale, seeds: Sequence[int]) -> Cells:
    return _accuracies(scale, seeds, ("tiny-imagenet",), 0.05)


@recipe(
    "ablation",
    "Alignment against uniformity",
    "DCFL with the weights turned round. The paper does not name the participation; its rows with "
    "0.9 and 0.1 are those of its 2 % table.",
    published="ablation",
)
def ablation(scale: Scale, seeds: Sequence[int]) -> Cells:
    for dataset in ("cifar10", "cifar100"):
        for alpha in SPLITS:
            where = Where(dataset, alpha, 0.02)
            for seed in seeds:
                at = CellFactory(scale, where, seed)
                yield at.cell(REFERENCE, where.split, "fedavg")
                for row in ("DCFL-SW", "DCFL-PW"):
                    for align, uniform in ((0.3, 0.7), (0.9, 0.1)):
                        label = f"{row} align={align:g} uniform={uniform:g}"
                        fields = {"align": align, "uniform": uniform}
                        yield at.cell(label, where.split, ROWS[row], fields)


@recipe(
    "similarity",
    "Cosines within and between classes",
    "The paper's figure: how alike the features of test images are, for FedProc and DCFL-PW.",
    picture="similarity",
)
def similarity(scale: Scale, seeds: Sequence[int]) -> Cells:
    for seed in seeds:
        at = CellFactory(scale, HARD, seed)
        for row in ("FedProc", "DCFL-PW"):
            yield at.cell(row, HARD.split, ROWS[row])


IN_QUESTION = ("FedAvg", "FedProc", "DCFL-SW", "DCFL-PW")
READINGS: dict[str, Table] = {
    "sum over the class": {"positives": "same-class", "reduction": "sum"},
    "mean over the class": {"positives": "same-class", "reduction": "mean"},
    "second view": {"positives": "view", "reduction": "sum"},
}


PAPERS_MU = 10.0  # of DCFL on CIFAR


def _candidates() -> Iterator[tuple[str, str, Table]]:
    """Row, method and fields of each reading of DCFL."""
    yield "DCFL-PW", "dcfl-pw", {}
    for label, reading in READINGS.items():
        yield f"DCFL-SW, {label}", "dcfl-sw", reading
    everything: Table = {"reduction": "mean", "negatives": "all-others"}
    yield "DCFL-SW, mean over the class, all others negative", "dcfl-sw", everything


def _on_images_kept_back(**changes: Table) -> Tables:
    """Settings are chosen on images that are neither trained on nor the test images."""
    return {"data": {"holdout": 0.1}, **changes}


@recipe(
    "lr-search",
    "The learning rate",
    "Chosen for FedAvg on a tenth of the training images that is kept back, for all methods.",
    columns="lr",
    chooses=True,
)
def lr_search(scale: Scale, seeds: Sequence[int]) -> Cells:
    for dataset in ("cifar10", "cifar100", "tiny-imagenet"):
        for seed in seeds[:1]:
            at = CellFactory(scale, Where(dataset, 0.3, 0.05), seed)
            for lr in (0.03, 0.06, 0.1, 0.2, 0.4):
                changes = _on_images_kept_back(training={"lr": lr})
                yield at.cell(REFERENCE, f"{lr:g}", "fedavg", changes=changes)


@recipe(
    "mu-search",
    "The weight of each method's own term",
    "Chosen on a tenth of the training images that is kept back, never on the test images.",
    columns="mu (FedSOL: rho)",
    chooses=True,
)
def mu_search(scale: Scale, seeds: Sequence[int]) -> Cells:
    for dataset in ("cifar10", "cifar100", "tiny-imagenet"):
        where = Where(dataset, 0.3, 0.05)
        for seed in seeds[:1]:
            at = CellFactory(scale, where, seed)
            for row, method in ROWS.items():
                values: Sequence[float | None] = scale.mu_grid
                if row in (REFERENCE, "FedSOL"):
                    values = (None,) if row == REFERENCE else (0.5, 1.0, 2.0)
                key = "rho" if row == "FedSOL" else "mu"
                for value in values:
                    column = "" if value is None else f"{value:g}"
                    fields = {} if value is None else {key: value}
                    yield at.cell(row, column, method, fields, _on_images_kept_back())


@recipe(
    "weight-search",
    "The weights of pull and push",
    "DCFL over lambda_a (lambda_u = 1 - lambda_a), without a projection head and with one beside "
    "the classifier, on the same images kept back as mu.",
    columns="lambda_a",
)
def weight_search(scale: Scale, seeds: Sequence[int]) -> Cells:
    for seed in seeds[:1]:
        at = CellFactory(scale, HARD, seed)
        yield at.cell(REFERENCE, "", "fedavg", changes=_on_images_kept_back())
        for head in ("none", "side256"):
            changes = _on_images_kept_back(model={"head": head})
            for row in ("DCFL-SW", "DCFL-PW"):
                for mu in (0.1, 1.0, PAPERS_MU):
                    label = f"{row}, {'no' if head == 'none' else 'side'} head, mu {mu:g}"
                    for align in (0.5, 0.7, 0.9):
                        fields = {"mu": mu, "align": align, "uniform": round(1 - align, 10)}
                        yield at.cell(label, f"{align:g}", ROWS[row], fields, changes)


@recipe(
    "server-side",
    "DCFL with optimisers at the server",
    "The paper says that DCFL goes with any server-side rule, and does not try it.",
    columns="server",
)
def server_side(scale: Scale, seeds: Sequence[int]) -> Cells:
    rules: dict[str, Table] = {
        "average": {},
        "FedAvgM": {"optimizer": "fedavgm"},
        "FedAdam": {"optimizer": "fedadam"},
        "FedYogi": {"optimizer": "fedyogi"},
        "FedACG": {"optimizer": "fedacg"},
        "FedNova": {"aggregation": "fednova"},
    }
    for seed in seeds:
        at = CellFactory(scale, HARD, seed)
        for column, rule in rules.items():
            for row in ("FedAvg", "DCFL-SW", "DCFL-PW"):
                changes = {"server": rule}
                yield at.cell(row, column, ROWS[row], changes=changes)


@recipe(
    "sample-wise",
    "What DCFL-SW means by positives",
    "Eq. 10 sums over all positives of the class; the text also speaks of one positive. Each "
    "reading with the gradient clipped at 10 and not, and the momentum that the paper does not "
    "name; on a tenth of the training images that is kept back.",
    columns="mu, clipping",
)
def sample_wise(scale: Scale, seeds: Sequence[int]) -> Cells:
    for seed in seeds[:1]:
        at = CellFactory(scale, HARD, seed)
        for label, training in {
            "": {},
            "lr 0.01, momentum 0.9": {"lr": 0.01, "momentum": 0.9},
            "lr 0.01, momentum 0": {"lr": 0.01, "momentum": 0.0},
        }.items():
            row, changes = (
                " ".join(filter(None, [REFERENCE, label])),
                _on_images_kept_back(training=training),
            )
            yield at.cell(row, "", "fedavg", changes=changes)
        for label, reading in READINGS.items():
            for clip in (10.0, 0.0):
                for mu in scale.mu_grid:
                    column = f"{mu:g}, {'clipped at 10' if clip else 'not clipped'}"
                    fields = {**reading, "mu": mu}
                    changes = _on_images_kept_back(training={"max_grad_norm": clip})
                    row = f"DCFL-SW, {label}"
                    yield at.cell(row, column, "dcfl-sw", fields, changes)


HEADS = {"none": "none", "before the classifier": "mlp256", "beside it": "side256"}


@recipe(
    "readings",
    "Which reading of the paper has its orders",
    "z_i = h(f(x_i)): is h nothing, a projection head before the classifier, or one beside it? Are "
    "positives summed, averaged, or a second view; are negatives the other classes, or all others? "
    "Each at the paper's mu, and at the one that is best at this scale.",
    columns="head",
)
def readings(scale: Scale, seeds: Sequence[int]) -> Cells:
    for seed in seeds:
        at = CellFactory(scale, HARD, seed)
        for column, head in HEADS.items():
            changes: Tables = {"model": {"head": head}}
            # One beside the classifier leaves FedAvg as it is, to the last bit: a cell for both.
            before = changes if head.startswith("mlp") else {}
            yield at.cell(REFERENCE, column, "fedavg", changes=before)
            for row in ("FedSCL", "FedProc"):
                yield at.cell(row, column, ROWS[row], changes=changes)
            chosen = scale.methods.get("dcfl-pw", {}).get("mu")
            for mu in dict.fromkeys(filter(None, (PAPERS_MU, chosen))):
                for row, method, fields in _candidates():
                    label = f"{row}, mu {mu:g}"
                    yield at.cell(label, column, method, {**fields, "mu": mu}, changes)


@recipe(
    "coupling",
    "What decoupling alone is worth",
    "FedSCL and FedProc have the positives in the denominator and weigh pull and push alike. DCFL "
    "takes them out and weighs 0.9 and 0.1: here also 0.5 and 0.5, against the two at half its mu, "
    "where the denominator is the only difference.",
)
def coupling(scale: Scale, seeds: Sequence[int]) -> Cells:
    # mu times 1/2 and 1/2 is mu/2 times 1 and 1.
    alike: Table = {"mu": PAPERS_MU, "align": 0.5, "uniform": 0.5}
    coupled: Table = {"mu": PAPERS_MU / 2}
    headless: Tables = {"model": {"head": "none"}}  # all of them, also where a scale has heads
    for dataset, alpha in (("cifar10", IID), ("cifar10", 0.3), ("cifar100", 0.3)):
        where = Where(dataset, alpha, 0.05)
        for seed in seeds:
            at = CellFactory(scale, where, seed)
            yield at.cell(REFERENCE, where.split, "fedavg")
            for row, partner in (("FedSCL", "DCFL-SW"), ("FedProc", "DCFL-PW")):
                yield at.cell(row, where.split, ROWS[row], coupled, headless)
                label = f"{partner}, weighed alike"
                yield at.cell(label, where.split, ROWS[partner], alike, headless)
                yield at.cell(partner, where.split, ROWS[partner], changes=headless)


@recipe(
    "heterogeneity",
    "The gap to FedAvg and the skew of the labels",
    "From clients with one or two classes (alpha 0.05) to an even split.",
    columns="alpha",
    picture="lines",
)
def heterogeneity(scale: Scale, seeds: Sequence[int]) -> Cells:
    for alpha in (0.05, 0.1, 0.3, 1.0, IID):
        where = Where("cifar10", alpha, 0.05)
        for seed in seeds:
            at = CellFactory(scale, where, seed)
            for row in IN_QUESTION:
                yield at.cell(row, where.split, ROWS[row])


@recipe(
    "positives",
    "The gap to FedAvg and the number of positives",
    "Larger batches bring more positives for every image, and more negatives.",
    columns="batch size",
    picture="lines",
)
def positives(scale: Scale, seeds: Sequence[int]) -> Cells:
    for size in (16, 64, 128):
        changes: Tables = {"training": {"batch_size": size}}
        for seed in seeds:
            at = CellFactory(scale, HARD, seed)
            for row in IN_QUESTION:
                yield at.cell(row, str(size), ROWS[row], changes=changes)


@recipe(
    "weights",
    "Alignment, uniformity and their common weight",
    "DCFL-PW over lambda_a (lambda_u = 1 - lambda_a) and mu.",
    columns="lambda_a",
    picture="map",
)
def weights(scale: Scale, seeds: Sequence[int]) -> Cells:
    for seed in seeds:
        at = CellFactory(scale, HARD, seed)
        yield at.cell(REFERENCE, "", "fedavg")
        for mu in scale.mu_grid[-3:]:
            for align in (0.1, 0.5, 0.9):
                fields = {"mu": mu, "align": align, "uniform": round(1 - align, 10)}
                yield at.cell(f"mu = {mu:g}", f"{align:g}", "dcfl-pw", fields)


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        participation_5,
        participation_10,
        participation_2,
        tiny_imagenet,
        ablation,
        similarity,
        lr_search,
        mu_search,
        weight_search,
        readings,
        server_side,
        sample_wise,
        coupling,
        heterogeneity,
        positives,
        weights,
    )
}
