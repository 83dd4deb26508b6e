"""The versions of all that `dcfl[site]` needs, as installed here: sites install the same."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_HEAD = "# The versions with which the operator of the server made this kit.\n"


@cache
def constraints() -> str:
    """For `pip install --constraint`. Without local versions (+cpu): the build is the site's
    choice."""
    versions = _needed("dcfl", "flwr")
    del versions["dcfl"]
    return _HEAD + "".join(f"{name}=={number}\n" for name, number in sorted(versions.items()))


def _needed(*packages: str) -> dict[str, str]:
    """The versions of packages and of all that they lead to, by canonical name."""
    versions: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(package) for package in packages]
    while waiting:
        requirement = waiting.pop()
        for extra in ("", *requirement.extras):
            name = canonicalize_name(requirement.name)
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                found = distribution(requirement.name)
            except PackageNotFoundError:  # for another system, or not installed here
                continue
            versions[name] = found.version.partition("+")[0]
            lines = [Requirement(line) for line in found.requires or ()]
            waiting += [
                line
                for line in lines
                if line.marker is None or line.marker.evaluate({"extra": extra})
            ]
    return versions
