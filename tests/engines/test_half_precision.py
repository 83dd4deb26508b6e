"""The units for bfloat16 that a CPU has."""

from __future__ import annotations

import pytest

from dcfl.engines import half_precision
from dcfl.engines.half_precision import bfloat16_units


@pytest.mark.parametrize(
    ("capabilities", "units"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, "AVX512-BF16"),
        ({"avx512_bf16": True, "amx_bf16": True}, "AMX"),
        ({"avx2": True, "cpu_name": "bf16"}, ""),
        ({}, ""),
    ],
)
def test_units_have_names(capabilities: dict[str, object], units: str) -> None:
    assert bfloat16_units(capabilities) == units


def test_this_cpu_can_be_asked() -> None:
    assert bfloat16_units() in ("", *half_precision.UNITS.values())
