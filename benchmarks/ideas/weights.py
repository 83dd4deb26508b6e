"""Where the weights go in a round: the methods that change a step, or the server's."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.ideas.marks import (
    Point,
    arrow,
    between,
    bow,
    box,
    circle,
    diamond,
    idea,
    line,
    ring,
    spring,
    square,
    tag,
    text,
    triangle,
)

MIDDLE: Point = (68, 75)  # where the shared model stands before a round
ENDS: tuple[Point, Point] = ((196, 36), (196, 114))  # where two clients end
OPTIMA: tuple[Point, Point] = ((234, 22), (234, 128))  # where each alone would go
BESIDE: Point = (110, 86)  # the weights, where the gradient is taken beside them


def clients(ends: tuple[Point, Point] = ENDS, bend: float = 30) -> str:
    """Two clients walk from the received weights towards their own data."""
    x = (MIDDLE[0] + ends[0][0]) / 2
    paths = [
        bow(MIDDLE, (x - 20, ends[0][1] - bend * 0.2), ends[0], "one"),
        bow(MIDDLE, (x - 20, ends[1][1] + bend * 0.2), ends[1], "two", "5 3"),
    ]
    goals = [
        ring(OPTIMA[0], "one") + text((246, 26), "best for client 1", "start"),
        ring(OPTIMA[1], "two") + text((246, 132), "best for client 2", "start"),
    ]
    return "".join([*paths, *goals, square(MIDDLE), text((56, 79), "received", "end")])


def mean_of(ends: tuple[Point, Point] = ENDS) -> str:
    middle = between(*ends, 0.5)
    parts = [line(end, middle, "soft", 1, "2 3") for end in ends]
    parts += [square(middle, hollow=True), text((middle[0] + 12, middle[1] + 4), "mean", "start")]
    return "".join(parts)


@idea
def fedavg() -> str:
    """Two clients walk from the received weights towards what is best for each; the server takes
    the mean.
    """
    return clients() + mean_of()


@idea
def fedprox() -> str:
    """As in FedAvg, but springs tie both clients to the received weights, and they end nearer."""
    ends = ((160, 48), (160, 102))
    springs = "".join(spring(MIDDLE, end, gap=(12, 4)) for end in ends)
    word = text((24, 22), "springs hold both back", "start")
    return clients(ends, 90) + springs + mean_of(ends) + word


def corrected(first: Sequence[Point], words: tuple[str, str]) -> str:
    """Of each of two clients: its own direction, what is added to it, and the step that results.

    `first` are the start, the end of the own direction and of the sum, for the upper client.
    """
    start, own, end = first
    parts = []
    for side, role, dash in ((1, "one", ""), (-1, "two", "5 3")):
        a, b, c = ((x, 75 - side * (75 - y)) for x, y in (start, own, end))
        parts += [arrow(a, c, "ink", 3), arrow(a, b, role, dash=dash)]
        parts += [arrow(b, c, "new", gap=(0, 3))]
    middle = (own[0] + end[0]) / 2
    parts += [text((own[0] - 10, own[1] - 3), words[0], "end")]
    parts += [text((middle + 14, (own[1] + end[1]) / 2 - 6), words[1], "start")]
    return "".join(parts)


@idea
def scaffold() -> str:
    """Each client adds to its own direction the common one minus its usual one; the sums point the
    same way.
    """
    start, own, end = (82, 64), (156, 22), (228, 60)
    parts = corrected((start, own, end), ("own direction g", "+ common c − own c₁"))
    goal = text((238, 72), "both walk the", "start") + text((238, 86), "common way", "start")
    return parts + square(MIDDLE) + text((56, 79), "received", "end") + goal


@idea
def fedcm() -> str:
    """Each step takes a little of the client's own gradient and much of the server's last move."""
    last = arrow((20, 75), (106, 75), "ink", 3, "1 0") + text((60, 95), "last move Δ")
    start, own, end = (128, 66), (146, 38), (270, 38)
    parts = corrected((start, own, end), ("a little own gradient", "+ much of Δ"))
    return last + square((118, 75)) + parts


@idea
def feddyn() -> str:
    """Each client's loss is tilted against its drift so far, so that all walk to one common
    minimum.
    """
    goal, starts = (232, 75), ((188, 24), (188, 126))
    parts = [
        bow(MIDDLE, (140, 40), (222, 69), "one"),
        bow(MIDDLE, (140, 110), (222, 81), "two", "5 3"),
    ]
    for start, role in zip(starts, ("one", "two"), strict=True):
        parts += [ring(start, role, dash="3 2"), arrow(start, goal, "new", gap=(8, 12))]
    parts += [
        square(goal, hollow=True) + text((247, 79), "common minimum", "start"),
        square(MIDDLE) + text((56, 79), "received", "end"),
        text((174, 28), "client 1 alone", "end"),
        text((174, 130), "client 2 alone", "end"),
        text((222, 32), "loss tilted against", "start"),
        text((222, 45), "its drift so far", "start"),
    ]
    return "".join(parts)


def aimed(now: Point) -> str:
    """A client that is pulled to a target as far off as it drifted before, on the other side."""
    start, aim, drift = (130, 78), (58, 112), (202, 44)
    parts = [
        arrow(start, drift, "one", dash="2 3", gap=(9, 0)),
        text((208, 44), "drift so far", "start"),
        ring(aim, "new", 8) + text((12, 138), "aim: as far the other way", "start"),
        square(start) + text((146, 90), "received", "start"),
        spring(now, aim, gap=(8, 11)) + circle(now),
    ]
    return "".join(parts)


@idea
def feddc() -> str:
    """A spring pulls a client to an aim that lies as far on the other side as it drifted before;
    SCAFFOLD's correction is added.
    """
    now = (136, 26)
    step = arrow(now, (196, 16), "new") + text((202, 20), "and SCAFFOLD’s c − c₁", "start")
    return aimed(now) + text((124, 24), "weights", "end") + step


@idea
def fedspeed() -> str:
    """A spring pulls a client to an aim opposite to its drift so far; the gradient is taken a
    little uphill, as in FedSAM.
    """
    now, climb = (286, 98), (308, 72)
    parts = [
        ring(now, "new", 34, dash="3 2"),
        arrow(now, climb, "new", gap=(6, 0)),
        text((352, 40), "uphill, as", "end") + text((352, 53), "in FedSAM", "end"),
        arrow(climb, (350, 86), "one", dash="2 2"),
        arrow(now, (334, 114), "one", 3, gap=(6, 0)),
    ]
    return "".join(parts) + aimed(now)


def sidestep(to: Point, words: tuple[str, str], edge: str = "") -> str:
    """The gradient is taken beside the weights, and used at the weights."""
    now, slope = BESIDE, (74, 26)
    tip = (to[0] + slope[0], to[1] + slope[1])
    end = (now[0] + slope[0], now[1] + slope[1])
    parts = [
        edge,
        arrow(now, to, "new", gap=(6, 0)),
        text((to[0] + 8, to[1] - 16), words[0], "start"),
        text((to[0] + 8, to[1] - 4), words[1], "start"),
        arrow(to, tip, "one", 1.5, "3 2"),
        text((tip[0] + 5, tip[1] + 4), "gradient there", "start"),
        line(tip, end, "soft", 1, "1 3"),
        arrow(now, end, "one", 3, gap=(6, 0)),
        text((end[0] + 5, end[1] + 8), "used here", "start"),
        circle(now) + text((104, 104), "weights"),
    ]
    return "".join(parts)


@idea
def fedsam() -> str:
    """The gradient is taken at the worst place within a circle around the weights, and used at the
    weights.
    """
    edge = ring(BESIDE, "new", 46, dash="3 2")
    return sidestep((139, 50), ("uphill, to the worst", "place nearby"), edge)


@idea
def fedasam() -> str:
    """As in FedSAM, but the circle is an ellipse: large weights are moved more than small ones."""
    axes = arrow((24, 136), (24, 60), "soft", 1) + arrow((24, 136), (96, 136), "soft", 1)
    words = text((20, 52), "small weight", "start") + text((100, 140), "large weight", "start")
    edge = ring(BESIDE, "new", 76, 26, "3 2")
    climb = sidestep((160, 66), ("uphill, each weight in", "proportion to its size"), edge)
    return climb + axes + words


@idea
def fedsol() -> str:
    """The gradient is taken where the received model would be forgotten fastest, and used at the
    weights.
    """
    received = (30, 110)
    away = line(received, BESIDE, "soft", 1, "2 3") + square(received)
    climb = sidestep((154, 50), ("to where it forgets the", "received model fastest"), away)
    return climb + text((18, 134), "received", "start")


@idea
def per_fedavg() -> str:
    """The gradient is taken one step of training ahead, on the other half of the batch, and used at
    the weights.
    """
    other = text((237, 105), "on the other half", "start")
    return sidestep((158, 62), ("one step ahead,", "on half of the batch")) + other


@idea
def fedexp() -> str:
    """The mean of two clients that disagree is short; the server goes further along it."""
    ends = ((146, 20), (146, 130))
    mean, goal = (136, 75), (276, 75)
    parts = [
        arrow(MIDDLE, ends[0], "one", gap=(10, 0)),
        arrow(MIDDLE, ends[1], "two", dash="5 3", gap=(10, 0)),
        *(line(end, mean, "soft", 1, "2 3") for end in ends),
        arrow(mean, goal, "new", 3, gap=(4, 9)),
        arrow(MIDDLE, mean, "ink", 3, gap=(9, 0)),
        text((154, 24), "client 1", "start") + text((154, 134), "client 2", "start"),
        text((106, 68), "mean"),
        square(MIDDLE) + text((56, 79), "server", "end"),
        square(goal, hollow=True),
        text((206, 62), "further, the more"),
        text((206, 94), "they disagree"),
    ]
    return "".join(parts)


@idea
def server_side() -> str:
    """Aggregation makes one direction D of the replies, if need be without outliers; the optimiser
    makes a step of D and what it remembers of earlier rounds.
    """
    now, replies, outlier = (30, 66), ((122, 34), (148, 84), (120, 98)), (84, 126)
    parts = [arrow(now, one, "one", 1.2, gap=(10, 6)) + circle(one) for one in replies]
    parts += [arrow(now, outlier, "two", 1.2, "5 3", gap=(10, 7)), triangle(outlier)]
    start, step, end = (212, 104), (278, 104), (322, 48)
    parts += [
        arrow(now, (124, 71), "ink", 3, gap=(9, 0)) + text((130, 70), "D", "start"),
        text((97, 131), "may not count", "start"),
        arrow(start, step, "ink", 3, gap=(9, 0)) + text((250, 122), "D"),
        arrow(step, end, "soft", dash="3 2", gap=(2, 9)) + text((306, 88), "memory", "start"),
        arrow(start, end, "new", 3, gap=(9, 10)) + text((248, 70), "step", "end"),
        square(now) + square(start) + square(end, hollow=True),
        text((16, 18), "aggregation: replies to D", "start"),
        text((200, 18), "optimiser: D to a step", "start"),
        line((186, 10), (186, 140), "pale", 1),
    ]
    return "".join(parts)


def rows(measures: Sequence[str], widths: Sequence[float], words: Sequence[str], rule: str) -> str:
    """What the server knows of three clients, and how much each of them counts."""
    parts, goal = [], (288, 75)
    for i, (measure, width, word) in enumerate(zip(measures, widths, words, strict=True)):
        y = 30 + 45 * i
        parts += [text((12, y + 4), word, "start")]
        parts += [tag("g", measure, transform=f"translate(76 {y})")]
        parts += [arrow((140, y), goal, "new", width, gap=(0, 12))]
    return "".join([*parts, square(goal, size=9, hollow=True), text((288, 104), rule)])


def bars(heights: Sequence[float]) -> str:
    told = [box((14 * i, 14 - high), 10, high, "one", full=True) for i, high in enumerate(heights)]
    return "".join(told)


@idea
def feddisco() -> str:
    """Clients with an even mix of classes count more in the server's mean than one-sided ones."""
    mixes = [bars([18, 17, 18, 17]), bars([28, 18, 8, 4]), bars([34, 3, 2, 2])]
    return rows(mixes, (6, 3.5, 1.2), ("even mix", "uneven", "one-sided"), "weighted mean")


@idea
def q_fedavg() -> str:
    """Clients on whose images the received model has a high loss count more in its step."""
    losses = [tag("g", box((0, -6), loss, 12, "one", full=True)) for loss in (8, 26, 52)]
    return rows(losses, (1.2, 3.5, 6), ("low loss", "middling", "high loss"), "weighted step")


@idea
def fedma() -> str:
    """Two clients have learnt the same neurons in another order; they are matched before the mean
    is taken.
    """
    marks = {"a": circle, "b": triangle, "c": diamond}
    roles = {"a": "one", "b": "two", "c": "own"}
    columns = {"client 1": (60, "abc"), "client 2": (180, "cab"), "mean": (300, "abc")}
    parts, places = [], {}
    for word, (x, order) in columns.items():
        parts.append(text((x, 18), word))
        for i, which in enumerate(order):
            places[word, which] = (x, 42 + 36 * i)
    for which, mark in marks.items():
        own = [places[word, which] for word in columns]
        parts += [line(own[0], own[1], "new"), arrow(own[1], own[2], "new", gap=(0, 12))]
        parts += [mark(one, roles[which], 9) for one in own]
    return "".join([*parts, text((120, 144), "same neuron, another place")])
