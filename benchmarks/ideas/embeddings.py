"""What becomes of embeddings and of outputs for classes: the methods with a loss of their own."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, hypot, pi, sin

from benchmarks.ideas.marks import (
    Point,
    arrow,
    between,
    box,
    circle,
    diamond,
    idea,
    line,
    lines,
    ring,
    slider,
    square,
    star,
    text,
    triangle,
)


def pulls(anchor: Point, to: Sequence[Point], width: float = 2) -> str:
    return "".join(arrow(one, between(one, anchor, 0.6), "one", width, gap=(8, 0)) for one in to)


def pushes(anchor: Point, away: Sequence[Point], width: float = 2) -> str:
    parts = []
    for one in away:
        end = between(anchor, one, 1 + 32 / hypot(one[0] - anchor[0], one[1] - anchor[1]))
        parts.append(arrow(one, end, "two", width, "4 3", gap=(8, 0)))
    return "".join(parts)


def one_weight(x: float = 232) -> str:
    return slider((x, 70), 110, 0.5, "pull and push:") + text((x, 92), "one weight", "start")


def two_weights(x: float = 232) -> str:
    return slider((x, 52), 110, 0.9, "pull: align") + slider((x, 104), 110, 0.12, "push: uniform")


SAME: tuple[Point, ...] = ((60, 28), (40, 84))  # images of the anchor's class
OTHER: tuple[Point, ...] = ((166, 50), (162, 96))
ANCHOR: Point = (110, 74)


def images(dial: str) -> str:
    """A batch: images of one class pull, the others push."""
    parts = [pulls(ANCHOR, SAME), pushes(ANCHOR, OTHER)]
    parts += [circle(one) for one in (*SAME, ANCHOR)] + [triangle(one) for one in OTHER]
    parts += [ring(ANCHOR, "one", 9), text((104, 98), "image")]
    parts += [text((50, 140), "same class") + text((176, 140), "other classes"), dial]
    return "".join(parts)


@idea
def fedscl() -> str:
    """Images of the same class are pulled to an image and those of other classes pushed away, with
    one weight for both.
    """
    return images(one_weight())


@idea
def dcfl_sw() -> str:
    """Images of the same class are pulled to an image and those of other classes pushed away; pull
    and push each have a weight of their own.
    """
    return images(two_weights())


def to_prototype(image: Point, one: Point) -> str:
    return arrow(image, between(image, one, 0.6), "one", gap=(8, 0))


def off_prototype(image: Point, one: Point) -> str:
    return arrow(one, between(one, image, 0.6), "two", dash="4 3", gap=(10, 0))


def prototypes(dial: str) -> str:
    """Prototypes of all clients: the class's own pulls, the others push."""
    own, others = (36, 74), ((178, 44), (178, 104))
    parts = [to_prototype(ANCHOR, own), *(off_prototype(ANCHOR, one) for one in others)]
    parts += [star(own, "one"), star(others[0], "two"), star(others[1], "two", hollow=True)]
    parts += [circle(ANCHOR), text((110, 98), "image"), text((12, 56), "own prototype", "start")]
    parts += [text((172, 26), "another class"), text((130, 138), "of a class the client lacks")]
    return "".join([*parts, dial])


@idea
def fedproc() -> str:
    """An image is pulled to the prototype of its class and away from those of all others, with one
    weight for both.
    """
    return prototypes(one_weight())


@idea
def dcfl_pw() -> str:
    """An image is pulled to the prototype of its class and away from those of the others, also of
    classes that the client lacks; pull and push each have a weight of their own.
    """
    return prototypes(two_weights())


@idea
def fedpcl() -> str:
    """An image is pulled to several prototypes of its class, the mean and each client's own, and
    away from those of other classes.
    """
    image, parts = (180, 76), [text((84, 22), "own class"), text((276, 22), "another class")]
    for side, role, force in ((-1, "one", to_prototype), (1, "two", off_prototype)):
        mean, first, second = ((180 + side * x, y) for x, y in ((96, 44), (138, 74), (96, 106)))
        parts += [force(image, one) for one in (mean, first, second)]
        parts += [star(mean, role, 12)]
        parts += [star(one, role, 8, hollow=True) for one in (first, second)]
    parts += [circle(image), text((180, 100), "image")]
    parts += [text((180, 140), "full: the mean of all clients; hollow: one client’s")]
    return "".join(parts)


