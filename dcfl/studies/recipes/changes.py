"""Settings on top of a recipe's cells, as words: which cells they change, and how that is said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from dcfl.config import Tables, apply, as_tables, parse_words
from dcfl.errors import ConfigError
from dcfl.runs.identity import flat, kind_of
from dcfl.studies.recipes.paper import Cell, Recipe


def with_words(recipe: Recipe, cells: Sequence[Cell], words: Sequence[str]) -> list[Cell]:
    """The cells with the settings in place: a field of a method in those whose method has it."""
    changes = parse_words(words)
    if changes:
        _refuse_its_own(recipe, cells, changes)
    _refuse_nobodys(recipe, cells, changes)
    return [
        replace(cell, experiment=apply(cell.experiment, _for_cell(cell, changes))) for cell in cells
    ]


def confession(before: Sequence[Cell], after: Sequence[Cell], words: Sequence[str]) -> list[str]:
    """Each word that changed a result, with the rows that it changed if it was not all of them."""
    said = []
    for word in dict.fromkeys(words):
        ((key, _),) = flat(parse_words([word])).items()
        if kind_of(key) != "result":
            continue
        pairs = zip(before, after, strict=True)
        rows = {new.row for old, new in pairs if _value(old, key) != _value(new, key)}
        if rows == {cell.row for cell in after}:
            said.append(word)
        elif rows:
            in_order = dict.fromkeys(cell.row for cell in after if cell.row in rows)
            said.append(f"{word} ({', '.join(in_order)})")
    return said


def _for_cell(cell: Cell, changes: Tables) -> Tables:
    known = _fields(cell)
    own = {key: value for key, value in changes.get("method", {}).items() if key in known}
    rest = {name: table for name, table in changes.items() if name != "method"}
    return {**rest, "method": own} if own else rest


def _fields(cell: Cell) -> list[str]:
    return [field.name for field in fields(cell.experiment.method)]


def _refuse_nobodys(recipe: Recipe, cells: Sequence[Cell], changes: Tables) -> None:
    known = {name for cell in cells for name in _fields(cell)}
    for key in changes.get("method", {}):
        if key not in known:
            raise ConfigError(
                f"method.{key}: no method of the recipe {recipe.name} has such a field; "
                f"known: {', '.join(sorted(known))}"
            )


def _refuse_its_own(recipe: Recipe, cells: Sequence[Cell], changes: Tables) -> None:
    """A setting in which the recipe's cells differ is what its tables are about; and where a cell
    belongs in them is not for others to set either."""
    place = {"method.name", "output.dir", *flat(cells[0].where.tables)}
    for key in flat(changes):
        differ = any(len(set(values)) > 1 for values in _by_method(cells, key))
        if differ or key in place or kind_of(key) == "seed":
            raise ConfigError(
                f"{key} is for the recipe {recipe.name} to choose: its tables would not be true"
            )


def _by_method(cells: Sequence[Cell], key: str) -> Iterator[list[str]]:
    """What the cells of each method have there; two methods may have a field in common."""
    seen: dict[str, list[str]] = {}
    for cell in cells:
        method = cell.experiment.method.name if key.startswith("method.") else ""
        seen.setdefault(method, []).append(str(_value(cell, key)))
    yield from seen.values()


def _value(cell: Cell, key: str) -> Any:
    return flat(as_tables(cell.experiment)).get(key)
