"""Draw docs/images/ideas/: one small picture of the idea of each method.

    python -m benchmarks.ideas

The pages of docs/methods/ get theirs by name (docs/_ext/method_facts.py).
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.ideas import embeddings, models, weights  # noqa: F401  each adds to IDEAS
from benchmarks.ideas.marks import IDEAS, ink

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "images" / "ideas"
PALETTE = ROOT / "dcfl" / "report" / "page.css"
ROLES = {  # by name in the palette
    "ink": "ink",
    "soft": "soft",
    "pale": "bar",
    "edge": "line",
    "card": "panel",
    "one": "series-0",
    "two": "series-1",
    "new": "series-2",
    "own": "series-3",
}
WIDTH, HEIGHT = 360, 150
STYLE = """\
svg {{ {light} font: 11px system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }}
@media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}
text {{ fill: var(--ink); }} .soft {{ fill: var(--soft); }}
"""


@cache
def colours() -> tuple[str, str]:
    """What the roles look like by day and by night: the colours of every page of dcfl."""
    css = PALETTE.read_text(encoding="utf-8")
    pairs = dict(re.findall(r"--([\w-]+): light-dark\((.*)\);", css))
    told = [(role, *pairs[name].split(", ")) for role, name in ROLES.items()]
    light = " ".join(f"--{role}: {day};" for role, day, _ in told)
    return light, " ".join(f"--{role}: {night};" for role, _, night in told)


def picture(name: str) -> str:
    draw = IDEAS[name]
    told = " ".join((draw.__doc__ or "").split())
    light, dark = colours()
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH * 4 // 3}" height="{HEIGHT * 4 // 3}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">'
    )
    parts = [
        f'<title id="title">The idea of {name}</title>',
        f'<desc id="desc">{escape(told)}</desc>',
        f"<style>\n{STYLE.format(light=light, dark=dark)}</style>",
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6" '
        f'fill="{ink("card")}" stroke="{ink("edge")}"/>',
        draw().replace("><", ">\n<"),
    ]
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name in IDEAS:
        (PICTURES / f"{name}.svg").write_text(picture(name), encoding="utf-8")


if __name__ == "__main__":
    main()
