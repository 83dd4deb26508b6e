"""What the parts of a run cost, and how they add up; pure arithmetic over measured seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class VisitCost:
    """Seconds of a client's visit: `visit + epochs (steps * step + images * image) + images *
    passed`."""

    visit: float  # whatever its images
    step: float  # whatever the batch
    image: float  # trained once
    passed: float = 0.0  # an image in the passes after training

    def seconds(self, images: int, batch_size: int, epochs: int) -> float:
        epoch = steps_of(images, batch_size) * self.step + images * self.image
        return self.visit + epochs * epoch + images * self.passed

    def scaled(self, factor: float) -> VisitCost:
        return VisitCost(*(factor * seconds for seconds in astuple(self)))


@dataclass(frozen=True)
class Rates:
    """What this machine takes for the parts of one experiment, with all workers busy."""

    first: VisitCost  # a client that remembers nothing yet
    later: VisitCost
    reply: float  # seconds of the server and the engine for each client
    scored: float  # seconds per test image
    warm_up: float  # seconds that the very first steps take longer
    crowd: Crowd
    sizes: Sizes
    visits: int  # of clients, that were timed
    seconds: float  # that measuring took


@dataclass(frozen=True)
class Crowd:
    """How workers slow each other down: they share caches, memory and perhaps cores."""

    size: int = 1  # workers that were busy when all else was measured
    alone: float = 1.0  # how many times as fast a worker is by itself

    def pace(self, busy: int, workers: int) -> float:
        """Of each busy worker, compared with a crowd that is as large as it gets."""
        largest = min(self.size, workers)
        idle = max(0, largest - busy)
        return 1 + (self.alone - 1) * idle / (largest - 1) if idle else 1.0


ALONE = Crowd()


@dataclass(frozen=True)
class Sizes:
    """Bytes."""

    peak: int  # of all processes, while `cohort` clients a round trained
    cohort: int
    remembering: int  # clients with a memory at the peak
    memory: int  # what a client keeps
    upload: int  # what it sends in addition to the weights
    up: int  # all that it sends
    down: int
    state: int  # the server's


def steps_of(images: int, batch_size: int) -> int:
    """Of an epoch; a last batch of one image is left out."""
    return images // batch_size + (images % batch_size > 1)


def fitted(seconds: Mapping[int, float], batch_size: int, passed: float) -> VisitCost:
    """The costs behind the seconds of visits of one epoch, by their number of images: two, a batch,
    and, if clients have so many, up to two batches. `passed` is known."""
    small, batch, *more = sorted(seconds)
    trained = {images: max(0.0, seconds[images] - images * passed) for images in seconds}
    image = max(0.0, (trained[batch] - trained[small]) / (batch - small))
    step = 0.0  # if an epoch is one step, its costs go with the visit
    if more and steps_of(more[0], batch_size) > 1:
        # Large clients have many more of these, so what the second step added must come out right.
        added = max(0.0, trained[more[0]] - trained[batch])
        image = min(image, added / (more[0] - batch))
        step = added - (more[0] - batch) * image
    return VisitCost(max(0.0, trained[batch] - step - batch * image), step, image, passed)


def images_within(
    seconds: float, cost: VisitCost, largest: int, batch_size: int, epochs: int
) -> int:
    """As many images as a visit of so many seconds has time for: all of the largest client's, or
    some full batches; 0 if there is no time for one."""
    sizes = (largest, *range(largest // batch_size * batch_size, 0, -batch_size))
    return next((n for n in sizes if cost.seconds(n, batch_size, epochs) <= seconds), 0)


def makespan(
    tasks: Iterable[float], workers: int, fillers: Iterable[float] = (), crowd: Crowd = ALONE
) -> float:
    """Seconds until all is done, the longest task first, then the fillers, each by whoever is free:
    as the pool gives them out. Tasks are as long as in the crowd."""
    waiting = deque((*sorted(tasks, reverse=True), *fillers))
    begun: list[float] = []  # what is left of them
    clock = 0.0
    while waiting or begun:
        while waiting and len(begun) < workers:
            begun.append(waiting.popleft())
        shortest = min(begun)
        clock += shortest / crowd.pace(len(begun), workers)
        begun = [left - shortest for left in begun if left > shortest]
    return clock
