"""What a site keeps to itself: `withhold` in its node config, and what is left of its answers.

updates        it evaluates and does not train
scores         accuracies and losses, of training and on its test images
class-counts   how many images of each class it has; scores go with them, because the server chooses
               the model: the accuracy of one that always answers the same is a class's share
sizes          how many images and steps it has; class counts go with them
statistics     the mean and deviation of its pixels (`dcfl flower stats`)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dcfl.flower.site_failures import Refusal
from dcfl.messages import ClientUpdate, Tensors
from dcfl.system.wording import nearest

UPDATES, SCORES, CLASS_COUNTS, SIZES = "updates", "scores", "class-counts", "sizes"
STATISTICS = "statistics"
WORDS = (UPDATES, SCORES, CLASS_COUNTS, SIZES, STATISTICS)
Withheld = frozenset[str]


def withheld_from(text: str) -> Withheld:
    """Read words with commas between them, and add those that go with them."""
    words = {word.strip() for word in text.split(",")} - {""}
    for word in sorted(words - {*WORDS}):
        raise Refusal.WITHHOLDS_NOTHING_KNOWN.error(word=word, nearest=nearest(word, WORDS))
    words |= {CLASS_COUNTS} if SIZES in words else set()
    return frozenset(words | {SCORES} if CLASS_COUNTS in words else words)


def in_order(words: Iterable[str]) -> list[str]:
    """The words in the order in which people and messages have them."""
    return sorted(words, key=WORDS.index)


def refusal_of(withheld: Withheld, kind: str) -> Refusal | None:
    """The refusal of a message of this kind, if it asks for what is withheld."""
    what = kind.partition(".")[0]
    if what == "train" and UPDATES in withheld:
        return Refusal.UPDATES_WITHHELD
    if what == "evaluate" and SCORES in withheld:
        return Refusal.SCORES_WITHHELD
    return None


def disclosed_update(withheld: Withheld, update: ClientUpdate, received: Tensors) -> ClientUpdate:
    """As under [privacy], a size that is not told is 1, and a number of steps 0. Whatever a method
    measures may be a score, and how long it took may tell of the images."""
    told = {*update.metrics}
    if SCORES in withheld:
        told &= {"seconds", "memory_lost"}
    if CLASS_COUNTS in withheld:
        told -= {"seconds"}
    metrics = {name: value for name, value in update.metrics.items() if name in told}
    if SIZES not in withheld:
        return replace(update, metrics=metrics)
    weights = {  # whole numbers among them are counts, such as those of normalised batches
        name: tensor if tensor.is_floating_point() else received.get(name, tensor)
        for name, tensor in update.weights.items()
    }
    return replace(update, weights=weights, num_examples=1, num_steps=0, metrics=metrics)
