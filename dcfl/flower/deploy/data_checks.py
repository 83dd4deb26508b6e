"""Is a site's data fit for a run? Read by `dcfl flower check-site` and by `dcfl flower up`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dcfl.data.readers.folders import PictureCheck, check_pictures, class_folders
from dcfl.data.readers.pictures import images
from dcfl.data.settings import DataSettings
from dcfl.data.splits.grouping import ALONE, grouping
from dcfl.errors import ConfigError, DCFLError
from dcfl.flower.deploy.checks import (
    DISK,
    Finding,
    check_authority,
    check_disk,
    check_key,
    check_link,
    fine,
    problems,
    wrong,
)
from dcfl.flower.node_config import ANY_DATA, NodeConfig
from dcfl.flower.roster import site_title
from dcfl.system.wording import printable

DATA, PICTURES, CLASSES, GROUPS = "data", "pictures", "classes", "groups"


def check_data(node: NodeConfig, run: DataSettings | None = None) -> list[Finding]:
    """`run`: the [data] table that the sites agreed on, if it is at hand."""
    if node.data in ("", ANY_DATA):
        return [_without_pictures(node, run)]
    folder = _own_folder(node)
    if folder is None:
        remedy = "give folder:PATH, or sites:PATH together with site"
        return [wrong(DATA, f"data = {printable(node.data)!r} names no folder", remedy)]
    try:
        found = check_pictures(folder)
    except DCFLError as error:
        return [wrong(DATA, str(error), "correct data in the node config, or the folder")]
    usable = found.total - len(found.broken)
    if usable < 2:
        remedy = "a site needs at least two pictures, in a folder for each class"
        return [wrong(DATA, f"{printable(folder)}: {usable} pictures that can be read", remedy)]
    read = fine(DATA, f"{found.total:,} pictures in {printable(folder)}")
    return [read, _broken(found, node, run), _classes(found, run), _groups(folder, run)]


def _without_pictures(node: NodeConfig, run: DataSettings | None) -> Finding:
    if run is not None and run.dataset == "remote":
        text = "the run trains on the sites' own pictures, and the node config names none"
        return wrong(DATA, text, 'set data = "folder:PATH"')
    served = "whatever a run names" if node.data else "public data sets, by name"
    return fine(DATA, f"no pictures of its own: it serves {served}")


def _own_folder(node: NodeConfig) -> Path | None:
    kind, _, where = node.data.partition(":")
    path = Path(os.path.expanduser(where))
    if not where or kind not in ("folder", "sites") or (kind == "sites" and not node.site):
        return None
    return path / node.site if kind == "sites" else path


def _broken(found: PictureCheck, node: NodeConfig, run: DataSettings | None) -> Finding:
    if not found.broken:
        return fine(PICTURES, "all can be read")
    if node.with_own_rules(run or DataSettings()).broken == "skip":
        return fine(PICTURES, f"broken and left out are {found.broken_text}")
    remedy = 'repair or remove them, or set broken = "skip" in the node config to leave them out'
    return wrong(PICTURES, f"broken are {found.broken_text}", remedy)


def _groups(folder: Path, run: DataSettings | None) -> Finding:
    """Were patients understood as such? By the run's rule or, without a run, by the usual one."""
    rule = (run or DataSettings()).group
    try:
        group_of = grouping(rule)
        names = {
            group_of(path, part)
            for parts in class_folders(folder).values()
            for part in parts
            for path in images(part)
        } - {ALONE}
    except DCFLError as error:
        return wrong(GROUPS, str(error), "choose a data.group that fits the names at every site")
    if not names:
        return fine(GROUPS, f"none by data.group = {rule!r}: every picture is taken for itself")
    count = f"{len(names):,} group{'' if len(names) == 1 else 's'}"
    first = printable(min(names), 60)
    return fine(GROUPS, f"{count} by data.group = {rule!r}, such as {first}")


def _classes(found: PictureCheck, run: DataSettings | None) -> Finding:
    own = ", ".join(f"{printable(name, 60)} ({count:,})" for name, count in found.classes.items())
    if run is None:
        return fine(CLASSES, f"{own}; --run CONFIG.toml compares them with those agreed on")
    others = [printable(name, 60) for name in found.classes if name not in run.class_names]
    if others:
        agreed = ", ".join(printable(name, 60) for name in run.class_names)
        remedy = "rename the folder or move it away, or agree on the class with all sites"
        return wrong(CLASSES, f"{', '.join(others)}: not among those agreed on, {agreed}", remedy)
    absent = [printable(name, 60) for name in run.class_names if name not in found.classes]
    return fine(CLASSES, own + (f"; none of {', '.join(absent)}" if absent else ""))


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
