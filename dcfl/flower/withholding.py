"""What a site keeps to itself: `withhold` in its node config, and what is left of its answers.

updates        it evaluates and does not train
scores         accuracies and losses, of training and on its test images
class-counts   how many images of each class it has; the scores by class go with them
sizes          how many images and steps it has, and how long they took; class-counts go with them
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dcfl.evaluation import Score
from dcfl.experiment import Experiment
from dcfl.flower.site_failures import Refusal
from dcfl.messages import ClientUpdate
from dcfl.privacy import BY_SIZE
from dcfl.system.wording import nearest

UPDATES, SCORES, CLASS_COUNTS, SIZES = "updates", "scores", "class-counts", "sizes"
WORDS = (UPDATES, SCORES, CLASS_COUNTS, SIZES)
SIZE_UNKNOWN = 100  # test images that a site without a size says it has: its score is in percent
Withheld = frozenset[str]


def withheld_from(text: str) -> Withheld:
    """Read words with commas between them. Who withholds sizes withholds their parts too."""
    words = {word.strip() for word in text.split(",")} - {""}
    for word in sorted(words - {*WORDS}):
        raise Refusal.WITHHOLDS_NOTHING_KNOWN.error(word=word, nearest=nearest(word, WORDS))
    return frozenset(words | {CLASS_COUNTS} if SIZES in words else words)


def in_order(words: Iterable[str]) -> list[str]:
    """The words in the order in which people and messages have them."""
    return sorted(words, key=WORDS.index)


def check_run(withheld: Withheld, experiment: Experiment) -> None:
    """Refuse a run that cannot work without what is withheld."""
    if UPDATES in withheld:
        return
    method, aggregation = experiment.method, experiment.server.aggregation
    if CLASS_COUNTS in withheld and method.overrides("upload"):
        raise Refusal.METHOD_TELLS_CLASSES.error(method=method.name)
    if SIZES in withheld and aggregation in BY_SIZE:
        raise Refusal.SIZES_WEIGHED.error(aggregation=aggregation)


def refusal_of(withheld: Withheld, kind: str) -> Refusal | None:
    """The refusal of a message that asks for what is withheld. `kind`: Flower's word for it."""
    what, _, part = kind.partition(".")
    if what == "train" and UPDATES in withheld:
        return Refusal.UPDATES_WITHHELD
    if what == "evaluate" and SCORES in withheld:
        return Refusal.SCORES_WITHHELD
    if what == "evaluate" and part and CLASS_COUNTS in withheld:
        return Refusal.CLASS_COUNTS_WITHHELD
    return None


def answers(withheld: Withheld, kind: str) -> bool:
    """Whether a site that withholds this would answer such a message."""
    return refusal_of(withheld, kind) is None


def disclosed_update(withheld: Withheld, update: ClientUpdate) -> ClientUpdate:
    """As under [privacy], a size that is not told is 1, and a number of steps 0."""
    if SIZES in withheld:
        update = replace(update, num_examples=1, num_steps=0)
    return replace(update, metrics=_disclosed_metrics(withheld, update.metrics))


def _disclosed_metrics(withheld: Withheld, metrics: Mapping[str, float]) -> dict[str, float]:
    """Whatever a method measures may be a score."""
    told = {*metrics}
    if SCORES in withheld:
        told &= {"seconds", "memory_lost"}
    if SIZES in withheld:
        told -= {"seconds"}
    return {name: value for name, value in metrics.items() if name in told}


def disclosed_images(withheld: Withheld, images: Sequence[int]) -> list[int]:
    """How many test images there are of each class, in all, or 100 instead of a number."""
    if SIZES in withheld:
        return [SIZE_UNKNOWN if sum(images) else 0]
    return [sum(images)] if CLASS_COUNTS in withheld else list(images)


def disclosed_score(withheld: Withheld, score: Score, images: Sequence[int]) -> Score:
    """The score in the form of `disclosed_images`. A share is rounded to whole percents and a loss
    to two digits, because exact ones tell of how many images they are."""
    count = sum(images)
    if SIZES in withheld and count:
        loss = round(sum(score.losses) / count, 2)
        return Score([round(SIZE_UNKNOWN * sum(score.right) / count)], [SIZE_UNKNOWN * loss])
    if CLASS_COUNTS in withheld:
        return Score([sum(score.right)], [sum(score.losses)])
    return score
