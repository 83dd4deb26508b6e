"""Accuracy by clip, noise and epsilon, as in docs/privacy.md: tables on stdout.

python benchmarks/privacy.py
python benchmarks/privacy.py epsilon [features/cifar10.npz [JOBS]]

The last trains what benchmarks/results/privacy.jsonl does not have yet.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import product
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy import stats

from dcfl.config import experiment_from, parse_settings
from dcfl.data import Dataset, DataSettings, load_dataset
from dcfl.privacy import PrivacySettings, noise_at_client, noise_for
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
# Accuracy by epsilon and by where the noise is added: linear models, non-IID splits.
DELTA, EPSILONS = 1e-5, (1.0, 2.0, 4.0, 8.0)
TASKS = {
    "digits": ["data.clients=100", "data.crop=0", "federation.participation=0.25"],
    "cifar10": ["data.clients=1000", "federation.participation=0.05"],
}
BY_EPSILON = [
    *("method.name=fedavg", "model.name=linear", "data.alpha=0.3", "training.epochs=1"),
    *("training.batch_size=50", "federation.rounds=20", "federation.evaluate_every=20"),
    *("engine.workers=1", "output.checkpoint=0", "output.report=false"),
]
WITHOUT = ("no noise", "clipping alone")
PLACES = {
    "no noise": [],
    "clipping alone": [],
    "each client": ["federation.sampling=in-turn"],
    "server, in turn": ["federation.sampling=in-turn", "privacy.where=server"],
    "server, in turn, correlated": [
        *("federation.sampling=in-turn", "privacy.where=server", "privacy.correlated=true"),
    ],
    "server, coins": ["federation.sampling=poisson", "privacy.where=server"],
    "server, coins, extrapolated": ["federation.sampling=poisson", "privacy.where=server"],
}
NOISY = [place for place in PLACES if place not in WITHOUT]
LARGER = 10  # how many times the clients, for the extrapolation
# Four trials for each cell of the table, with one seed, on images that are kept back from training.
TUNING = ["federation.seed=100", "data.holdout=0.1"]
TRIALS = [(0.1, 1.0), (0.3, 1.0), (1.0, 1.0), (1.0, 0.2)]  # clip and learning rate
WITHOUT_NOISE = [(0.0, lr) for lr in (0.2, 0.5, 1.0, 2.0)]
SEEDS = range(5)
KEPT = Path(__file__).parent / "results" / "privacy.jsonl"


def measured(privacy: PrivacySettings, seed: int) -> tuple[float, float | None]:
    """The last accuracy, and epsilon."""
    words = [*COMMON, *NETWORK, f"federation.seed={seed}"]
    with tempfile.TemporaryDirectory() as folder:
        experiment = experiment_from(None, parse_settings([*words, f"output.dir={folder}/run"]))
        run = Run(replace(experiment, privacy=privacy))
        rows = list(run.rounds())
    return rows[-1]["accuracy"], privacy_spent(run.experiment, len(rows)).get("epsilon")


def by_noise() -> None:
    print("| clip | z | accuracy % | epsilon |\n|---|---|---|---|", flush=True)
    for clip, noise in NETWORK_CASES:
        privacy = PrivacySettings(clip=clip, noise=noise)
        results = [measured(privacy, seed) for seed in range(2)]
        epsilon = max((reached or float("inf") for _, reached in results))
        accuracies = [accuracy for accuracy, _ in results]
        print(
            f"| {f'{clip:g}' if clip else 'off'} | {noise:g} | {mean(accuracies):.1f} "
            f"({min(accuracies):.1f} to {max(accuracies):.1f}) "
            f"| {'no guarantee' if epsilon == float('inf') else f'{epsilon:.1f}'} |",
            flush=True,
        )


def noise_of(task: str, place: str, epsilon: float) -> float:
    """What the budget needs."""
    any_noise = ["privacy.clip=1", "privacy.noise=1"]
    words = [*BY_EPSILON, *TASKS[task], *PLACES[place], *any_noise, f"data.dataset={task}"]
    experiment = experiment_from(None, parse_settings(words))
    plan = schedule(experiment, experiment.federation.rounds)
    if place == "each client":
        return noise_at_client(epsilon, DELTA, plan.most_visits())
    noise = noise_for(epsilon, DELTA, plan.drawn._replace(correlated="correlated" in place))
    return noise / LARGER if "extrapolated" in place else noise


def row(task: str, place: str, epsilon: float, features: str) -> None:
    """Tune and train what the file has not: a line for each run."""
    known = {(run["task"], run["place"], run["epsilon"], run["words"]): run for run in kept()}
    noise = noise_of(task, place, epsilon) if epsilon else 0.0

    def accuracy(clip: float, lr: float, more: list[str]) -> float:
        private = [f"privacy.clip={clip}", f"privacy.noise={noise:.6g}"] if clip else []
        words = " ".join([*PLACES[place], *private, f"training.lr={lr}", *more])
        if found := known.get((task, place, epsilon, words)):
            return float(found["accuracy"])
        data = f"data.dataset={'npz:' + features if task == 'cifar10' else task}"
        every = [*BY_EPSILON, *TASKS[task], data, *words.split()]
        with tempfile.TemporaryDirectory() as folder:
            experiment = experiment_from(None, parse_settings([*every, f"output.dir={folder}/run"]))
            run = Run(experiment, images(experiment.data.dataset))
            rows = list(run.rounds())
            spent = run.result().summary.epsilon
        told = {"task": task, "place": place, "epsilon": epsilon, "words": words, "spent": spent}
        line = json.dumps({**told, "accuracy": rows[-1].accuracy})
        with KEPT.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        return float(rows[-1].accuracy or 0)

    trials = WITHOUT_NOISE if place == "no noise" else TRIALS
    clip, lr = max(trials, key=lambda trial: accuracy(*trial, TUNING))
    for seed in SEEDS:
        accuracy(clip, lr, [f"federation.seed={seed}"])


@cache
def images(name: str) -> Dataset:
    """Once for all runs of a process."""
    return load_dataset(DataSettings(name))


def kept() -> list[dict[str, Any]]:
    return [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []


def by_epsilon(features: str, jobs: str = "2") -> None:
    """Train what is missing, so many rows at a time, and print the tables."""
    tasks = [task for task in TASKS if features or task == "digits"][::-1]
    cells = [(task, place, 0.0) for task in tasks for place in WITHOUT]
    cells += [(*cell, epsilon) for cell in product(tasks, NOISY) for epsilon in EPSILONS]
    with ProcessPoolExecutor(int(jobs), multiprocessing.get_context("spawn")) as pool:
        for done in [pool.submit(row, *cell, features) for cell in cells]:
            done.result()
    show(tasks)


def show(tasks: list[str]) -> None:
    """Means with 95 % intervals over seeds."""
    for task in tasks:
        print(f"\n{task}\n\n| epsilon | " + " | ".join(NOISY) + " |\n|" + "---|" * (1 + len(NOISY)))
        for epsilon in EPSILONS:
            cells = [interval(task, place, epsilon) for place in NOISY]
            print(f"| {epsilon:g} | " + " | ".join(cells) + " |")
        for place in WITHOUT:
            print(f"{place}: {interval(task, place, 0.0)}")


def interval(task: str, place: str, epsilon: float) -> str:
    chosen = [
        run
        for run in kept()
        if (run["task"], run["place"], run["epsilon"]) == (task, place, epsilon)
        and "holdout" not in run["words"]
    ]
    found = [run["accuracy"] for run in chosen]
    if len(found) < len(SEEDS):
        return "not run"
    half = stats.t.ppf(0.975, len(found) - 1) * stdev(found) / sqrt(len(found))
    return f"{mean(found):.1f} ± {half:.1f}"


if __name__ == "__main__":
    print(Path(__file__).name, *sys.argv[1:])
    if sys.argv[1:2] == ["epsilon"]:
        by_epsilon(*sys.argv[2:4] or [""])
    else:
        by_noise()
