"""Runs a user's Python file and remembers what exactly was run.

Only a person names such a file: on the command line, from Python, or by sending it with a Flower
app. No config, message or checkpoint does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TypeVar

from dcfl.errors import ConfigError
from dcfl.system.processes import Terminated

Kind = TypeVar("Kind")
OWN_FILE = "dcfl_own_"  # prefix of the module names of users' files


@dataclass(frozen=True)
class OwnFile:
    """A user's file as it was when it ran: it may be edited at any time afterwards."""

    path: Path
    source: bytes
    module: ModuleType

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.source).hexdigest()

    @property
    def text(self) -> str:
        return self.source.decode("utf-8", "replace")

    def classes(self, base: type[Kind]) -> list[type[Kind]]:
        """The classes that the file itself derives from `base`, in their order."""
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
        _LOADED[name] = OwnFile(path, source, _executed(name, path, source))
    return _LOADED[name]


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
        where = error.lineno if isinstance(error, SyntaxError) else lines[-1]
        raise ConfigError(
            f"{path}, line {where}: {type(error).__name__}: {error}".replace("\n", " ")
        ) from error
    return module


def own_file_of(kind: object) -> OwnFile | None:
    """The user's file that a class or function comes from, if any."""
    return _LOADED.get(getattr(kind, "__module__", ""))


def own_modules() -> list[ModuleType]:
    """All users' files that have run in this process."""
    return [file.module for file in _LOADED.values()]
