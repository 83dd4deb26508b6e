"""Files of the repository in the site: some as pages, others at the end of links.

A code host can follow a link out of docs/, a site cannot. So the files in PAGES become pages, other
files downloads (which Sphinx does by itself, except for Markdown), and of a link to a folder its
text remains. A link whose text is the name of a page shows the page's title.
"""

import os
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

PAGES = {  # by their place in the site, where a stub stands
    "project/changes": "CHANGELOG.md",
    "project/contributing": "CONTRIBUTING.md",
    "project/security": "SECURITY.md",
}
LINK = re.compile(r"(?<!!)\[(?P<text>[^]]*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")


def rewritten(text: str, origin: Path, page: Path, docs: Path) -> str:
    """Text of the file `origin`, with links that work on the site's page `page`."""
    places = {docs.parent / file: docs / f"{name}.md" for name, file in PAGES.items()}

    def link(match: re.Match[str]) -> str:
        target = (origin.parent / match["target"]).resolve()
        if target.is_dir():
            return match["text"]
        target = places.get(target, target)
        outside = target.suffix == ".md" and not target.is_relative_to(docs)
        address = f"{'path:' if outside else ''}{os.path.relpath(target, page.parent)}"
        named = not outside and match["text"].endswith(".md")
        return f"[{'' if named else match['text']}]({address}{match['anchor'] or ''})"

    return LINK.sub(link, text)


def _rewrite(app: Sphinx, name: str, source: list[str]) -> None:
    docs, page = Path(app.srcdir), Path(app.env.doc2path(name))
    origin = docs.parent / PAGES[name] if name in PAGES else page
    if page.suffix == ".md":
        text = origin.read_text(encoding="utf-8") if name in PAGES else source[0]
        source[0] = rewritten(text, origin, page, docs)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
