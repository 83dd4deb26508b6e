"""Why does DCFL help, and when? Models of the `mini` scale looked at in the course of training.

    python benchmarks/course.py --data DIR --out benchmarks/results/course.json

CIFAR-10 with Dirichlet 0.3 and 5 % participation: turns of features from round to round and from
client to client, cosines of updates, alignment, uniformity, dimensions in use, training loss. Two
runs at a time; those that the file has already are not repeated. docs/why.md shows it.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from benchmarks.records import keep, kept_runs, side_by_side
from dcfl import tensors as named
from dcfl.analysis.drift import Beheld, compare_clients, mean_turn, trainable
from dcfl.analysis.similarity import drawn, look_at, measure_similarity
from dcfl.client import frozen
from dcfl.config import Table, Tables
from dcfl.engines.engine import Engine, Session
from dcfl.engines.runner import reproducible
from dcfl.experiment import Experiment
from dcfl.federation import Round, federate, sample_cohort
from dcfl.models import FeatureModel
from dcfl.models.output import Embedding
from dcfl.paper.recipe_book import HARD
from dcfl.paper.scales import MINI
from dcfl.runs.connect import connect
from dcfl.runs.prepare import Prepared, prepare
from dcfl.server import Server, ServerState
from dcfl.trained.subject import embed

MOST_IMAGES = 2000  # of the test images


@dataclass(frozen=True)
class Moment:
    """The global model after a round."""

    round: int
    accuracy: float  # percent, of the images looked at
    train_loss: float  # mean over the round's clients
    turn: float  # mean 1 - cos between features after this round and after the one before
    client_turn: float  # the same between a client's model and the global one it began with
    update_cosine: float  # mean cosine between the updates of two clients
    spaces: dict[Embedding, dict[str, float]]  # cosines, alignment, uniformity, effective rank

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def follow(experiment: Experiment, rounds: Collection[int], clients: int = 10) -> Iterator[Moment]:
    """Train, and look at the model after these rounds (from 2). `clients`: how many train one more
    round each time, of which nothing is kept: the training is the same as without looking."""
    prepared = prepare(experiment)
    with TemporaryDirectory() as folder, reproducible(prepared.experiment.engine.threads):
        where = (prepared.runner, prepared.placement, Path(folder) / "memories")
        session = Session("course", prepared.experiment, *where)
        with connect(session) as engine:
            yield from _Course(prepared, engine, clients).moments(rounds)


class _Course:
    def __init__(self, prepared: Prepared, engine: Engine, clients: int) -> None:
        self._prepared, self._engine, self._clients = prepared, engine, clients
        self._server: Server = prepared.server()
        dataset, seed = prepared.data.dataset, prepared.experiment.federation.seed
        self._images = dataset.test[drawn(len(dataset.test), MOST_IMAGES, seed)]

    def moments(self, rounds: Collection[int]) -> Iterator[Moment]:
        federation = self._prepared.experiment.federation
        state = ServerState(0, named.snapshot(self._prepared.model), {}, {})
        before: Tensor | None = None
        for round in federate(
            self._server,
            self._engine,
            state,
            max(rounds),
            federation.share,
            federation.seed,
        ):
            number = round.state.round
            if number + 1 in rounds or number in rounds:
                features = self._embedded(self._model(round), "features")[0]
                if number in rounds and before is not None:
                    yield self._moment(round, mean_turn(before, features))
                before = features

    def _model(self, round: Round) -> FeatureModel:
        return frozen(self._prepared.model, round.state.weights)

    def _embedded(self, model: FeatureModel, which: Embedding) -> tuple[Tensor, Tensor]:
        return embed(model, self._images, self._prepared.data.dataset.preparation, which)

    def _moment(self, round: Round, turn: float) -> Moment:
        experiment, model = self._prepared.experiment, self._model(round)
        federation, labels = experiment.federation, self._images.labels
        side = experiment.model.head.startswith("side")
        spaces: dict[Embedding, dict[str, float]] = {}
        for which in ("features", "projection") if side else ("features",):
            embeddings, logits = self._embedded(model, which)
            spaces[which] = _geometry(embeddings, labels, federation.seed)
        # Clients of another draw than the next round's own, which will train it.
        share = min(1.0, self._clients / experiment.data.population)
        cohort = sample_cohort(
            experiment.data.population,
            share,
            federation.seed,
            federation.rounds + round.state.round,
        )
        names = trainable(self._prepared.model)
        beheld = Beheld(model, names, self._images, self._prepared.data.dataset.preparation)
        broadcast = self._server.broadcast(round.state)
        drift = compare_clients(beheld, self._engine, broadcast, cohort)
        self._engine.settle(())
        losses = [report.metrics["loss"] for report in round.clients if report.used]
        return Moment(
            round.state.round,
            100 * float((logits.argmax(dim=1) == labels).double().mean()),
            fmean(losses),
            turn,
            drift.features,
            drift.agreement,
            spaces,
        )


def _geometry(embeddings: Tensor, labels: Tensor, seed: int) -> dict[str, float]:
    similarity = measure_similarity(embeddings, labels)
    _, dimensions = look_at(embeddings, labels, seed)
    return {
        "intra": similarity.intra.mean,
        "inter": similarity.inter.mean,
        "overlap": similarity.overlap,
        "alignment": similarity.alignment,
        "uniformity": similarity.uniformity,
        "effective_rank": dimensions.effective_rank,
    }


# By row: the method, its fields and the projection head. FedAvg is the same with and without one.
METHODS: dict[str, tuple[str, Table, str]] = {
    "FedAvg": ("fedavg", {}, "side256"),
    "DCFL-PW": ("dcfl-pw", {}, "none"),
    "DCFL-SW": ("dcfl-sw", {}, "none"),
    "DCFL-PW, side head": ("dcfl-pw", {}, "side256"),
    "DCFL-SW, side head": ("dcfl-sw", {"mu": 5.0}, "side256"),
    "FedProc, side head": ("fedproc", {}, "side256"),
}
SEEDS = (0,)
ROUNDS = (10, 25, 50, 100, 175, 250, 375, 500)
Cell = tuple[str, int]  # row and seed


def followed(cell: Cell, data: str) -> dict[str, Any]:
    row, seed = cell
    method, fields, head = METHODS[row]
    changes: Tables = {
        "data": {"path": data},
        "model": {"head": head},
        "engine": {"workers": 1},
    }
    experiment = MINI.experiment(HARD, method, seed, fields, changes)
    moments = [moment.as_json() for moment in follow(experiment, ROUNDS)]
    mu = getattr(experiment.method, "mu", None)
    return {"row": row, "method": method, "seed": seed, "mu": mu, "moments": moments}


def measure(data: str, out: Path) -> None:
    done = kept_runs(out)
    have = {(run["row"], run["seed"]) for run in done}
    missing = [(row, seed) for seed in SEEDS for row in METHODS if (row, seed) not in have]
    order = list(METHODS)
    for (row, seed), found in side_by_side(followed, missing, data):
        done.append(found)
        print(row, seed, found["moments"][-1], flush=True)
        keep(out, runs=sorted(done, key=lambda run: (run["seed"], order.index(run["row"]))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    measure(options.data, options.out)


if __name__ == "__main__":
    main()
