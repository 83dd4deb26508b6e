"""What users import: few names, each with a docstring in one style and an example that runs."""

import doctest
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dcfl

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
    assert len(dcfl.__all__) <= 28


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
