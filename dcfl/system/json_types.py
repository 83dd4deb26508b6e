"""Types of values in our JSON files, for pydantic: no value is bent into another."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainValidator

Json = dict[str, Any]  # an object of JSON

Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0, le=2**53)]
Number = Annotated[float, Field(strict=True, ge=-1e100, le=1e100)]  # not NaN; can be drawn
Percent = Annotated[float, Field(strict=True, ge=0, le=100.001)]  # rounding may add a little
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=1e12)]
Seed = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]

LONGEST_TEXT = 100_000


def _text(value: object) -> object:
    """Pydantic's own check refuses what stands for bytes of a path that are not UTF-8."""
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise ValueError("a text of reasonable length is expected")
    return value


Text = Annotated[str, PlainValidator(_text)]
