"""A13: no pickle on disk or on the wire, no code named by a file, no network in a plain run."""

from __future__ import annotations

import ast
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dcfl
from dcfl.data.readers import pickles

PACKAGE = Path(dcfl.__file__).parent
MODULES = {
    "pickle", "pickletools", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal",
    "shelve", "code", "codeop", "runpy",
}  # fmt: skip
CALLS = {
    "eval", "exec", "compile", "__import__", "torch.load", "torch.save", "torch.jit.load",
    "np.fromfile", "os.system", "os.popen", "yaml.load",
}  # fmt: skip
# CIFAR's files are pickles: one file reads them, with nothing to call but its own
# classes. A name from a fixed table is imported late; the user's own file is run because a command
# line names it; a peer's package lies in either place.
READER = "data/readers/pickles.py"
IMPORTS = {
    "system/own_files.py", "__init__.py",
    # Flower's own, by names that stand in the source.
    "flower/app_pin.py", "flower/deploy/clientapp_server.py",
}  # fmt: skip
# An exported file is loaded by the process that has just written it.
OWN_WORK = {("trained/exported_graph.py", "torch.jit.load")}


def dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def offences(path: Path) -> Iterator[str]:
    name = path.relative_to(PACKAGE).as_posix()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        where = f"{name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                root = module.partition(".")[0]
                if root in MODULES and (name, module) != (READER, "pickle"):
                    yield f"{where} imports {module}"
                code = module in ("importlib", "importlib.util", "importlib.machinery")
                wanted = {alias.name for alias in node.names}
                harmless = wanted in ({"resources"}, {"find_spec"})  # neither runs anything
                if code and not harmless and name not in IMPORTS:
                    yield f"{where} imports {module}"
        elif isinstance(node, ast.Call):
            if dotted(node.func) in CALLS and (name, dotted(node.func)) not in OWN_WORK:
                yield f"{where} calls {dotted(node.func)}"
            for keyword in node.keywords:
                value = keyword.value
                fine = isinstance(value, ast.Constant) and value.value is False
                if keyword.arg == "allow_pickle" and not fine:
                    yield f"{where} allows pickles"
        elif isinstance(node, ast.Attribute) and node.attr in ("find_class", "load_module"):
            yield f"{where} uses {node.attr}"


def test_the_source_uses_no_pickle_and_runs_no_text() -> None:
    assert not [offence for path in PACKAGE.rglob("*.py") for offence in offences(path)]


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from pickle import loads", "import torch\ntorch.load('x')", "eval('1')",
        "exec('1')", "np.load(x, allow_pickle=True)", "np.load(x, allow_pickle=yes)",
        "import importlib", "from importlib import import_module", "import marshal, json",
        "from shelve import open", "from pickletools import genops",
    ],
)  # fmt: skip
def test_the_scan_bites(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "module.py").write_text(text)
    assert list(offences(tmp_path / "module.py"))


def test_the_one_reader_of_pickles_knows_no_other_name() -> None:
    tree = ast.parse((PACKAGE / READER).read_text(encoding="utf-8"))
    used = {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {name for name in used if name.startswith("pickle.")} <= {
        "pickle._Unpickler", "pickle._Unpickler.dispatch", "pickle.EMPTY_DICT", "pickle.REDUCE",
        "pickle.BUILD",
    }  # fmt: skip
    for meaning in pickles._NAMES.values():
        assert meaning == "ndarray" or meaning.__module__ == pickles.__name__
    unwanted = ("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID")
    assert not {getattr(pickle, name)[0] for name in unwanted} & {*pickles._PlainUnpickler.dispatch}


def test_what_loads_by_name_takes_the_name_from_the_code() -> None:
    """Every import by name outside of the user's own file has a name from a table in the source."""
    for name in IMPORTS - {"system/own_files.py"}:
        tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
        strings = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert any(text.startswith(("dcfl", "flwr")) for text in strings)


# A whole run and a resume in a process that listens to itself.
AUDITED = """
import sys, json, warnings
heard, listening = [], False
def hook(event, args):
    if event in ("pickle.find_class", "marshal.load"):
        if listening or event != "marshal.load":
            heard.append([event, str(args[:2])])
    elif event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto",
                   "socket.gethostbyname", "urllib.Request", "os.system", "os.exec",
                   "os.posix_spawn"):
        if listening or event.startswith("socket"):
            heard.append([event, str(args)[:200]])
    elif event == "exec" and listening:
        heard.append([event, str(getattr(args[0], "co_filename", args[0]))])
sys.addaudithook(hook)

import os
from pathlib import Path
from tests.reliability.victims import *
listening = True
folder, said = Path(sys.argv[1]), Path(sys.argv[2])
for name, workers in (("moon", 1), ("dcfl-pw", 2)):
    what = experiment(folder / name, name, workers, rounds=3, memory_budget=0)
    resume(stopped(what))
from dcfl.report import write_report
write_report(folder)
listening = False
said.write_text(json.dumps(heard))
"""


@pytest.mark.slow
def test_an_audited_run_unpickles_nothing_and_reaches_nobody(tmp_path: Path) -> None:
    said, root = tmp_path / "said.json", PACKAGE.parent
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, str(tmp_path / "runs"), str(said)],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MPLCONFIGDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    heard = json.loads(said.read_text())
    executed = {what for event, what in heard if event == "exec"}
    others = [(event, what) for event, what in heard if event != "exec"]
    assert not others
    trusted = (sys.prefix, sys.base_prefix, str(PACKAGE), "<")  # "<string>": dataclasses' own
    assert not [path for path in executed if not path.startswith(trusted)]
    assert not [path for path in executed if path.startswith(str(tmp_path))]
