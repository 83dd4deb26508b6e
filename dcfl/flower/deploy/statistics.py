"""What sites have, before anything is trained: `dcfl flower stats`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from math import sqrt

from dcfl.errors import NetworkError, require
from dcfl.experiment import Experiment
from dcfl.flower.codec import SiteStatistics
from dcfl.flower.deploy import superlink
from dcfl.flower.deploy.server_app import TOLD
from dcfl.flower.deploy.submission import STATUS_SECONDS, submit
from dcfl.flower.deploy.superlink import Connection
from dcfl.flower.roster import Roster
from dcfl.flower.withholding import STATISTICS
from dcfl.methods import METHODS

Answers = Mapping[str, SiteStatistics | str]  # by site; a text is why it has told nothing


def statistics(link: Connection, asked: Experiment, roster: Roster) -> Answers:
    """Ask the sites behind a SuperLink."""
    data = asked.data
    require(data.dataset == "remote", 'statistics are of data.dataset = "remote", at the sites')
    # Nothing is trained: what a site would refuse to train with does not matter.
    plain = Experiment(data=data, engine=asked.engine, method=METHODS["fedavg"]())
    run = submit(link, replace(plain, output=asked.output), roster, asks=STATISTICS)
    while not (status := superlink.run_status(link, run.run)).startswith("finished"):
        time.sleep(STATUS_SECONDS)
    if status != "finished:completed":
        raise run.failure(status)
    line = re.search(rf"(?m)^{TOLD} (.*)", superlink.log(link, run.run))
    if line is None:
        raise NetworkError(f"run {run.run} ended without an answer; `flwr log {run.run}` shows why")
    return {
        name: told if isinstance(told, str) else SiteStatistics(**told)
        for name, told in json.loads(line[1]).items()
    }


def pooled(answers: Answers) -> tuple[list[float], list[float]]:
    """Mean and deviation of all pixels, or of each number of all vectors, of the sites that tell
    them. A site that withholds its size counts as the mean of the others."""
    told = [
        one for one in answers.values() if not isinstance(one, str) and one.mean and one.images != 0
    ]
    if not told:
        return [], []
    sizes = [one.images for one in told if one.images is not None]
    usual = sum(sizes) / len(sizes) if sizes else 1.0
    weights = [usual if one.images is None else one.images for one in told]
    total = sum(weights)

    def mean_of(values: list[list[float]]) -> list[float]:
        columns = zip(*values, strict=True)
        return [sum(w * v for w, v in zip(weights, c, strict=True)) / total for c in columns]

    mean = mean_of([one.mean for one in told])
    squares = mean_of(
        [[m * m + s * s for m, s in zip(one.mean, one.std, strict=True)] for one in told]
    )
    std = [sqrt(max(square - m * m, 1e-12)) for square, m in zip(squares, mean, strict=True)]
    return [float(f"{m:.4g}") for m in mean], [float(f"{s:.4g}") for s in std]
