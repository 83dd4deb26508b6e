"""Accuracy on digits by clip, noise and epsilon, as in docs/privacy.md: tables on stdout.

python benchmarks/privacy.py [network|linear|places]
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from torch import Tensor, nn

from dcfl.config import experiment_from, parse_settings
from dcfl.models import FeatureModel, Output
from dcfl.privacy import PrivacySettings, noise_needed
from dcfl.runs.prepare import privacy_spent, schedule
from dcfl.runs.run import Run

COMMON = [
    "engine.workers=1",
    "output.checkpoint=0",
    "output.report=false",
    "data.seed=0",
]  # one split for all seeds
# The default run, but for a model and a method that [privacy] takes.
NETWORK = ["model.norm=group", "method.name=dcfl-sw", "federation.rounds=40"]
NETWORK_CASES = [(0.0, 0.0), *((1.0, noise) for noise in (0.0, 0.001, 0.003, 0.01, 0.1, 0.5))]
# As kind to noise as digits allow: 650 parameters, a hundred clients alike, five rounds.
LINEAR = [
    *("method.name=fedavg", "training.lr=0.1", "federation.rounds=5", "federation.participation=1"),
    *("data.clients=100", "data.partition=iid", "data.crop=0"),
]
LINEAR_CASES = [(0.0, 0.0), (1.0, 0.0), (1.0, 0.3), (1.0, 1.0), (1.0, 2.0), (1.0, 4.0)]
# The same model and clients, by epsilon and by where the noise is added.
PLACES = [word for word in LINEAR if not word.startswith("federation.")]
EVERYBODY = ["federation.rounds=5", "federation.participation=1"]
COINS = ["federation.rounds=20", "federation.participation=0.25", "federation.sampling=poisson"]
EPSILONS = (2.0, 8.0)
PLACES_CLIP, LARGER = 1.0, 10  # how many times the clients, for the extrapolation


class Linear(FeatureModel):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(64, 10)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> Output:
        pixels = images.flatten(1)
        return Output(self.classifier(pixels), pixels, (pixels,))


def measured(
    words: list[str], privacy: PrivacySettings, seed: int, model: FeatureModel | None
) -> tuple[float, float | None]:
    """The last accuracy, and epsilon."""
    words = [*COMMON, *words, f"federation.seed={seed}"]
    with tempfile.TemporaryDirectory() as folder:
        experiment = experiment_from(None, parse_settings([*words, f"output.dir={folder}/run"]))
        run = Run(replace(experiment, privacy=privacy), model=model)
        rows = list(run.rounds())
    return rows[-1]["accuracy"], privacy_spent(run.experiment, len(rows)).get("epsilon")


def table(
    words: list[str], cases: list[tuple[float, float]], seeds: range, model: FeatureModel | None
) -> None:
    print("| clip | z | accuracy % | epsilon |\n|---|---|---|---|", flush=True)
    for clip, noise in cases:
        privacy = PrivacySettings(clip=clip, noise=noise)
        results = [measured(words, privacy, seed, model) for seed in seeds]
        epsilon = max((reached or float("inf") for _, reached in results))
        accuracies = [accuracy for accuracy, _ in results]
        print(
            f"| {f'{clip:g}' if clip else 'off'} | {noise:g} | {mean(accuracies):.1f} "
            f"({min(accuracies):.1f} to {max(accuracies):.1f}) "
            f"| {'no guarantee' if epsilon == float('inf') else f'{epsilon:.1f}'} |",
            flush=True,
        )


def noise_of(words: list[str], epsilon: float, where: str) -> float:
    """What the budget needs, as `dcfl privacy` says it."""
    experiment = experiment_from(None, parse_settings([*COMMON, *words]))
    plan = schedule(experiment, experiment.federation.rounds)
    needed = noise_needed(epsilon, 1e-5, plan, 650)
    return needed[{"coins": 0, "server": 1, "client": 2}[where]].noise


def places(seeds: range) -> None:
    """Accuracy by epsilon; a column for each place where noise can be."""
    columns: dict[str, tuple[list[str], str, int]] = {
        "each client": (EVERYBODY, "client", 1),
        "server, everybody": (EVERYBODY, "server", 1),
        "server, coins": (COINS, "coins", 1),
        f"server, everybody, extrapolated to {LARGER} times the clients": (
            EVERYBODY,
            "server",
            LARGER,
        ),
    }
    print("| epsilon | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns), flush=True)
    for epsilon in (*EPSILONS, 0.0):
        cells = []
        for words, where, larger in columns.values():
            noise = noise_of([*PLACES, *words], epsilon, where) / larger if epsilon else 0.0
            at = "client" if where == "client" else "server"
            privacy = PrivacySettings(clip=PLACES_CLIP, noise=noise, where=at)
            found = [measured([*PLACES, *words], privacy, seed, Linear())[0] for seed in seeds]
            cells.append(f"{mean(found):.1f} ± {stdev(found):.1f} (z {noise:.3g})")
        print(f"| {epsilon or 'none'} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    print(Path(__file__).name, *sys.argv[1:])
    if "network" in sys.argv[1:] or len(sys.argv) == 1:
        table(NETWORK, NETWORK_CASES, range(2), None)
    if "linear" in sys.argv[1:] or len(sys.argv) == 1:
        table(LINEAR, LINEAR_CASES, range(3), Linear())
    if "places" in sys.argv[1:] or len(sys.argv) == 1:
        places(range(5))
