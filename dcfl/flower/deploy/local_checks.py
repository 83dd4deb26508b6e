"""The checks of `dcfl flower check-site` for the sites that `dcfl flower up` starts here."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dcfl.errors import ConfigError
from dcfl.flower.deploy.data_checks import PICTURES, check_data
from dcfl.flower.deploy.link_checks import check_authority, check_key, check_link
from dcfl.flower.deploy.machine_checks import DISK, check_disk
from dcfl.flower.deploy.site_findings import Finding, problems
from dcfl.flower.node_config import NodeConfig
from dcfl.flower.roster import site_title

_REMEDY = "repair or remove them, or leave them out: dcfl flower run ... data.broken=skip"
_MAY_WORK = (PICTURES, DISK)  # a run's config may skip broken pictures, and a small model fits


def require_usable_data(name: str, node: NodeConfig, home: Path) -> None:
    """Before anything is started."""
    _require(name, check_data(node) + check_disk({"memories and logs": home}))


def require_way_in(address: str, keys: Path, name: str) -> None:
    """Before the site's node is started."""
    authority, key = keys / "ca.crt", keys / name
    _require(name, [check_key(key), check_authority(authority)])
    _require(name, check_link(address, authority, key))


def _require(name: str, findings: Iterable[Finding]) -> None:
    """One line for a site that no run can use, and a warning where a run may work all the same."""
    for finding in problems(findings):
        if finding.subject == PICTURES:  # nobody can edit a node config that `up` makes
            finding = replace(finding, remedy=_REMEDY)
        line = f"{site_title(name)}: {finding.problem}"
        if finding.subject not in _MAY_WORK:
            raise ConfigError(line)
        warnings.warn(line, stacklevel=2)
