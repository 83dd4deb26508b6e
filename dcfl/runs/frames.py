"""Records as pandas DataFrames; pandas is an extra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dcfl.errors import ConfigError

if TYPE_CHECKING:
    from pandas import DataFrame


def data_frame(rows: Iterable[Mapping[str, Any]], index: str | None = None) -> DataFrame:
    """A row each; what a row lacks is missing there."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ConfigError(f"to_pandas needs {error.name}: pip install 'dcfl[pandas]'") from error
    frame = pandas.DataFrame([dict(row) for row in rows])
    return frame.set_index(index) if index else frame
