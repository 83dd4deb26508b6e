"""Loads methods from a user's file. Only the command line can name one, never a config."""

from __future__ import annotations

from pathlib import Path

from dcfl.errors import ConfigError
from dcfl.methods import METHODS
from dcfl.methods.method import Method, require_plain_name
from dcfl.system.own_files import OwnFile, run_file


def load_methods(path: Path) -> dict[str, type[Method]]:
    """Run a Python file and return the methods that it defines, by name."""
    found = methods_in(run_file(path))
    if not found:
        raise ConfigError(f"{path} defines no method: derive a class from dcfl.Method")
    return found


def methods_in(file: OwnFile) -> dict[str, type[Method]]:
    """The methods that a file defines, by name; perhaps none."""
    named: dict[str, type[Method]] = {}
    for method in file.classes(Method):
        require_plain_name(method.name)
        if method.name in named:
            raise ConfigError(
                f"{file.path}: {named[method.name].__name__} and {method.__name__} are both "
                f'called {method.name}: set name = "..." in the class'
            )
        named[method.name] = method
    return named


def register_methods(path: Path) -> list[str]:
    """Make the methods in a user's file known by name, for this process."""
    loaded = load_methods(path)
    for name, method in loaded.items():
        if METHODS.get(name, method) is not method:
            raise ConfigError(f'{path}: the name {name} is taken: set name = "..." in the class')
    METHODS.update(loaded)
    return list(loaded)
