"""Which part of a model is whose: the methods with layers or models of a client's own."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.ideas.marks import (
    arrow,
    between,
    box,
    circle,
    diamond,
    idea,
    line,
    lines,
    ring,
    spring,
    square,
    text,
    triangle,
)

SHARED_FEATURES = (("features", "sent"), ("classifier", "own"))
SHARED_CLASSIFIER = (("features", "own"), ("classifier", "sent"))
SHARED_BUT_NORMS = (*(("layer", "sent"), ("norm", "own")) * 2, ("classifier", "sent"))
FIXED_CLASSIFIER = (("features", "sent"), ("as initialised", "frozen"))


def stack(x: float, parts: Sequence[tuple[str, str]], server: bool) -> str:
    """Layers from the input, below, to the classifier: `sent`, `own` or `frozen`."""
    down = 96 / len(parts)
    told = []
    for i, (word, state) in enumerate(reversed(parts)):
        y = 30 + down * i
        if state == "own" and server:
            told += [box((x, y + 2), 84, down - 4, "pale", "2 3")]
        else:
            role = {"sent": "ink", "own": "own", "frozen": "soft"}[state]
            told += [box((x, y + 2), 84, down - 4, role, "5 3" if state == "frozen" else "")]
            told += [text((x + (48 if state == "own" else 42), y + down / 2 + 4), word)]
            told += [diamond((x + 10, y + down / 2), size=5)] if state == "own" else []
    return "".join(told)


def layers(parts: Sequence[tuple[str, str]], note: str, order: Sequence[str] = ()) -> str:
    """Two clients and the server between them; `order` numbers the layers that are trained."""
    told = []
    for x, word in ((12, "client 1"), (138, "server"), (264, "client 2")):
        told += [text((x + 42, 20), word), stack(x, parts, word == "server")]
    down = 96 / len(parts)
    for i, (word, state) in enumerate(reversed(parts)):
        y = 30 + down * (i + 0.5)
        if state == "sent":
            told += [arrow((98, y), (136, y), "ink"), arrow((262, y), (224, y), "ink")]
        if word in order:
            above = y - 14 if state == "sent" else y  # of the arrow
            told += [circle((117, above), "new", 8, hollow=True)]
            told += [text((117, above + 4), str(order.index(word) + 1))]
    return "".join([*told, text((180, 142), note)])


@idea
def fedper() -> str:
    """Features are sent and averaged; each client keeps a classifier of its own."""
    return layers(SHARED_FEATURES, "the classifier stays with the client")


@idea
def fedrep() -> str:
    """As in FedPer each client keeps its classifier; it is trained first, and the features, which
    are sent, after it.
    """
    note = "in a round: 1 the classifier, then 2 the features"
    return layers(SHARED_FEATURES, note, ("classifier", "features"))


@idea
def lg_fedavg() -> str:
    """The classifier is sent and averaged; each client keeps features of its own."""
    return layers(SHARED_CLASSIFIER, "the features stay with the client")


@idea
def fedbn() -> str:
    """All layers but the normalisation are sent and averaged; each client keeps normalisation of
    its own.
    """
    return layers(SHARED_BUT_NORMS, "normalisation stays with the client")


@idea
def fedbabu() -> str:
    """Features are trained, sent and averaged; the classifier is never trained and stays the
    same for all.
    """
    return layers(FIXED_CLASSIFIER, "the classifier is not trained")


@idea
def fedrod() -> str:
    """On shared features sit two classifiers: a shared one, whose loss corrects for the client's
    mix of classes, and the client's own.
    """
    parts = [box((30, 96), 150, 28, "ink"), text((105, 114), "features: sent")]
    parts += [box((30, 42), 70, 28, "ink"), text((65, 60), "shared")]
    parts += [box((110, 42), 70, 28, "own"), text((152, 60), "own"), diamond((122, 56), size=5)]
    parts += [arrow((65, 95), (65, 71), "ink"), arrow((145, 95), (145, 71), "own", dash="3 2")]
    parts += [text((105, 30), "two classifiers")]
    shared = ("shared: its loss corrects", "for the client’s mix;", "sent, for everybody")
    own = ("own: plain loss, kept;", "moves nothing else")
    return "".join([*parts, lines(shared, 214, 40), lines(own, 214, 104)])


@idea
def fedalign() -> str:
    """The last block is run twice, whole and with a quarter of its channels; the slim one is
    trained to be as smooth as the whole one.
    """
    parts = [box((14, 64), 72, 34, "ink"), text((50, 85), "first blocks")]
    parts += [box((136, 20), 84, 48, "ink")]
    parts += [text((178, 42), "last block,"), text((178, 56), "whole")]
    parts += [box((136, 104), 84, 14, "new"), text((178, 134), "a quarter of its channels")]
    parts += [arrow((87, 78), (134, 46), "ink"), arrow((87, 84), (134, 110), "new")]
    parts += [arrow((221, 44), (276, 44), "ink"), text((284, 48), "result", "start")]
    parts += [arrow((246, 108), (246, 54), "new", 2.5), line((221, 111), (246, 111), "new")]
    return "".join([*parts, lines(("trained to be", "as smooth"), 256, 82)])


def shared_step(words: str) -> str:
    """The shared model moves as in FedAvg."""
    parts = [arrow((50, 112), (190, 112), "ink", 2.5, gap=(9, 9)), square((50, 112))]
    parts += [square((190, 112), hollow=True), text((206, 116), words, "start")]
    return "".join([*parts, text((50, 136), "received")])


@idea
def ditto() -> str:
    """The shared model is FedAvg's; a client's own model learns beside it, held near by a spring,
    and is kept.
    """
    own, goal = (150, 48), (262, 26)
    parts = [arrow((84, 56), own, "own", 2.5, gap=(0, 9)), line(own, goal, "own", 1, "2 3")]
    parts += [ring(goal, "own"), text((274, 30), "best for client", "start")]
    parts += [spring((50, 112), own, gap=(12, 10)), text((118, 92), "spring", "start")]
    parts += [diamond(own), text((150, 32), "own model, kept")]
    return shared_step("sent: FedAvg’s") + "".join(parts)


@idea
def apfl() -> str:
    """The shared model is FedAvg's; a client uses a mixture of it and its own model, whose share it
    learns.
    """
    own, shared = (70, 34), (190, 112)
    mix = between(shared, own, 0.4)
    words = ("α learnt by the client", "what it uses: αv + (1 − α)w")
    parts = [line(own, between(own, shared, 0.92), "pale", 3), circle(mix, "new", 7)]
    parts += [diamond(own), text((84, 32), "own model v, kept", "start")]
    parts += [lines(words, mix[0] + 14, mix[1] - 12)]
    return shared_step("w, sent: FedAvg’s") + "".join(parts)


@idea
def fedala() -> str:
    """A client begins between its own model and the received one, with a share for each single
    number.
    """
    parts = [text((42, 22), "own model"), text((234, 22), "received")]
    for i, share in enumerate((0.85, 0.3, 0.6, 1.0)):
        y = 40 + 28 * i
        a, b = (42, y), (234, y)
        parts += [line(a, b, "pale", 3), diamond(a, size=6), square(b, size=5)]
        parts += [circle(between(a, b, share * 0.92), "new", 6)]
    words = ("the start of the", "round: a share", "for each single", "number")
    return "".join([*parts, lines(words, 262, 56)])


@idea
def pfedme() -> str:
    """A client's own model learns from its images, held by a spring; the shared model moves towards
    it and is sent.
    """
    shared, own, goal = (56, 108), (182, 62), (290, 30)
    end = between(shared, own, 0.4)
    parts = [spring(shared, own, "soft", gap=(10, 10)), arrow(own, goal, "own", 2.5, gap=(9, 8))]
    parts += [ring(goal, "own"), text((290, 56), "best for client"), diamond(own)]
    parts += [text((178, 44), "own model: learns")]
    parts += [arrow(shared, (end[0] + 4, end[1] + 12), "new", 3, gap=(9, 0)), square(shared)]
    parts += [text((56, 132), "shared"), text((118, 112), "moves to the own model,", "start")]
    return "".join([*parts, text((118, 126), "not by images; is sent", "start")])


@idea
def ifca() -> str:
    """There are several shared models; each client trains the one that fits its images best."""
    models, people = ((270, 40), (270, 104)), ((74, 28), (74, 72), (74, 116))
    chosen = (0, 0, 1)
    parts = []
    for one, which in zip(people, chosen, strict=True):
        role = ("one", "two")[which]
        parts += [arrow(one, models[which], role, 2.5, "5 3" if which else "", gap=(9, 14))]
        parts += [line(one, models[1 - which], "pale", 1, "2 3"), (circle, triangle)[which](one)]
    parts += [square(models[0], "one", 9), square(models[1], "two", 9)]
    parts += [text((286, 44), "model 1", "start"), text((286, 108), "model 2", "start")]
    parts += [text((12, y + 4), f"client {i + 1}", "start") for i, (_, y) in enumerate(people)]
    return "".join([*parts, text((164, 143), "each trains the one that fits its images best")])


@idea
def fedpac() -> str:
    """The server mixes, for each client, a classifier of its own out of all that were sent; clients
    with a like mix of classes count most. Features are averaged.
    """
    people, mixed = (30, 70, 110), (264, 70)
    parts = [text((12, 16), "classifiers sent", "start"), text((278, 36), "for client 1", "start")]
    for i, (y, width) in enumerate(zip(people, (4, 2.5, 1), strict=True)):
        mark = (square, circle, triangle)[i]
        parts += [mark((44, y + 4), "one" if i < 2 else "two")]
        parts += [text((60, y + 8), f"client {i + 1}", "start")]
        parts += [arrow((112, y + 4), mixed, "new" if i < 2 else "pale", width, gap=(0, 14))]
    parts += [diamond(mixed, size=11), text((282, 74), "its own mix", "start")]
    words = ("most of those whose", "classes are alike")
    return "".join([*parts, lines(words, 236, 112), text((110, 142), "features are averaged")])
