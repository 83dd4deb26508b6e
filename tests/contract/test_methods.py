"""What every entry of METHODS must do, with running statistics and without."""

from contextlib import suppress
from dataclasses import replace

import pytest

from dcfl.methods import METHODS, Method
from dcfl.models.networks import Norm
from dcfl.testing import toys
from dcfl.testing.contract import check_method
from dcfl.testing.properties import (
    PROPERTIES,
    differs_from_fedavg_otherwise,
    equals_fedavg_at_its_neutral_value,
    repeatable,
)
from tests.toys import ZOO


# Running statistics are what most mistakes are made with.
@pytest.mark.parametrize("norm", ["batch", pytest.param("group", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_every_property_holds(method: type[Method], norm: Norm) -> None:
    if method.name == "fedma" and norm == "group":
        pytest.skip("it refuses groups of channels, in tests/methods/zoo/test_fedma.py")
    verdicts = check_method(method, norm)
    assert len(verdicts) == len(PROPERTIES)
    assert [verdict for verdict in verdicts if not verdict.holds] == []
    assert [v.detail for v in verdicts if "float64" in v.detail] == []
    # Only users' methods may leave that out, and one that never trains what is personal there.
    at_home = [v.offered for v in verdicts if v.property == "keeps personal parts at home"]
    assert at_home == [method.name != "fedbabu"]


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, id=name, marks=pytest.mark.slow if name in ZOO else ())
        for name, method in METHODS.items()
    ],
)
def test_bits_are_repeated_and_fedavgs_with_the_other_kinds_of_decay(
    method: type[Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(
        toys.TRAINING, lr_decay=0.7, lr_decay_per="round+epoch", decay_norm_and_bias=False
    )
    monkeypatch.setattr(toys, "TRAINING", other)
    for check in (repeatable, equals_fedavg_at_its_neutral_value, differs_from_fedavg_otherwise):
        with suppress(toys.NotOffered):  # a method without a neutral value
            check(method, "batch")


def test_the_methods_of_the_paper_are_there() -> None:
    names = "fedavg fedprox moon feddecorr fedproc fedrcl fedsol fedscl dcfl-sw dcfl-pw scaffold"
    assert list(METHODS)[:12] == [*names.split(), "fedpcl"]
