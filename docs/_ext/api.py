"""The public names, as directives for autodoc, and their docstrings made ready for it."""

import inspect
from collections.abc import Sequence
from pydoc import locate
from types import ModuleType
from typing import Any

from commented_fields import meanings
from markdown_tables import key_table
from sphinx.application import Sphinx

import dcfl

SECTIONS = ("Args:", "Returns:", "Raises:", "Example:", "Yields:")
GROUPS = {
    "Train, compare, search": [
        "run",
        "resume",
        "compare",
        "sweep",
        "Run",
        "load_experiment",
        "Experiment",
        "Tracker",
    ],
    "What comes out": ["Result", "open_run", "RoundRow", "Summary", "Comparison"],
    "Use a model": ["load_model", "evaluate", "predict", "Scores"],
    "Methods, models and data of your own": (
        [
            "Method",
            "Objective",
            "ServerStep",
            "ClientUpdate",
            "Client",
            "Batch",
            "METHODS",
            "FeatureModel",
            "Output",
            "adapt",
            "ModelSettings",
            "build_model",
            "Dataset",
            "check",
        ]
    ),
}
NAMED = {  # what public names give or have, by the place of the class
    "open_run": ["dcfl.runs.folder.RecordedRun", "dcfl.runs.rows.ClientRow"],
    "Client": ["dcfl.data.client_data.ClientData", "dcfl.local_training.LocalTraining"],
}
ABOUT = {  # what has no docstring of its own
    "dcfl.METHODS": "All methods by name: a dict of classes that derive from `Method`.",
    "dcfl.Objective": "The loss of a batch: a function of a `Batch` that returns a scalar tensor.",
}
HIDDEN_COLON = "\ue000"
MODULES = ("losses", "evaluation", "errors")


def page() -> str:
    named = [name for names in GROUPS.values() for name in names]
    missing = sorted(set(dcfl.__all__) ^ {*named, *MODULES})
    if missing:
        raise ValueError(f"docs/_ext/api.py gives no place to {', '.join(missing)}, or too many")
    parts = []
    for title, names in GROUPS.items():
        parts.append(f"## {title}")
        for name in names:
            parts.append(_directive(f"dcfl.{name}", getattr(dcfl, name)))
            parts += [_directive(path, locate(path)) for path in NAMED.get(name, ())]
    for name in MODULES:
        parts += [f"## `dcfl.{name}`", *_functions(getattr(dcfl, name))]
    return "\n\n".join(parts)


def _functions(module: ModuleType) -> list[str]:
    exported = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and name[0] != "_"
    ]
    about = (inspect.getdoc(module) or "").partition("\n\n")[0]
    found = [(name, getattr(module, name)) for name in exported]
    return [about, *(_directive(f"{module.__name__}.{name}", one) for name, one in found)]


def _directive(path: str, value: Any) -> str:
    if path in ABOUT:
        return _autodoc(f"py:data:: {path}", ["", f"   {ABOUT[path]}"])
    if not inspect.isclass(value):
        return _autodoc(f"autofunction:: {path}")
    if issubclass(value, Exception):
        return _autodoc(f"autoexception:: {path}")
    if value.__name__ in ("FeatureModel", "Experiment"):
        return _autodoc(f"autoclass:: {path}")
    told = _fields(value)
    members = ["   :members:", f"   :exclude-members: {', '.join(told)}"]
    described = _autodoc(f"autoclass:: {path}", [*members, "   :member-order: bysource"])
    rows = [
        [f"`{name}`", f"`{kind}`", meanings(value).get(name, "")] for name, kind in told.items()
    ]
    fields = key_table(["field", "type", "meaning"], rows, kind="fields") if rows else ""
    return f"{described}\n\n{fields}"


def _autodoc(directive: str, options: Sequence[str] = ()) -> str:
    return "\n".join(["```{eval-rst}", f".. {directive}", *options, "```"])


def _fields(owner: type) -> dict[str, str]:
    """With their types, as they are written."""
    return {
        name: str(kind)
        for one in reversed(owner.__mro__)
        if one.__module__.startswith("dcfl")
        for name, kind in vars(one).get("__annotations__", {}).items()
        if name[0] != "_" and not str(kind).startswith("ClassVar")
    }


def readable(
    app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Blocks that are indented, as in Markdown, are literal. A property's colon is hidden from
    napoleon, which would take what stands before it for a type."""
    if what == "property":
        lines[:] = [line.replace(":", HIDDEN_COLON) for line in lines]
    made: list[str] = []
    section, literal = "", False
    for before, line in zip(["", *lines], lines, strict=False):
        section = line if line in SECTIONS else section if line.startswith(" ") or not line else ""
        if line.startswith("    ") and not before and not section:
            made += ["::", ""]
            literal = True
        literal = literal and (line.startswith("    ") or not line)
        made.append(line if literal else line.replace("|", r"\|"))
    lines[:] = made


def with_colons(
    app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    lines[:] = [line.replace(HIDDEN_COLON, ":") for line in lines]


def without_checks(
    app: Sphinx, what: str, name: str, value: object, options: object, given: str, returned: str
) -> tuple[str, str] | None:
    """A row's fields are in the table below it; its signature would have how each is checked."""
    return ("", returned) if given and "FieldInfo(" in given else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", readable, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", with_colons, priority=600)  # after it
    app.connect("autodoc-process-signature", without_checks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
