"""What every entry of METHODS must do, with running statistics and without."""

from dataclasses import replace

import pytest

from dcfl.methods import METHODS, Method
from dcfl.models.layers import Norm
from dcfl.testing import toys
from dcfl.testing.contract import check_method
from dcfl.testing.properties import PROPERTIES, keeps_personal_parts_at_home


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_every_property_holds(method: type[Method], norm: Norm) -> None:
    verdicts = check_method(method, norm)
    assert len(verdicts) == len(PROPERTIES)
    assert [verdict for verdict in verdicts if not verdict.holds] == []


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_every_method_takes_a_personal_classifier(method: type[Method]) -> None:
    """A remark is for users' methods."""
    assert keeps_personal_parts_at_home(method, "batch") is None


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_every_property_holds_with_the_other_kinds_of_decay(
    method: type[Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(
        toys.TRAINING, lr_decay=0.7, lr_decay_per="round+epoch", decay_norm_and_bias=False
    )
    monkeypatch.setattr(toys, "TRAINING", other)
    assert [verdict for verdict in check_method(method, "batch") if not verdict.holds] == []


def test_the_methods_of_the_paper_are_there() -> None:
    names = "fedavg fedprox moon feddecorr fedproc fedrcl fedsol fedscl dcfl-sw dcfl-pw scaffold"
    assert list(METHODS) == [*names.split(), "fedpcl"]
