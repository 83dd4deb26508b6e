import sys
from pathlib import Path

import pytest

from dcfl.cli.new import new_method
from dcfl.errors import ConfigError
from dcfl.methods.loading import load_methods
from dcfl.testing.contract import check_method

GOOD = """
from dataclasses import dataclass
import dcfl

@dataclass(frozen=True)
class Mine(dcfl.Method):
    mu: float = 1.0
"""


def test_the_methods_of_a_file_are_found_by_name(tmp_path: Path) -> None:
    file = tmp_path / "random.py"  # a name that must not shadow a module
    file.write_text(GOOD)
    (mine,) = load_methods(file).values()
    assert (mine.name, mine().mu) == ("mine", 1.0)  # type: ignore[attr-defined]
    import random

    assert random.random() < 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "defines no method"),
        ("import dcfl\nx = dcfl.Method\n", "defines no method"),
        ("def broken(:\n", "line 1: SyntaxError"),
        ("x = " + "-" * 200_000 + "1\n", "line 1: "),  # too deep for Python's parser
        ("\n\nraise RuntimeError('two\\nlines')\n", "line 3: RuntimeError: two lines"),
        ("import sys\nsys.exit(0)\n", "line 2: SystemExit: 0"),
        (
            "import dcfl\nclass A(dcfl.Method):\n    name = 'mine'\n"
            "class B(dcfl.Method):\n    name = 'mine'\n",
            "A and B are both called mine",
        ),
        ("import no_such_module_at_all\n", "line 1: ModuleNotFoundError"),
    ],
)
def test_files_that_cannot_be_used_are_said_in_one_line(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_methods(file)
    assert "\n" not in str(caught.value)


def test_a_class_may_have_two_names_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"{GOOD}\nTheirs = Mine\n")
    assert list(load_methods(file)) == ["mine"]


@pytest.mark.parametrize(
    "odd",
    [
        "class Lazy(types.ModuleType):\n    def __getattr__(self, name): raise RuntimeError(name)\n"
        "sys.modules['odd'] = Lazy('odd')",
        "sys.modules['odd'] = types.ModuleType('odd')\nsys.modules['odd'].__file__ = 5",
        "sys.modules['odd'] = object()",
    ],
)
def test_odd_modules_that_a_file_loads_are_no_matter(
    odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "odd", sys)
    monkeypatch.delitem(sys.modules, "odd")
    (tmp_path / "own.py").write_text(f"import sys, types\n{odd}\n{GOOD}")
    assert [*load_methods(tmp_path / "own.py")] == ["mine"]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_methods(tmp_path / "none.py")


def test_a_new_method_works_and_is_not_overwritten(tmp_path: Path) -> None:
    method, test = new_method("my-first-idea", tmp_path)
    assert (method.name, test.name) == ("my_first_idea.py", "test_my_first_idea.py")
    (made,) = load_methods(method).values()
    assert made.name == "my-first-idea"
    assert all(verdict.holds for verdict in check_method(made))
    with pytest.raises(ConfigError, match="there already"):
        new_method("my-first-idea", tmp_path)


def test_the_name_of_a_method_that_is_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="moon already"):
        new_method("moon", tmp_path)
    with pytest.raises(ConfigError, match="Python's own"):
        new_method("class", tmp_path)


@pytest.mark.parametrize("name", ["", "My", "9lives", "a b", "../x", "a--b"])
def test_names_that_would_not_work_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a name"):
        new_method(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("raised", ["GeneratorExit", "type('Mine', (BaseException,), {})"])
def test_whatever_a_file_raises_is_one_line(raised: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"raise {raised}('\x1b[31m')\n")
    with pytest.raises(ConfigError, match=r"mine\.py, line 1: "):
        load_methods(file)
