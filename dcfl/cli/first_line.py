"""What trains where, in the first line of a run, and what bfloat16 would gain."""

from __future__ import annotations

from dcfl.cli.cards import model_words
from dcfl.engines.half_precision import StepTimes, bfloat16_units, step_times
from dcfl.engines.runner import two_images
from dcfl.experiment import Experiment
from dcfl.federation import cohort_size
from dcfl.runs.prepare import Prepared

WORTH = 60.0  # seconds: for a shorter run a second of measuring does not pay
GAIN = 0.95  # of float32's time: more is no gain


def first_line(prepared: Prepared) -> str:
    workers, threads = len(prepared.placement.devices), prepared.experiment.engine.threads
    where = f"{workers} worker{'s' if workers > 1 else ''} x {threads} thread"
    if prepared.placement.devices[0].type == "cuda":
        where = f"{workers} x {prepared.placement.name}"
    line = f"{model_words(prepared)}; {where}{'s' if threads > 1 else ''}"
    times = _step_times(prepared)
    if times is None or times.share is None:
        return line
    if times.share > GAIN:
        return f"{line}; bfloat16 would gain nothing here"
    return (
        f"{line}; in bfloat16 a step takes {times.share:.2f} of the time here "
        "(engine.precision=bfloat16)"
    )


def chosen_by_data(asked: Experiment, prepared: Prepared) -> str:
    """What was left to the data and is not as usual; empty if there is nothing of the kind."""
    dataset, sizes = prepared.data.dataset, prepared.data.partition.sizes
    cohort = cohort_size(len(sizes), prepared.experiment.federation.share)
    who = f"{cohort} of {len(sizes)} {'clients' if dataset.partition is None else 'sites'} a round"
    if asked.federation.participation == "auto" and dataset.partition is not None:
        return f"{who} (federation.participation)"
    if asked.data.clients != "auto" or not dataset.users_own:
        return ""
    return f"{who}, for {len(dataset.train):,} images (data.clients, federation.participation)"


def _step_times(prepared: Prepared) -> StepTimes | None:
    """None where bfloat16 is no question: on a GPU, in half precision already, or on a CPU without
    units for it."""
    engine, device = prepared.experiment.engine, prepared.placement.devices[0]
    if engine.precision != "float32" or device.type != "cpu":
        return None
    if not bfloat16_units():
        return None

    def worth(seconds: float) -> bool:
        return seconds * _images_trained(prepared) / len(prepared.placement.devices) > WORTH

    images = two_images(prepared.data.dataset)
    batch_size = prepared.experiment.training.batch_size
    return step_times(prepared.model, images, batch_size, engine.threads, worth)


def _images_trained(prepared: Prepared) -> float:
    """In the whole run."""
    experiment, sizes = prepared.experiment, prepared.data.partition.sizes
    cohort = cohort_size(len(sizes), experiment.federation.share)
    each = float(sizes.mean()) * experiment.training.all_epochs
    return experiment.federation.rounds * cohort * each
