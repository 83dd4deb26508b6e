"""Turns the outcome of a round or a run into rows; pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dcfl import tensors as named
from dcfl.data import Dataset, FederatedData
from dcfl.engines.engine import OwnScores, SiteScoring
from dcfl.errors import TooFewClients
from dcfl.evaluation import OWN_IMAGES, OWN_MIX, Evaluation, ema, fairness, finite_or_none
from dcfl.experiment import FederationSettings
from dcfl.federation import Round
from dcfl.messages import LOG, Tensors
from dcfl.runs.evaluations import sum_of_sites, worst_words
from dcfl.runs.folder import RecordedRun
from dcfl.runs.model_file import Kept
from dcfl.runs.prepare import Prepared, privacy_spent
from dcfl.runs.rows import ClassRecall, ClientRow, PersonalRow, RoundRow, Summary
from dcfl.server import ClientReport, Server
from dcfl.system.wording import printable

TOTALS = ("bytes_up", "bytes_down", "sampled", "ok", "failed", "late", "rejected", "dropped")
AVERAGED = ("accuracy", "client_accuracy")  # over rounds


class Scored(NamedTuple):
    round: int
    accuracy: float


@dataclass(frozen=True)
class RoundsSoFar:
    last: RoundRow | None = None  # it also has MAX and EMA
    totals: Mapping[str, Any] = field(default_factory=lambda: dict.fromkeys(TOTALS, 0))  # integers
    used: int = 0  # replies that entered the model, over all rounds
    unchanged: int = 0  # the latest rounds in a row that did not change the model
    best: Scored | None = None  # the first round with the highest accuracy
    since_best: int = 0  # rounds scored after it
    judges: tuple[int, ...] = ()  # the sites whose images make up the accuracy, since the first
    # The last round that has a value, by the quantity that has a moving average.
    known: Mapping[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.last.round if self.last else 0

    def and_then(self, row: RoundRow) -> RoundsSoFar:
        so_far = RoundsSoFar(
            last=row,
            totals={name: total + row[name] for name, total in self.totals.items()},
            used=self.used + row.used,
            # A round without a client to ask has failed in nothing.
            unchanged=0 if row.used else self.unchanged + bool(row.sampled),
            best=self.best,
            since_best=self.since_best + (row.accuracy is not None),
            judges=self.judges or tuple(site.client for site in row.sites if site.weight),
            known={**self.known, **{n: row.round for n in AVERAGED if row[n] is not None}},
        )
        if row.accuracy is None or (self.best and row.accuracy <= self.best.accuracy):
            return so_far
        return replace(so_far, best=Scored(row.round, row.accuracy), since_best=0)


def reason_to_end(federation: FederationSettings, rounds: RoundsSoFar) -> str:
    """Why the run ends before its last round; empty if it goes on. Depends on the rows alone, so
    that a resumed run ends where an uninterrupted one does."""
    last, best = rounds.last, rounds.best
    if last is None or best is None or last.accuracy is None or last.round >= federation.rounds:
        return ""
    images = "kept-back images" if federation.choose_by == "holdout" else "test images"
    if 0 < federation.target_accuracy <= last.accuracy:
        return (
            f"stopped after round {last.round}: the global model has {last.accuracy:.2f} % of the "
            f"{images} right, and federation.target_accuracy is {federation.target_accuracy:g}"
        )
    if 0 < federation.patience <= rounds.since_best:
        return (
            f"stopped after round {last.round}: the global model's accuracy on {images} was best "
            f"in round {best.round} ({best.accuracy:.2f} %), and federation.patience is "
            f"{federation.patience}"
        )
    return ""


EMPTY_ROUNDS = 3  # this many in a row end the run


def require_usable_rounds(
    rounds: RoundsSoFar, clients: Sequence[ClientReport], server: Server, folder: Path
) -> None:
    """End a run whose last rounds did not change the model. `clients`: those of the last round."""
    if rounds.unchanged < EMPTY_ROUNDS:
        return
    wanted = server.wanted(sum(client.outcome == "ok" for client in clients))
    lost = next(client for client in reversed(clients) if client.outcome != "ok")
    few = "no client has" if wanted == 1 else f"fewer than {wanted} clients have"
    raise TooFewClients(
        f"{few} given a usable reply for {EMPTY_ROUNDS} rounds "
        f"(client {lost.client}: {lost.reason}); the rounds so far are in {folder}"
    )


class Participation(NamedTuple):
    name: str
    asked: int  # in how many rounds
    replied: int  # in how many of them, with a reply that was valid
    rounds: int  # of the run

    @property
    def share(self) -> float:
        return self.replied / self.asked

    @property
    def sentence(self) -> str:
        among = "rounds" if self.asked == self.rounds else "rounds in which it was asked"
        return f"{self.name} took part in {self.replied} of {self.asked} {among}"


def replies_used(run: RecordedRun) -> tuple[int, int]:
    return sum(row.used for row in run.rounds), sum(row.sampled for row in run.rounds)


MOST_ABSENT = 10  # sites of a run that are told of


def seldom_there(run: RecordedRun) -> list[Participation]:
    """The sites that took part in a smaller share of their rounds than another; clients of a
    simulation, which have no names, are not told one by one."""
    if all(row.ok == row.sampled for row in run.rounds):
        return []
    rows = [row for row in run.clients if row.site or run.at_sites]
    names = {row.client: row.site or f"site {row.client}" for row in rows}
    visits = Counter(row.client for row in rows)
    replies = Counter(row.client for row in rows if row.outcome == "ok")
    found = [
        Participation(names[client], visits[client], replies[client], len(run.rounds))
        for client in sorted(names)
    ]
    most = max((one.share for one in found), default=0.0)
    return [one for one in found if one.share < most]


def percent(value: float | None) -> str:
    """Not known, if a site is absent whose test images belong to it."""
    return "?" if value is None else f"{value:.2f} %"


def global_words(summary: Summary, accuracy: str = "accuracy") -> str:
    highest, average = percent(summary.max_accuracy), percent(summary.ema_accuracy)
    return f"{accuracy} {percent(summary.final_accuracy)}, MAX {highest}, EMA {average}"


def own_words(summary: Summary) -> str:
    worst = percent(summary.worst_decile_personal_accuracy)
    found, of = summary.personal_models, summary.clients
    return (
        f"{percent(summary.judged_accuracy)} on average, each on "
        f"{OWN_IMAGES if summary.own_images else OWN_MIX}; {worst} the {worst_words(found)}"
        + (f"; {found} of {of} clients have one" if found < of else "")
    )


class Judged(NamedTuple):
    result: Evaluation
    client_accuracies: Tensor  # [clients], percent; on own images or mix of classes; or NaN


def round_row(
    round: Round, judged: Judged | None, before: RoundsSoFar, **measured: Any
) -> RoundRow:
    """`judged`: None after a round whose model was not scored, or not by all sites. `before`: the
    rounds whose MAX and EMA the new row continues. `measured`: fields that are known already."""
    accuracy, loss = judged.result[:2] if judged else (None, None)
    mean, worst = fairness(judged.client_accuracies) if judged else (None, None)
    outcomes = Counter(client.outcome for client in round.clients)
    logs = dict.fromkeys(n for client in round.clients for n in client.metrics if n[:4] == LOG)
    found = {n: _mean_of(n, round.clients, lambda client: client.num_examples) for n in logs}
    means = {n.removeprefix(LOG): mean for n, mean in found.items() if mean is not None}
    timed = any(client.ended is not None for client in round.clients)
    number, clock = round.state.round, round.state.clock
    highest, average = _continued(before, "accuracy", accuracy, number)
    highest_mean, average_mean = _continued(before, "client_accuracy", mean, number)
    return RoundRow(
        round=number,
        accuracy=accuracy,
        max_accuracy=highest,
        ema_accuracy=average,
        client_accuracy=mean,
        max_client_accuracy=highest_mean,
        ema_client_accuracy=average_mean,
        worst_decile_accuracy=worst,
        loss=loss,
        train_loss=_mean_of("loss", round.clients, lambda client: client.num_steps),
        bytes_up=sum(client.bytes_up for client in round.clients),
        bytes_down=sum(client.bytes_down for client in round.clients),
        sampled=len(round.clients),
        ok=outcomes["ok"],
        failed=outcomes["failed"],
        late=outcomes["late"],
        rejected=outcomes["rejected"],
        used=sum(client.used for client in round.clients),
        virtual_time=clock.now if clock and timed else None,
        logged={**means, **round.logged},
        **measured,
    )


def _continued(
    before: RoundsSoFar, quantity: str, value: float | None, round: int
) -> tuple[float | None, float | None]:
    """Update MAX and EMA of a quantity with the value after this round, if there is one."""
    if before.last is None or quantity not in before.known:
        return value, value
    highest, average = before.last[f"max_{quantity}"], before.last[f"ema_{quantity}"]
    if value is None:
        return highest, average
    return max(highest, value), ema([average, value], rounds=[before.known[quantity], round])


def _mean_of(
    name: str, clients: Sequence[ClientReport], weight: Callable[[ClientReport], int]
) -> float | None:
    told = [client for client in clients if client.outcome == "ok" and name in client.metrics]
    total = sum(client.metrics[name] * weight(client) for client in told)
    weights = sum(map(weight, told))
    return total / weights if weights else None


def client_rows(
    round: Round, judged: Judged | None, site_names: Sequence[str] = ()
) -> list[ClientRow]:
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
    of_global: Tensor,
    of_own: Tensor,
    on_sites: Tensor,
    site_names: Sequence[str] = (),
    sites: SiteScoring | None = None,
) -> list[PersonalRow]:
    """One row per client, by its accuracies under the global model and under its own, and those of
    its own on all clients' images; or NaN."""
    pairs = zip(of_global.tolist(), of_own.tolist(), strict=True)
    return [
        PersonalRow(
            client=client,
            global_accuracy=finite_or_none(common),
            personal_accuracy=finite_or_none(own),
            site=site_names[client] if site_names else "",
            on_sites=tuple(map(finite_or_none, on_sites[client].tolist())),
            withheld=sites.kept_back(client) if sites else (),
        )
        for client, (common, own) in enumerate(pairs)
    ]


