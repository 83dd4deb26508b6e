"""The page around the content: styles, scripts, and the policy that lets in nothing else.

A page is one file. It asks nobody for anything, and a browser runs only what is hashed in its
Content-Security-Policy, whatever the names in the content are.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dcfl.report import text
from dcfl.system.printable import printable_lines
from dcfl.system.storage import strict_json

HERE = Path(__file__).parent
UPLOT = HERE / "vendor" / "uplot"
CHART = '<script type="application/json">'  # begins a chart's data; foreign text cannot
START = "dcflPage.start();"
CHARTS = ("chart_parts.js", "chart_curves.js", "chart_panels.js", "chart_matrix.js", "charts.js")


def rendered(template: str, **values: Any) -> str:
    """A whole page. The template makes its content."""
    return whole_page(values["title"], content(template, **values))


def content(template: str, *, stills: bool = True, **values: Any) -> Markup:
    """What stands on a page. Without `stills`, pictures that have a chart are not drawn."""
    return Markup(_environment().get_template(template).render(stills=stills, **values))


def whole_page(title: str, body: Markup, follow: str = "") -> str:
    """`follow` is a script that keeps the page up to date; it may ask the page's own server."""
    styles, scripts = ["page.css"], ["page.js"]
    if CHART in body or follow:
        styles, scripts = ["uplot.css", *styles], ["uplot.js", *CHARTS, *scripts]
    style = Markup("\n".join(map(_asset, styles)))
    script = Markup("\n".join([*map(_asset, scripts), START, follow]))
    return (
        _environment()
        .get_template("base.html.j2")
        .render(
            title=title,
            body=body,
            style=style,
            script=script,
            policy=_policy([style], [script], bool(follow)),
            has_charts=len(scripts) > 1,
            follows=bool(follow),
            version=version("dcfl"),
        )
    )


def json_in_html(value: Any) -> Markup:
    """JSON for a script element: no character in it can end the element or begin a comment."""
    safe = strict_json(value)
    for char in "<>&":
        safe = safe.replace(char, f"\\u{ord(char):04x}")
    return Markup(safe)


def _policy(styles: Sequence[str], scripts: Sequence[str], follows: bool) -> str:
    rules = {
        "default-src": ["'none'"],
        "img-src": ["data:"],
        "style-src": [_hash(style) for style in styles],
        "script-src": [_hash(script) for script in scripts],
        "connect-src": ["'self'"] if follows else ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    return "; ".join(" ".join([name, *sources]) for name, sources in rules.items())


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


@cache
def _asset(name: str) -> str:
    """uPlot comes with its licence."""
    if name == "uplot.js":
        licence = (UPLOT / "LICENSE").read_text("utf-8")
        return f"/*! uPlot\n{licence}\n*/\n{(UPLOT / 'uPlot.iife.min.js').read_text('utf-8')}"
    path = UPLOT / "uPlot.min.css" if name == "uplot.css" else HERE / name
    return path.read_text("utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dcfl.report", ""),
        # Names of classes, folders and methods are other people's text.
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=text.number,
        signed=text.signed,
        deviation=text.deviation,
        interval=text.interval,
        on_images=text.on_images,
        plural=text.plural,
    )
    return environment


def _shown(value: Any) -> Any:
    foreign = isinstance(value, str) and not isinstance(value, Markup)  # Markup is ours
    return printable_lines(value) if foreign else value