@idea
def fedproto() -> str:
    """Clients keep their models; images of a class are drawn to its common prototype, and
    prototypes are all they share.
    """
    parts = [text((68, 22), "client 1") + text((292, 22), "client 2")]
    proto = (180, 66)
    for x in (68, 292):
        parts += [box((x - 44, 32), 88, 82, "own", "4 3")]
        for one in ((x - 18, 52), (x + 12, 72), (x - 8, 94)):
            end = between(one, proto, 0.24)
            parts += [circle(one), arrow(one, end, "one", 1.5, gap=(7, 0))]
        parts += [text((x, 132), "keeps its model")]
    parts += [star(proto, "one", 12), text((180, 48), "prototype")]
    parts += [text((180, 92), "of the class:"), text((180, 105), "all they share")]
    return "".join(parts)


@idea
def fedrcl() -> str:
    """Only the least similar image of the same class is pulled and the most similar of other
    classes are pushed, on every level of the network; nearly equal images are pushed apart.
    """
    anchor, far, near = (110, 80), (34, 34), (100, 62)
    hard, easy = ((146, 62), (150, 100)), ((204, 44), (212, 112))
    parts = [pulls(anchor, [far], 3), pushes(anchor, hard, 3)]
    parts += [arrow(near, (90, 44), "two", 2, "4 3", gap=(7, 0))]
    parts += [circle(one, hollow=one == (60, 110)) for one in (far, near, (60, 110), anchor)]
    parts += [triangle(one) for one in hard] + [triangle(one, hollow=True) for one in easy]
    parts += [ring(anchor, "one", 9), text((34, 22), "least alike")]
    parts += [text((96, 32), "nearly equal: apart", "start")]
    parts += [text((150, 136), "most alike; the rest is left alone")]
    for i in range(3):
        parts += [box((276, 34 + 30 * i), 66, 22, "soft"), ring((309, 45 + 30 * i), "new", 5)]
    return "".join([*parts, text((309, 24), "on every level")])


@idea
def moon() -> str:
    """An image's features are pulled to what the received model makes of it and away from what the
    client's last model made.
    """
    image, shared, before = (180, 66), (64, 66), (290, 66)
    parts = [arrow(image, between(image, shared, 0.62), "one", 3, gap=(9, 0))]
    parts += [arrow(before, between(before, image, 0.62), "two", 3, "4 3", gap=(10, 0))]
    parts += [line(image, before, "soft", 1, "2 3"), line(image, shared, "soft", 1, "2 3")]
    parts += [square(shared), circle(image), diamond(before)]
    parts += [text((64, 94), "as the received"), text((64, 107), "model sees it")]
    parts += [text((180, 94), "image, as the"), text((180, 107), "client sees it")]
    parts += [text((290, 94), "as its last round’s"), text((290, 107), "model saw it")]
    parts += [text((122, 46), "near") + text((240, 46), "and unlike")]
    return "".join(parts)


@idea
def feddecorr() -> str:
    """Features on a line, whose dimensions are copies of each other, spread into a cloud."""
    steps = [((37 * i) % 101) / 101 for i in range(26)]
    parts = []
    for x, words in ((26, "dimensions are copies"), (220, "dimensions differ")):
        parts += [arrow((x, 118), (x, 24), "soft", 1), arrow((x, 118), (x + 110, 118), "soft", 1)]
        parts += [text((x + 55, 138), words)]
    for i, u in enumerate(steps):
        side = ((61 * i) % 97) / 97 - 0.5
        parts += [circle((38 + 84 * u, 108 - 72 * u + 10 * side), "one", 2.5)]
        turn, far = 2.4 * i, 40 * ((i + 0.5) / len(steps)) ** 0.5
        parts += [circle((276 + far * 1.1 * cos(turn), 70 + far * sin(turn)), "one", 2.5)]
    return "".join([*parts, arrow((150, 70), (204, 70), "new", 3)])


@idea
def fedetf() -> str:
    """Three fixed directions at equal angles are the classifier; the features of each class learn
    to fit its direction.
    """
    centre, parts = (108, 86), []
    classes = (("one", circle), ("two", triangle), ("own", diamond))
    for i, (role, mark) in enumerate(classes):
        turn = pi * (2 / 3 * i - 0.5)
        tip = (centre[0] + 62 * cos(turn), centre[1] + 62 * sin(turn))
        parts.append(arrow(centre, tip, "new", 3))
        for off in (0.55, -0.5):
            one = (centre[0] + 46 * cos(turn + off), centre[1] + 46 * sin(turn + off))
            end = between(one, between(centre, tip, 0.8), 0.75)
            parts += [mark(one, role, 4.5), arrow(one, end, role, 1.2, gap=(6, 0))]
    words = ("fixed classifier: equal", "angles, the same for all;", "features learn to fit it")
    return "".join(parts) + lines(words, 206, 66)


