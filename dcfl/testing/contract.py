"""Does a method keep its promises? What `dcfl check` and the contract tests ask."""

from __future__ import annotations

from dataclasses import dataclass

from dcfl.methods import Method
from dcfl.models.layers import Norm
from dcfl.system.processes import Terminated
from dcfl.testing.properties import PROPERTIES, Check
from dcfl.testing.toys import Broken


@dataclass(frozen=True)
class Verdict:
    property: str
    holds: bool
    detail: str = ""


def check_method(method: type[Method], norm: Norm = "batch") -> list[Verdict]:
    """Check every property of a method, with its default fields."""
    return [_verdict(name, check, method, norm) for name, check in PROPERTIES.items()]


def _verdict(name: str, check: Check, method: type[Method], norm: Norm) -> Verdict:
    try:
        remark = check(method, norm)
    except Broken as broken:
        return Verdict(name, False, str(broken))
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # a method that raises, or exits, fails the check
        return Verdict(name, False, f"{type(error).__name__}: {error}")
    return Verdict(name, True, remark or "")
