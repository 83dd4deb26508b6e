"""Loads methods from a user's file. Only the command line can name one, never a config."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

from dcfl.errors import ConfigError
from dcfl.methods.method import Method, require_plain_name
from dcfl.system.processes import Terminated

OWN_FILE = "dcfl_own_"  # prefix of the module names of users' files


def load_methods(path: Path) -> dict[str, type[Method]]:
    """Run a Python file and return the methods that it defines, by name."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    # A unique name: a file called random.py must not become the module `random`.
    spec = importlib.util.spec_from_file_location(f"{OWN_FILE}{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:  # even SystemExit, which would look like success
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)]
        where = error.lineno if isinstance(error, SyntaxError) else lines[-1]
        raise ConfigError(
            f"{path}, line {where}: {type(error).__name__}: {error}".replace("\n", " ")
        ) from error
    defined = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Method)
        and value.__module__ == module.__name__
    ]
    if not defined:
        raise ConfigError(f"{path} defines no method: derive a class from dcfl.Method")
    named: dict[str, type[Method]] = {}
    for method in dict.fromkeys(defined):  # a class may be bound to two names
        require_plain_name(method.name)
        if method.name in named:
            raise ConfigError(
                f"{path}: {named[method.name].__name__} and {method.__name__} are both called "
                f'{method.name}: set name = "..." in the class'
            )
        named[method.name] = method
    return named