def class_recalls(
    dataset: Dataset, result: Evaluation | None, own_scores: Sequence[OwnScores]
) -> tuple[ClassRecall, ...]:
    """How many images of each class the final model recognises. Where sites have the test images,
    they count them, and the recalls are those of their evaluation; nothing is said of what nobody
    scored."""
    if result is None or not (len(dataset.test) or own_scores):
        return ()
    images = dataset.cell_sizes.sum(dim=0).double()
    for one in own_scores:
        images += one.scores.images_by_class
    recalls = sum_of_sites(own_scores).recall if own_scores else result.by_class
    rows = zip(dataset.class_names, images.tolist(), recalls.tolist(), strict=True)
    return tuple(
        ClassRecall(printable(name), round(count), finite_or_none(recall))
        for name, count, recall in rows
    )


def most_frequent_class(data: FederatedData) -> tuple[float | None, Tensor]:
    """The accuracy, in percent, of a model that answers the most frequent class of all training
    images; and of each client, if its model answers the most frequent one of its own: [clients],
    on the images that its other numbers are on. None and NaN where nobody here knows the images."""
    mixes, images = data.label_mixes(), data.dataset.cell_sizes.double()
    sizes = torch.from_numpy(data.partition.sizes).double()
    answer, answers = (sizes @ mixes.nan_to_num()).argmax(), mixes.argmax(dim=1, keepdim=True)
    overall = 100 * images.sum(dim=0)[answer] / images.sum()
    # Without owners, all test images count, weighted to the client's mix of those classes.
    shares = images if data.dataset.test.owners is not None else mixes * (images.sum(dim=0) > 0)
    by_client = 100 * shares.gather(1, answers).flatten() / shares.sum(dim=1)
    return finite_or_none(float(overall)), by_client


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
    most_frequent, by_client = most_frequent_class(prepared.data)
    mean, worst = fairness(by_client)
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
        own_images=bool(last.sites),
        personal_accuracy=own_mean,
        worst_decile_personal_accuracy=own_worst,
        personal_models=len(own),
        most_frequent_accuracy=most_frequent,
        most_frequent_client_accuracy=mean,
        worst_decile_most_frequent_accuracy=worst,
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
        clock=experiment.clock.words if experiment.clock.active else "",
        virtual_time=last.virtual_time,
    )
