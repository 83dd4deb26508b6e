"""The fields of all methods: what is refused, and the values of the paper."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from dcfl.errors import ConfigError
from dcfl.methods import METHODS

WEIGHTS = (
    "mu",
    "temperature",
    "align",
    "uniform",
    "penalty",
    "rho",
    "correction",
    "tau",
    "eta",
    "alpha",
)
BOUNDED = [
    (name, field, bad)
    for name, method in METHODS.items()
    for field in WEIGHTS
    if field in method.__dataclass_fields__
    for bad in (-0.1, nan, inf, *((0.0,) if field == "temperature" else ()))
]


@pytest.mark.parametrize(
    ("name", "field", "bad"),
    [
        *BOUNDED,
        ("fedproc", "ramp", 0),
        ("fedrcl", "hardest_positives", 0),
        ("fedrcl", "hardest_negatives", 0),
        ("fedrcl", "levels", (-1,)),
    ],
)
def test_impossible_values_are_refused(name: str, field: str, bad: Any) -> None:
    with pytest.raises(ConfigError, match=rf"method\.{field}"):
        replace(METHODS[name](), **{field: bad})


PUBLISHED = {  # mu for CIFAR-10, CIFAR-100 and Tiny-ImageNet
    "fedprox": (0.01, 0.001, 0.001),
    "moon": (5.0, 1.0, 1.0),
    "feddecorr": (0.01, 0.01, 0.01),
    "fedproc": (10.0, 10.0, 10.0),
    "fedrcl": (1.0, 1.0, 1.0),
    "dcfl-sw": (10.0, 10.0, 1.0),
    "dcfl-pw": (10.0, 10.0, 1.0),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_published_weights(name: str) -> None:
    datasets = ("cifar10", "cifar100", "tiny-imagenet")
    wanted = {d: {"mu": mu} for d, mu in zip(datasets, PUBLISHED.get(name, ()), strict=False)}
    assert METHODS[name].published == wanted


def test_defaults_are_those_of_the_papers() -> None:
    assert METHODS["feddecorr"]() == METHODS["feddecorr"](mu=0.01)  # type: ignore[call-arg]
    for name, values in {
        "moon": {"temperature": 0.5},
        "fedproc": {"temperature": 0.5, "schedule": "fixed", "ramp": 100},
    }.items():
        assert METHODS[name]() == METHODS[name](**values)  # type: ignore[arg-type]