@idea
def ccvr() -> str:
    """Clients send mean and spread of each class; the server draws features from them and trains
    the classifier anew.
    """
    left, right = ((58, 52), (104, 92)), ((236, 52), (282, 92))
    parts = [ring(left[0], "one", 34, 18), ring(left[1], "two", 26, 14, "5 3")]
    parts += [circle(left[0], size=3), triangle(left[1], size=4)]
    parts += [text((81, 130), "from clients: mean, spread")]
    spread = ((-24, 2), (-12, -8), (-4, 7), (6, -3), (16, 6), (24, -6))
    parts += [circle((right[0][0] + x, right[0][1] + y), size=3) for x, y in spread]
    parts += [triangle((right[1][0] + x, right[1][1] + y), size=4) for x, y in spread]
    parts += [arrow((146, 72), (192, 72), "ink", 2), text((169, 60), "draws")]
    parts += [line((214, 72), (330, 34), "soft", 1.5, "4 3"), text((334, 30), "before", "end")]
    parts += [line((218, 104), (318, 44), "new", 3)]
    parts += [text((262, 130), "server trains the classifier anew")]
    return "".join(parts)


@idea
def fedgen() -> str:
    """The server learns, from the clients' classifiers, to make features of each class; clients
    train their classifiers on these too.
    """
    parts = [text((66, 24), "from clients: classifiers")]
    for y in (44, 66, 88):
        parts += [line((34, y + 10), (92, y - 6), "soft", 2)]
    parts += [arrow((106, 66), (134, 66), "ink", 2), box((138, 44), 84, 44, "new")]
    parts += [text((180, 64), "generator,"), text((180, 78), "learns of them")]
    parts += [arrow((226, 66), (254, 66), "new", 2)]
    spread = ((-18, 2), (-8, -8), (0, 7), (8, -3), (16, 6))
    parts += [circle((298 + x, 44 + y), "one", 3, hollow=True) for x, y in spread]
    parts += [triangle((298 + x, 92 + y), "two", 4, hollow=True) for x, y in spread]
    parts += [line((258, 76), (340, 60), "new", 3)]
    return "".join([*parts, text((180, 132), "clients also train on features that it makes")])


def logits(many: float, few: float, none: float) -> str:
    """Outputs for classes of which a client has many images, few or none: before, and after."""
    parts, floor, before = [], 112, 78
    for i, (word, after) in enumerate((("many", many), ("few", few), ("none", none))):
        x = 30 + 76 * i
        parts += [box((x, floor - before), 40, before, "soft", "3 2")]
        parts += [box((x, floor - after), 40, after, "one", full=True)] if after else []
        if 0 < after < before - 12:
            parts += [arrow((x + 20, floor - before), (x + 20, floor - after), "new", 2.5)]
        parts += [text((x + 20, 130), word)]
    parts += [line((20, floor), (234, floor), "soft")]
    return "".join([*parts, text((130, 144), "images that the client has", soft=True)])


@idea
def fedlc() -> str:
    """The logits of rare classes are lowered; classes of which the client has no image are left
    out.
    """
    cross = line((188, 40), (216, 106), "two", 2) + line((216, 40), (188, 106), "two", 2)
    words = ("logits of rare", "classes are lowered;", "without images:", "left out, not pushed")
    return logits(70, 40, 0) + cross + lines(words, 244, 46)


@idea
def fedrs() -> str:
    """The logits of classes of which the client has few images or none are scaled down."""
    words = ("logits of rare and", "missing classes are", "scaled down: they", "are pushed less")
    return logits(78, 58, 38) + lines(words, 244, 46)


@idea
def fedntd() -> str:
    """The client keeps the received model's opinions on the classes that an image does not belong
    to; the true one it learns from the label.
    """
    parts = [text((74, 18), "received model"), text((286, 18), "client")]
    theirs, ours = (34, 52, 22, 44), (74, 36, 15, 31)
    for x, heights in ((20, theirs), (232, ours)):
        for i, height in enumerate(heights):
            role, dash = ("one", "") if i else ("soft", "3 2")
            parts += [box((x + 28 * i, 112 - height), 20, height, role, dash, full=i > 0)]
        parts += [line((x - 6, 112), (x + 112, 112), "soft"), text((x + 10, 128), "true")]
        parts += [text((x + 66, 128), "other classes")]
    parts += [arrow((140, 72), (222, 72), "new", 3), text((181, 62), "keep")]
    parts += [text((181, 94), "label alone", soft=True)]
    parts += [text((181, 106), "teaches ‘true’", soft=True)]
    return "".join(parts)
