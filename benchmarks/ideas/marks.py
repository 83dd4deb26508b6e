"""The marks that the pictures of ideas are made of, and the list of the pictures.

The same mark means the same everywhere: a square is the shared model, a diamond what is a client's
own; circles and solid blue are one client or the image's class, triangles and dashed orange another
client or the other classes; green is what the method adds to FedAvg. No meaning hangs on colour
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import atan2, cos, hypot, pi, sin
from xml.sax.saxutils import escape

Point = tuple[float, float]
Drawing = Callable[[], str]
IDEAS: dict[str, Drawing] = {}  # by page of docs/methods/


def idea(draw: Drawing) -> Drawing:
    """Its docstring is what those read who cannot see the picture."""
    IDEAS[draw.__name__.replace("_", "-")] = draw
    return draw


def tag(name: str, inner: str = "", /, **attributes: object) -> str:
    told = "".join(
        f' {key.replace("_", "-")}="{_short(value)}"' for key, value in attributes.items()
    )
    return f"<{name}{told}>{inner}</{name}>" if inner else f"<{name}{told}/>"


def _short(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def ink(role: str) -> str:
    return f"var(--{role})"


def text(at: Point, words: str, anchor: str = "middle", soft: bool = False) -> str:
    how = {"class": "soft"} if soft else {}
    return tag("text", escape(words), x=at[0], y=at[1], text_anchor=anchor, **how)


def polygon(points: Sequence[Point], role: str, hollow: bool = False) -> str:
    corners = " ".join(f"{_short(float(x))},{_short(float(y))}" for x, y in points)
    fill = ink("card" if hollow else role)
    return tag("polygon", points=corners, fill=fill, stroke=ink(role), stroke_width=1.5)


def circle(at: Point, role: str = "one", size: float = 5, hollow: bool = False) -> str:
    fill = ink("card" if hollow else role)
    return tag("circle", cx=at[0], cy=at[1], r=size, fill=fill, stroke=ink(role), stroke_width=1.5)


def triangle(at: Point, role: str = "two", size: float = 6, hollow: bool = False) -> str:
    x, y = at
    corners = [(x, y - size), (x + size, y + size * 0.8), (x - size, y + size * 0.8)]
    return polygon(corners, role, hollow)


def square(at: Point, role: str = "ink", size: float = 7, hollow: bool = False) -> str:
    x, y = at
    turns = ((-size, -size), (size, -size), (size, size), (-size, size))
    return polygon([(x + across, y + down) for across, down in turns], role, hollow)


def diamond(at: Point, role: str = "own", size: float = 8, hollow: bool = False) -> str:
    x, y = at
    return polygon([(x, y - size), (x + size, y), (x, y + size), (x - size, y)], role, hollow)


def star(at: Point, role: str, size: float = 9, hollow: bool = False) -> str:
    """A prototype."""
    x, y = at
    turns = [(size if i % 2 == 0 else size * 0.45, pi * (i / 5 - 0.5)) for i in range(10)]
    return polygon([(x + r * cos(turn), y + r * sin(turn)) for r, turn in turns], role, hollow)


def ring(at: Point, role: str = "soft", across: float = 7, down: float = 0, dash: str = "") -> str:
    """A place to reach, or the edge of a neighbourhood."""
    more = {"stroke_dasharray": dash} if dash else {}
    where = {"cx": at[0], "cy": at[1], "rx": across, "ry": down or across}
    return tag("ellipse", fill="none", stroke=ink(role), stroke_width=1.5, **where, **more)


def line(a: Point, b: Point, role: str = "soft", width: float = 1.5, dash: str = "") -> str:
    more = {"stroke_dasharray": dash} if dash else {}
    ends = {"x1": a[0], "y1": a[1], "x2": b[0], "y2": b[1]}
    return tag("line", stroke=ink(role), stroke_width=width, **ends, **more)


def between(a: Point, b: Point, share: float) -> Point:
    return (a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share)


def _beside(a: Point, b: Point, start: float, end: float) -> tuple[Point, Point]:
    """The line from a to b without the first and the last pixels, which marks cover."""
    length = hypot(b[0] - a[0], b[1] - a[1])
    return between(a, b, start / length), between(b, a, end / length)


def _head(at: Point, turn: float, role: str, size: float) -> str:
    left, right = (
        (at[0] - size * cos(turn + side), at[1] - size * sin(turn + side)) for side in (0.42, -0.42)
    )
    return polygon([at, left, right], role)


def arrow(
    a: Point,
    b: Point,
    role: str = "soft",
    width: float = 1.8,
    dash: str = "",
    gap: tuple[float, float] = (0, 0),
) -> str:
    a, b = _beside(a, b, *gap)
    turn, size = atan2(b[1] - a[1], b[0] - a[0]), 6 + width
    neck = (b[0] - size * 0.7 * cos(turn), b[1] - size * 0.7 * sin(turn))
    return line(a, neck, role, width, dash) + _head(b, turn, role, size)


def bow(a: Point, control: Point, b: Point, role: str, dash: str = "") -> str:
    """A bent path of training, from a to b."""
    turn = atan2(b[1] - control[1], b[0] - control[0])
    end = (b[0] - 5 * cos(turn), b[1] - 5 * sin(turn))
    points = [_short(float(value)) for point in (a, control, end) for value in point]
    d = "M{} {} Q{} {} {} {}".format(*points)
    more = {"stroke_dasharray": dash} if dash else {}
    path = tag("path", d=d, fill="none", stroke=ink(role), stroke_width=1.8, **more)
    return path + _head(b, turn, role, 8)


def spring(a: Point, b: Point, role: str = "new", gap: tuple[float, float] = (9, 9)) -> str:
    a, b = _beside(a, b, *gap)
    turn = atan2(b[1] - a[1], b[0] - a[0])
    count = max(4, round(hypot(b[0] - a[0], b[1] - a[1]) / 6))
    points = [a]
    for i in range(1, count):
        x, y = between(a, b, i / count)
        side = 4 if i % 2 else -4
        points.append((x - side * sin(turn), y + side * cos(turn)))
    told = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*points, b])
    return tag("polyline", points=told, fill="none", stroke=ink(role), stroke_width=1.5)


def box(
    at: Point, across: float, down: float, role: str, dash: str = "", full: bool = False
) -> str:
    more = {"stroke_dasharray": dash} if dash else {}
    where = {"x": at[0], "y": at[1], "width": across, "height": down, "rx": 3}
    how = {"fill": ink(role if full else "card"), "stroke": ink(role), "stroke_width": 1.5}
    return tag("rect", **where, **how, **more)


def slider(at: Point, length: float, share: float, words: str) -> str:
    """A weight: how far along a line its knob stands."""
    end = (at[0] + length, at[1])
    knob = circle(between(at, end, share), "new")
    return text((at[0], at[1] - 9), words, "start") + line(at, end, "pale", 3) + knob


def lines(words: Sequence[str], x: float, top: float) -> str:
    return "".join(text((x, top + 15 * i), word, "start") for i, word in enumerate(words))
