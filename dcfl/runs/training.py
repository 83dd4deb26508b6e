"""From Python as from the command line: train one federation, or finish one that was stopped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dcfl.config import load_experiment
from dcfl.data import Dataset
from dcfl.experiment import Experiment
from dcfl.models import FeatureModel, ModelSettings
from dcfl.runs.progress import shown
from dcfl.runs.rows import RoundRow
from dcfl.runs.run import Result, Run
from dcfl.trackers import Tracker

OnRound = Callable[[RoundRow], object]


def run(
    experiment_or_path: Experiment | str | Path | None = None,
    *,
    out: str | Path | None = None,
    dataset: Dataset | None = None,
    model: FeatureModel | ModelSettings | Mapping[str, Any] | str | None = None,
    on_round: OnRound | None = None,
    trackers: Sequence[Tracker] = (),
    progress: bool | None = None,
    **overrides: Any,
) -> Result:
    """Train one federation and write its run folder, as `dcfl run` does.

    Args:
        experiment_or_path: An Experiment, a config file, or nothing: DCFL-PW on the built-in
            digits.
        out: The run folder; by default a new one in `runs/`.
        dataset: The images, instead of those the config names; they are saved in the folder.
        model: A model's name or settings, or a module of your own, which is copied.
        on_round: Called with the row of each round, to log or plot it. If it returns False, the run
            writes a checkpoint and stops.
        trackers: Trackers of your own, with the three methods of `dcfl.Tracker`, beside
            those that `output.trackers` names.
        progress: Whether to show about ten of the rounds as they end. By default in a notebook.
        **overrides: Tables (`federation={"rounds": 20}`), choices by name (`method="fedavg"`),
            settings objects (`method=MyMethod(mu=0.5)`) or dotted keys
            (`**{"training.lr": 0.05}`) on top of the experiment.

    Returns:
        The folder, the summary, the rows of all rounds, the weights and the model.

    Raises:
        ConfigError: A setting is unknown or does not fit.
        TooFewClients: Too few clients gave a usable reply.
        Interrupted: `on_round` stopped the run; `resume` continues it.

    Example:
        >>> import dcfl
        >>> result = dcfl.run(method="fedavg", federation={"rounds": 2})
        >>> result.summary.method, result.summary.rounds
        ('fedavg', 2)
        >>> (result.folder / "report.html").is_file()
        True
    """
    own_module = model if isinstance(model, torch.nn.Module) else None
    if model is not None and own_module is None:
        overrides["model"] = model
    if out is not None:
        overrides["output.dir"] = str(out)
    experiment = load_experiment(experiment_or_path, **overrides)
    return _result(Run(experiment, dataset, own_module, trackers=trackers), on_round, progress)


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    model: FeatureModel | None = None,
    allow: Collection[str] = (),
    on_round: OnRound | None = None,
    trackers: Sequence[Tracker] = (),
    trust: bool = False,
) -> Result:
    """Finish a run that was stopped or killed, or make one longer, as `dcfl resume` does.

    The result equals that of an uninterrupted run of so many rounds, to the last bit.

    Args:
        folder: The run folder.
        rounds: How many rounds the run shall have in all; by default as many as it was planned
            with. A finished run goes on from its last checkpoint.
        model: The module, if the run was begun with one of your own.
        allow: Keys in which the run may differ from how it was begun.
        on_round: As in `run`.
        trackers: As in `run`. Those that follow the run already go on where they were.
        trust: Resume a run that somebody else has begun although it names trackers, code, data or
            weights outside its folder.

    Returns:
        What `run` would have returned.

    Raises:
        RunFolderError: The run has finished already, its files are damaged, or it kept no
            checkpoint to become longer from.
        ConfigError: Something has changed that the result depends on, or the run has done more
            rounds than asked for.

    Example:
        >>> import dcfl
        >>> run = dcfl.Run(dcfl.load_experiment(federation={"rounds": 4}))
        >>> for row in run.rounds():
        ...     if row.round == 2:
        ...         run.stop()
        Traceback (most recent call last):
        dcfl.errors.Interrupted: stopped after round ...
        >>> dcfl.resume(run.folder).summary.rounds
        4
        >>> dcfl.resume(run.folder, rounds=6).summary.rounds
        6
    """
    resumed = Run.resume(
        Path(folder), None, model, allow=allow, rounds=rounds, trackers=trackers, trust=trust
    )
    return _result(resumed, on_round)


def _result(run: Run, on_round: OnRound | None, progress: bool | None = None) -> Result:
    with shown(run.experiment.method.name, run.experiment, run.folder, progress) as show:
        for row in run.rounds():
            show(row)
            if on_round is not None and on_round(row) is False:
                run.stop()
    return run.result()
