"""What a user's file imports is part of what was run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dcfl.methods import METHODS
from dcfl.system import own_files
from tests.command_line import Call

METHOD = """
import dataclasses
import numpy
import dcfl
{imports}

@dataclasses.dataclass(frozen=True)
class Mine(dcfl.Method):
    name = "mine"
"""
MODEL = """
from torch import nn
{imports}

def net(channels, size, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))
"""
WORDS = ("data.clients=4", "federation.rounds=2", "engine.workers=1", "output.checkpoint=1")
IMPORTS = {
    "a module": "import helper",
    "a function of it": "from helper import rate",
    "a constant of it": "from helper import RATE",
    "a part of a package": "from lib.part import rate",
    "by name": "import importlib; importlib.import_module('helper')",
}


@pytest.fixture
def anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """As a new process has it: none of the user's modules is loaded."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    (tmp_path / "lib" / "part.py").write_text("from helper import rate")
    (tmp_path / "helper.py").write_text("from deeper import RATE\n\ndef rate(): return RATE\n")
    (tmp_path / "deeper.py").write_text("RATE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it goes by seconds

    def forget() -> None:
        own_files._LOADED.clear()
        METHODS.pop("mine", None)
        for name in ("helper", "deeper", "lib", "lib.part", "lib.near"):
            sys.modules.pop(name, None)

    return forget


@pytest.mark.parametrize("kind", IMPORTS)
@pytest.mark.parametrize("option", ["--method-file", "--model-file"])
def test_an_edited_import_is_an_edited_file(
    option: str, kind: str, anew: Callable[[], None], cli: Call, tmp_path: Path
) -> None:
    text = METHOD if option == "--method-file" else MODEL
    (tmp_path / "mine.py").write_text(text.format(imports=IMPORTS[kind]))
    own = (option, "mine.py")
    anew()
    assert cli("run", *WORDS, *own, "--out", "run")[0] == 0
    anew()
    assert cli("resume", "run", "--rounds", 3, *own)[0] == 0
    anew()
    (tmp_path / "deeper.py").write_text("RATE = 2\n")  # imported by what is imported
    code, _, err = cli("resume", "run", "--rounds", 4, *own)
    assert code == 2
    assert f"begun with something else: {option[2:].partition('-')[0]} was" in err
    assert err.count("\n") == 1
    if option == "--model-file":
        code, _, err = cli("evaluate", "run", *own)
        assert code == 2
        assert "is not the file that run was trained with" in err
    anew()
    allowed = ("--allow", option[2:].partition("-")[0])
    assert cli("resume", "run", "--rounds", 4, *own, *allowed)[0] == 0


SOURCES = {
    "a module": ("import helper\nimport torch, json", {"helper", "deeper"}),
    "a constant": ("from deeper import RATE", {"deeper"}),
    "a part of a package": ("from lib import part", {"lib", "lib.part", "helper", "deeper"}),
    "relative": ("import lib.near", {"lib", "lib.near", "lib.part", "helper", "deeper"}),
    "in a function": ("def later():\n    import lib.near, nowhere", {"lib", "lib.near", "lib.part",
                      "helper", "deeper"}),
    "if it is there": ("try:\n    from . import near\nexcept ImportError:\n    import deeper",
                       {"deeper"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", SOURCES)
def test_what_ran_before_does_not_change_what_a_file_imports(
    kind: str, anew: Callable[[], None], tmp_path: Path
) -> None:
    source, imported = SOURCES[kind]
    (tmp_path / "lib" / "near.py").write_text("from .part import rate\nfrom . import part\n")
    (tmp_path / "first.py").write_text("from lib.near import rate\nimport deeper\n")
    (tmp_path / "second.py").write_text(source)
    found = []
    for before in ([], ["first.py"]):
        anew()
        for name in before:
            own_files.run_file(tmp_path / name)
        found.append(own_files.run_file(tmp_path / "second.py").imported)
    assert found[0] == found[1]
    assert set(found[0]) == imported


def test_two_files_may_share_a_constant(
    anew: Callable[[], None], cli: Call, tmp_path: Path
) -> None:
    shared = "from deeper import RATE"
    (tmp_path / "m.py").write_text(METHOD.format(imports=shared))
    (tmp_path / "n.py").write_text(MODEL.format(imports=shared))
    anew()
    files = ("--method-file", "m.py", "--model-file", "n.py")
    assert cli("run", *WORDS, *files, "--out", "run")[0] == 0
    anew()
    assert cli("evaluate", "run", "--model-file", "n.py")[0] == 0
    anew()
    (tmp_path / "deeper.py").write_text("RATE = 2\n")
    code, _, err = cli("evaluate", "run", "--model-file", "n.py")
    assert code == 2
    assert err == "dcfl: n.py is not the file that run was trained with: deeper has changed\n"


def test_a_file_that_imports_nothing_is_known_by_its_own_hash(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(METHOD.format(imports=""))
    file = own_files.run_file(tmp_path / "mine.py")
    assert not file.imported
    assert file.code_sha256 == file.sha256


def test_the_copy_without_its_import_is_one_line(
    anew: Callable[[], None], cli: Call, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(METHOD.format(imports="import helper"))
    anew()
    assert cli("run", *WORDS, "--method-file", "mine.py", "--out", "run")[0] == 0
    shutil.move(tmp_path / "helper.py", tmp_path / "elsewhere.py")
    anew()
    code, _, err = cli("resume", "run", "--rounds", 3, "--method-file", "run/method.py")
    assert code == 2
    assert err == "dcfl: run/method.py, line 5: ModuleNotFoundError: No module named 'helper'\n"
