"""Runs a user's Python file and remembers what exactly was run.

Only a person names such a file: on the command line, from Python, or by sending it with a Flower
app. No config, message or checkpoint does.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import resolve_name
from itertools import accumulate
from pathlib import Path
from types import CodeType, ModuleType
from typing import TypeVar

from dcfl.errors import ConfigError
from dcfl.system.processes import Terminated

Kind = TypeVar("Kind")
NOT_OWN = (sysconfig.get_path("stdlib"), Path(__file__).parents[1])  # Python's and dcfl's
PACKAGES = {"site-packages", "dist-packages"}  # where others are installed
BY_NAME = ("import_module", "__import__")
OWN_FILE = "dcfl_own_"  # prefix of the module names of users' files


@dataclass(frozen=True)
class OwnFile:
    """A user's file as it was when it ran: it may be edited at any time afterwards."""

    path: Path
    source: bytes
    module: ModuleType
    imported: Mapping[str, str]  # SHA-256 of the user's modules that it imported, by name

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.source).hexdigest()

    @property
    def text(self) -> str:
        """All that was run: the file, and hashes of what it imported."""
        return "\0".join([self.source.decode("utf-8", "replace"), *self.imported.values()])

    @property
    def code_sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def classes(self, base: type[Kind]) -> list[type[Kind]]:
        found = [
            value
            for value in vars(self.module).values()
            if isinstance(value, type)
            and issubclass(value, base)
            and value.__module__ == self.module.__name__
        ]
        return list(dict.fromkeys(found))  # a class may be bound to two names


_LOADED: dict[str, OwnFile] = {}  # by the name of the module


def run_file(path: Path) -> OwnFile:
    """Run a Python file. The same file with the same content is not run twice."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    # A name of its own: a file called random.py must not become the module `random`, nor one
    # net.py replace another.
    name = f"{OWN_FILE}{path.stem}_{hashlib.sha256(source).hexdigest()[:16]}"
    known = _LOADED.get(name)
    if known is None or known.path.resolve() != path.resolve():
        module = _executed(name, path, source)
        _LOADED[name] = OwnFile(path, source, module, _imported(source))
    return _LOADED[name]


def _imported(source: bytes) -> dict[str, str]:
    """The SHA-256 of each module that this source imports, or one of these, and that is neither
    installed nor Python's own nor dcfl's. Nothing is run; what ran before plays no part."""
    found: dict[str, str] = {}
    waiting = [(source, "")]
    while waiting:
        for name in _names(*waiting.pop()):
            spec = _spec(name)
            path = Path(spec.origin or "") if spec and spec.has_location else Path()
            others = PACKAGES & {*path.parts} or any(
                path.is_relative_to(place) for place in NOT_OWN
            )
            if spec and name not in found and path.is_file() and not others:
                content = path.read_bytes()
                found[name] = hashlib.sha256(content).hexdigest()
                waiting.append((content, spec.parent or ""))
    return dict(sorted(found.items()))


def _names(source: bytes, package: str) -> Iterator[str]:
    """What a source imports anywhere, and the packages around it: modules, and what is in them."""
    with suppress(ImportError, SyntaxError, ValueError, RecursionError):  # not Python, or too deep
        for node in ast.walk(ast.parse(source)):
            names: list[object] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (package or not node.level):
                base = resolve_name("." * node.level + (node.module or ""), package)
                names = [f"{base}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(BY_NAME):
                names = [one.value for one in node.args[:1] if isinstance(one, ast.Constant)]
            for name in names:
                yield from accumulate(str(name).split("."), "{}.{}".format)


def _spec(name: str) -> ModuleSpec | None:
    parent = name.rpartition(".")[0]
    with suppress(Exception):  # modules that load lazily, and finders, raise what they like
        if not parent:
            return importlib.util.find_spec(name)
        inside = getattr(_spec(parent), "submodule_search_locations", None)
        return PathFinder.find_spec(name, inside) if inside else None
    return None


class _AsRead(SourceFileLoader):
    """Runs these bytes, which have been hashed: the file may have changed since, and Python would
    rather use its cached translation."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        super().__init__(name, str(path))
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._source, self.path)


def _executed(name: str, path: Path, source: bytes) -> ModuleType:
    loader = _AsRead(name, path, source)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or path.suffix != ".py":
        raise ConfigError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    try:
        loader.exec_module(module)
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:  # even SystemExit, which would look like success
        del sys.modules[name]
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        where = error.lineno if isinstance(error, SyntaxError) else (lines or [1])[-1]
        raise ConfigError(
            f"{path}, line {where}: {type(error).__name__}: {error}".replace("\n", " ")
        ) from error
    return module


def own_file_of(kind: object) -> OwnFile | None:
    """The user's file that a class or function comes from, if any."""
    return _LOADED.get(getattr(kind, "__module__", ""))


def own_modules() -> list[ModuleType]:
    return [file.module for file in _LOADED.values()]
