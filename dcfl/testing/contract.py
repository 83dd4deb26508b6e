"""Does a method or a network keep its promises? What `dcfl check` and the contract tests ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from dcfl.engines.runner import reproducible
from dcfl.errors import DCFLError
from dcfl.methods import Method
from dcfl.models import FeatureModel
from dcfl.models.layers import Norm
from dcfl.system.processes import Terminated
from dcfl.system.wording import described
from dcfl.testing.model_properties import MODEL_PROPERTIES, Network
from dcfl.testing.properties import PROPERTIES
from dcfl.testing.toys import Broken


@dataclass(frozen=True)
class Verdict:
    property: str
    holds: bool
    detail: str = ""
    crashed: bool = False  # with an error that nobody expected; what follows was not checked


def check_method(method: type[Method], norm: Norm = "batch") -> list[Verdict]:
    """Check every property of a method, with its default fields, up to the first crash."""
    return _verdicts({name: partial(check, method, norm) for name, check in PROPERTIES.items()})


def check_model(network: Network) -> list[Verdict]:
    """Check every property of a network up to the first crash, or say only why it cannot be
    built."""
    built = _verdict("can be built", lambda: _sized(network.build()))
    if not built.holds:
        return [built]
    checks = {name: partial(check, network) for name, check in MODEL_PROPERTIES.items()}
    return [built, *_verdicts(checks)]


def _sized(model: FeatureModel) -> str:
    return f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"


def _verdicts(checks: Mapping[str, Callable[[], str | None]]) -> list[Verdict]:
    """What crashes once tends to crash in every check, and once is enough to mend it."""
    verdicts: list[Verdict] = []
    with reproducible(threads=1):  # networks this small would only wait for more
        for name, check in checks.items():
            verdicts.append(_verdict(name, check))
            if verdicts[-1].crashed:
                break
    return verdicts


def _verdict(name: str, check: Callable[[], str | None]) -> Verdict:
    try:
        remark = check()
    except (Broken, DCFLError) as broken:
        return Verdict(name, False, str(broken))
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # what raises, or exits, fails the check
        return Verdict(name, False, described(error), crashed=True)
    return Verdict(name, True, remark or "")
