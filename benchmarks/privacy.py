"""Accuracy on digits by clip and noise, as in docs/privacy.md: a table on stdout.

python benchmarks/privacy.py [network|linear]
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean

from torch import Tensor, nn

from dcfl.config import experiment_from, parse_settings
from dcfl.models import FeatureModel, Output
from dcfl.privacy import PrivacySettings, spent
from dcfl.runs.prepare import schedule
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
    plan = schedule(run.experiment, len(rows))
    return rows[-1]["accuracy"], spent(privacy, plan.most_visits())


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


if __name__ == "__main__":
    print(Path(__file__).name, *sys.argv[1:])
    if "network" in sys.argv[1:] or len(sys.argv) == 1:
        table(NETWORK, NETWORK_CASES, range(2), None)
    if "linear" in sys.argv[1:] or len(sys.argv) == 1:
        table(LINEAR, LINEAR_CASES, range(3), Linear())
