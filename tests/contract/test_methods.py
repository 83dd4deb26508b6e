"""What every entry of METHODS must do, with running statistics and without."""

import pytest

from dcfl.checking import PROPERTIES, check_method
from dcfl.methods import METHODS, Method
from dcfl.models.layers import Norm


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_every_property_holds(method: type[Method], norm: Norm) -> None:
    verdicts = check_method(method, norm)
    assert len(verdicts) == len(PROPERTIES)
    assert [verdict for verdict in verdicts if not verdict.holds] == []


def test_the_methods_of_the_paper_are_there() -> None:
    names = "fedavg fedprox moon feddecorr fedproc fedrcl fedsol fedscl dcfl-sw dcfl-pw scaffold"
    assert list(METHODS) == names.split()
