"""What users import: few names, each with a docstring in one style and an example that runs."""

import ast
import doctest
import inspect
import json
import re
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dcfl
from dcfl.cli import new
from tests.site.blocks import PAGES, ROOT, blocks

FUNCTIONS_OF = ("losses", "evaluation")  # modules whose public functions are public names too


def public() -> dict[str, Any]:
    names = {name: getattr(dcfl, name) for name in dcfl.__all__}
    for room in FUNCTIONS_OF:
        module = names[room]
        exported = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        names |= {f"{room}.{name}": getattr(module, name) for name in exported if name[0] != "_"}
    return names


NAMES = public()
CALLABLE = {
    name: value
    for name, value in NAMES.items()
    if inspect.isfunction(value) or (inspect.isclass(value) and name in ("Run",))
}


def test_there_are_few() -> None:
    assert sorted(dcfl.__all__) == sorted(set(dcfl.__all__))
    assert len(dcfl.__all__) <= 34


def test_type_checkers_see_all_of_them() -> None:
    tree = ast.parse(Path(dcfl.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert sorted(alias.asname or "" for node in imports for alias in node.names) == dcfl.__all__
    for node in imports:
        for alias in node.names:
            assert getattr(import_module(node.module or ""), alias.name) is NAMES[alias.name]


def test_the_version_is_the_package_s() -> None:
    assert dcfl.__version__.startswith(f"{version('dcfl')}+")  # and which build it is


def texts_that_people_copy() -> dict[str, str]:
    """Python that we give to users: examples, pages, what `dcfl new` writes. Cards are tested with
    the export."""
    texts = {path.name: path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))}
    blanks = {"title": "T", "module": "m", "name": "n", "class_name": "C"}
    for name, text in {"method": new.METHOD, "model": new.MODEL}.items():
        texts[f"new {name}"] = text.format(**blanks)
    for path in (ROOT / "docs" / "tutorials").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        texts[path.name] = "\n".join(
            "".join(c["source"]) for c in cells if c["cell_type"] == "code"
        )
    texts["new test"] = (new.TEST + new.GROUP_TEST).format(**blanks)
    found = [block for page in PAGES for block in blocks(page)]
    uses = re.compile(r"\b(import dcfl|from dcfl|dcfl\.\w+\()")
    texts |= {str(block): block.text for block in found if uses.search(block.text)}
    return texts


def not_public(text: str) -> set[str]:
    """Names of dcfl that a text uses although they are internal."""
    found = set(re.findall(r"(?:from|import) (dcfl\.[\w.]+)", text))
    for names in re.findall(r"from dcfl import ([\w, ]+)", text):
        found |= set(names.split(", ")) - set(dcfl.__all__)
    return found | set(re.findall(r"\bdcfl\.(?!py\b)(\w+)", text)) - {*dcfl.__all__, "__version__"}


TEXTS = texts_that_people_copy()


@pytest.mark.parametrize("name", TEXTS)
def test_what_people_copy_uses_public_names_alone(name: str) -> None:
    assert not_public(TEXTS[name]) == set()


def test_internal_names_are_noticed() -> None:
    text = "from dcfl.client import Batch\nfrom dcfl import Client, seeding\ndcfl.data.load()"
    assert not_public(text) == {"dcfl.client", "client", "seeding", "data"}
    assert len(TEXTS) > 12


@pytest.mark.parametrize("name", NAMES)
def test_each_says_what_it_is(name: str) -> None:
    value = NAMES[name]
    if isinstance(value, ModuleType | type) or inspect.isfunction(value):
        first = (inspect.getdoc(value) or "").splitlines()[0]
        assert first.endswith((".", ":", ";")) or len(first) > 60
        assert not first.startswith(f"{name}(")  # what a dataclass says of itself


@pytest.mark.parametrize("name", CALLABLE)
def test_functions_have_arguments_results_and_an_example(name: str) -> None:
    value = CALLABLE[name]
    doc = inspect.getdoc(value) or ""
    parameters = [
        parameter.name
        for parameter in inspect.signature(value).parameters.values()
        if parameter.name != "self"
    ]
    assert "Args:" in doc
    assert "Example:" in doc
    assert inspect.isclass(value) or "Returns:" in doc
    described = doc[doc.index("Args:") :]
    for parameter in parameters:
        assert f"    {parameter}:" in described or f"    **{parameter}:" in described, parameter


@pytest.mark.parametrize("name", ["Experiment", "FeatureModel", "Method", "Run"])
def test_what_users_make_themselves_has_an_example(name: str) -> None:
    assert "Example:" in (inspect.getdoc(NAMES[name]) or "")


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    value = NAMES[name]
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(
        optionflags=doctest.ELLIPSIS
        | doctest.NORMALIZE_WHITESPACE
        | doctest.IGNORE_EXCEPTION_DETAIL
    )
    for example in finder.find(value, name, module=False, globs={}):
        runner.run(example)
    assert runner.failures == 0
