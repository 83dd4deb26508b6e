"""Turns the outcome of a round or a run into rows; pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import nan
from typing import NamedTuple

import torch
from torch import Tensor

from dcfl import tensors as named
from dcfl.data import Dataset
from dcfl.engines.engine import OwnScores, Remarks
from dcfl.evaluation import Evaluation, fairness, finite_or_none, max_and_ema
from dcfl.federation import Round
from dcfl.messages import Tensors
from dcfl.runs.early_end import reason_to_end
from dcfl.runs.evaluations import sum_of_sites
from dcfl.runs.model_file import Kept
from dcfl.runs.prepare import Prepared, privacy_spent
from dcfl.runs.rounds_so_far import RoundsSoFar
from dcfl.runs.rows import ClassRecall, ClientRow, PersonalRow, RoundRow, Summary
from dcfl.server import ClientReport
from dcfl.system.printable import printable

NO_REMARKS = Remarks()


class Judged(NamedTuple):
    """The scores of a round's model: on the test images and for each client."""

    result: Evaluation
    client_accuracies: Tensor  # [clients], percent; on own images or mix of classes; or NaN


class Spent(NamedTuple):
    """Seconds that a round took."""

    training: float
    evaluating: float  # without those that overlapped with training


def round_row(
    round: Round,
    judged: Judged | None,
    spent: Spent,
    before: RoundRow | None,
    dropped: int = 0,
    remarks: Remarks = NO_REMARKS,
) -> RoundRow:
    """`judged`: None after a round whose model was not scored. `before`: the previous row, whose
    MAX and EMA the new row continues."""
    accuracy, loss = judged.result[:2] if judged else (None, None)
    mean, worst = fairness(judged.client_accuracies) if judged else (None, None)
    outcomes = Counter(client.outcome for client in round.clients)
    highest, average = _continued(before, "accuracy", accuracy)
    highest_mean, average_mean = _continued(before, "client_accuracy", mean)
    return RoundRow(
        round=round.state.round,
        accuracy=accuracy,
        max_accuracy=highest,
        ema_accuracy=average,
        client_accuracy=mean,
        max_client_accuracy=highest_mean,
        ema_client_accuracy=average_mean,
        worst_decile_accuracy=worst,
        loss=loss,
        train_loss=_training_loss(round.clients),
        seconds=spent.training + spent.evaluating,
        evaluation_seconds=spent.evaluating,
        bytes_up=sum(client.bytes_up for client in round.clients),
        bytes_down=sum(client.bytes_down for client in round.clients),
        sampled=len(round.clients),
        ok=outcomes["ok"],
        failed=outcomes["failed"],
        late=outcomes["late"],
        rejected=outcomes["rejected"],
        used=sum(client.used for client in round.clients),
        dropped=dropped,
        sites=remarks.sites if judged else (),
        notices=remarks.notices,
    )


def _continued(
    before: RoundRow | None, quantity: str, value: float | None
) -> tuple[float | None, float | None]:
    """Update MAX and EMA of a quantity with a new value."""
    highest, _ = max_and_ema([before[f"max_{quantity}"] if before else None, value])
    _, average = max_and_ema([before[f"ema_{quantity}"] if before else None, value])
    return highest, average


def _training_loss(clients: Sequence[ClientReport]) -> float | None:
    """The mean over all steps of all clients with a valid reply that told it."""
    valid = [client for client in clients if client.outcome == "ok" and "loss" in client.metrics]
    steps = sum(client.num_steps for client in valid)
    total = sum(client.metrics["loss"] * client.num_steps for client in valid)
    return total / steps if steps else None


def client_rows(
    round: Round, judged: Judged | None, site_names: Sequence[str] = ()
) -> list[ClientRow]:
    """One row per sampled client."""
    clients = [client.client for client in round.clients]
    sampled = judged.client_accuracies[clients].tolist() if judged else [nan] * len(clients)
    return [
        ClientRow(
            round=round.state.round,
            site=site_names[client.client] if site_names else "",
            own_accuracy=finite_or_none(accuracy),
            **vars(client),
        )
        for client, accuracy in zip(round.clients, sampled, strict=True)
    ]


def personal_rows(
    of_global: Tensor, of_own: Tensor, site_names: Sequence[str] = ()
) -> list[PersonalRow]:
    """One row per client, by its accuracies under the global model and under its own; or NaN."""
    pairs = zip(of_global.tolist(), of_own.tolist(), strict=True)
    return [
        PersonalRow(
            client=client,
            global_accuracy=finite_or_none(common),
            personal_accuracy=finite_or_none(own),
            site=site_names[client] if site_names else "",
        )
        for client, (common, own) in enumerate(pairs)
    ]


def class_recalls(
    dataset: Dataset, result: Evaluation | None, own_scores: Sequence[OwnScores]
) -> tuple[ClassRecall, ...]:
    """Where sites have the test images, they count them, and the recalls are those of their
    evaluation; nothing is said of what nobody scored."""
    if result is None or not (len(dataset.test) or own_scores):
        return ()
    images = torch.bincount(dataset.test.labels.cpu(), minlength=dataset.classes).double()
    for one in own_scores:
        images += one.scores.images_by_class
    recalls = sum_of_sites(own_scores).recall if own_scores else result.by_class
    rows = zip(dataset.class_names, images.tolist(), recalls.tolist(), strict=True)
    return tuple(
        ClassRecall(printable(name), round(count), finite_or_none(recall))
        for name, count, recall in rows
    )


def summarise(
    prepared: Prepared,
    models: Mapping[Kept, Tensors],
    rounds: RoundsSoFar,
    seconds: float,
    repeated: int = 0,
    personal: Sequence[PersonalRow] = (),
    recalls: tuple[ClassRecall, ...] = (),
) -> Summary:
    """`models`: the weights that are written. `rounds`: all of them. `repeated`: rounds that a
    resumed run did twice, which may cost privacy. `personal`: how the clients fare with models of
    their own. `recalls`: of the last model."""
    experiment, last = prepared.experiment, rounds.last
    if last is None:
        raise ValueError("a run without a round has no summary")
    best = rounds.best if "best" in models else None
    own = [row.personal_accuracy for row in personal if row.personal_accuracy is not None]
    own_mean, own_worst = fairness(torch.tensor(own, dtype=torch.float64))
    return Summary(
        method=experiment.method.name,
        dataset=prepared.data.dataset.name,
        rounds=last.round,
        max_accuracy=last.max_accuracy,
        ema_accuracy=last.ema_accuracy,
        final_accuracy=last.accuracy,
        recalls=recalls,
        client_accuracy=last.client_accuracy,
        max_client_accuracy=last.max_client_accuracy,
        ema_client_accuracy=last.ema_client_accuracy,
        worst_decile_accuracy=last.worst_decile_accuracy,
        personal_accuracy=own_mean,
        worst_decile_personal_accuracy=own_worst,
        personal_models=len(own),
        seconds=seconds,
        **rounds.totals,
        parameters=sum(parameter.numel() for parameter in prepared.model.parameters()),
        clients=experiment.data.population,
        seed=experiment.federation.seed,
        evaluate_every=experiment.federation.evaluate_every,
        partition_sha256=prepared.data.partition.sha256,
        weights_sha256=named.sha256(models["last"]),
        best_round=best.round if best else None,
        best_accuracy=best.accuracy if best else None,
        best_sha256=named.sha256(models["best"]) if best else "",
        stopped=reason_to_end(experiment.federation, rounds),
        **privacy_spent(experiment, last.round, repeated),
    )
