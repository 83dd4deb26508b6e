"""Notebooks as pages: their text, and their code without outputs, which are not kept."""

import json
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

FENCES = {"markdown": ("", ""), "code": ("```python\n", "\n```")}


class NotebookParser(MystParser):
    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(as_markdown(json.loads(inputstring)), document)


def as_markdown(notebook: dict[str, Any]) -> str:
    cells = [(*FENCES[cell["cell_type"]], "".join(cell["source"])) for cell in notebook["cells"]]
    return "\n\n".join(f"{before}{text}{after}" for before, after, text in cells)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
