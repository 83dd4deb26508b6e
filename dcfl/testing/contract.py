"""Does a method or a network keep its promises? What `dcfl check` and the contract tests ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dcfl.errors import DCFLError
from dcfl.methods import Method
from dcfl.models import FeatureModel
from dcfl.models.layers import Norm
from dcfl.system.printable import one_line
from dcfl.system.processes import Terminated
from dcfl.testing.model_properties import MODEL_PROPERTIES, Network
from dcfl.testing.properties import PROPERTIES
from dcfl.testing.toys import Broken


@dataclass(frozen=True)
class Verdict:
    property: str
    holds: bool
    detail: str = ""


def check_method(method: type[Method], norm: Norm = "batch") -> list[Verdict]:
    """Check every property of a method, with its default fields."""
    return [_verdict(name, partial(check, method, norm)) for name, check in PROPERTIES.items()]


def check_model(network: Network) -> list[Verdict]:
    """Check every property of a network, or say only why it cannot be built."""
    built = _verdict("can be built", lambda: _sized(network.build()))
    if not built.holds:
        return [built]
    checks = MODEL_PROPERTIES.items()
    return [built, *(_verdict(name, partial(check, network)) for name, check in checks)]


def _sized(model: FeatureModel) -> str:
    return f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"


def _verdict(name: str, check: Callable[[], str | None]) -> Verdict:
    try:
        remark = check()
    except (Broken, DCFLError) as broken:
        return Verdict(name, False, str(broken))
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # what raises, or exits, fails the check
        return Verdict(name, False, one_line(f"{type(error).__name__}: {error}"))
    return Verdict(name, True, remark or "")
