"""Is a site fit for a run? All that can be looked at before: `dcfl flower check-site`, and the same
checks for the sites that `dcfl flower up` starts here."""

from __future__ import annotations

import os
import platform
import re
import shutil
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dcfl.config import to_toml
from dcfl.data import Dataset
from dcfl.data.augment import Preparation
from dcfl.data.catalogue import dataset_of, load_dataset, reading_of
from dcfl.data.identical import identical_pictures
from dcfl.data.readers.folders import PictureCheck, check_pictures, class_folders, read_folder
from dcfl.data.readers.pictures import images
from dcfl.data.settings import DataSettings
from dcfl.data.splits.grouping import ALONE, grouping
from dcfl.errors import ConfigError, DCFLError, SiteRefusal
from dcfl.experiment import Experiment
from dcfl.flower.app_code import require_allowed
from dcfl.flower.app_pin import check_pin
from dcfl.flower.deploy.checks import (
    Finding,
    check_authority,
    check_key,
    check_link,
    fine,
    problems,
    wrong,
)
from dcfl.flower.deploy.daemons import OTHER_PORT, in_use, read_record
from dcfl.flower.deploy.kit_folder import CODE_LINE, SITE_FILE, SiteKit
from dcfl.flower.node_config import ANY_DATA, NodeConfig
from dcfl.flower.roster import site_title
from dcfl.flower.site_rules import SiteRules
from dcfl.flower.withholding import in_order
from dcfl.system.build import build, code_sha256
from dcfl.system.storage import read_data
from dcfl.system.wording import install_command, printable

CONFIG, RULES, VERSIONS, DISK, PORT = "node config", "rules", "versions", "disk", "port"
DATA, PICTURES, CLASSES, GROUPS = "data", "pictures", "classes", "groups"
IDENTICAL = "identical"
# Keys of a node config that allow and forbid nothing, and `withhold`, which has its own words.
_NO_RULES = (
    "partition-id",
    "num-partitions",
    "data",
    "site",
    "data-path",
    "memories",
    "audit",
    "withhold",
)
_SHOWN = 24  # characters of a value, which may be a list of hashes
LEAST_FREE = 2**30  # bytes: some models with what clients keep, and logs
_COMPARED = ("dcfl", "torch", "flwr")
# In a kit: the versions with which its server's operator made it.
_VERSION_FILES = ("requirements.txt", "constraints.txt")
_CODE = re.compile(rf"^{re.escape(CODE_LINE)} ([0-9a-f]{{64}})$", re.MULTILINE)
_PINNED = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==([^\s;#]+)", re.MULTILINE)


def check_site(site: SiteKit, run: Experiment | None = None) -> list[Finding]:
    """`run`: the experiment that the sites agreed on, if it is at hand."""
    data = run.data if run else None
    found = [check_versions(site.folder)]
    try:
        node = NodeConfig.read(site.node_config)
        require_allowed({}, node.code_sha256)
        check_pin(node.app_sha256)
        rules = node.rules
    except SiteRefusal as error:
        found.append(wrong(CONFIG, str(error), f"correct it in {SITE_FILE}"))
    else:
        found += [check_place(node, data), check_rules(site.node_config, rules, run)]
        pictures = check_data(node, data)
        found += pictures
        if (folder := _own_folder(node)) is not None and not problems(pictures):
            found.append(_identical(folder, node, data))
        found.append(check_disk("memories", node.memories_folder))
        found.append(check_disk("state and logs", site.state))
    runs = any(daemon.alive for daemon in read_record(site.state).daemons)
    found.append(check_port(site.port, runs))
    key, authority = check_key(site.key), check_authority(site.authority)
    found += [key, authority]
    found += check_link(
        site.address, site.authority if authority.ok else None, site.key if key.ok else None
    )
    return found


def check_rules(
    node_config: Mapping[str, object], rules: SiteRules, run: Experiment | None
) -> Finding:
    """The site's rules are applied as when it joins the run."""
    try:
        if run is not None:
            rules.check_run(run)
    except SiteRefusal as error:
        remedy = f"agree with the operator on another run, or change {SITE_FILE}"
        return wrong(RULES, f"this site would refuse the run: {error}", remedy)
    withheld = f"withheld: {', '.join(in_order(rules.withheld)) or 'nothing'}"
    others = [
        f"{key} = {printable(str(value), _SHOWN)}"
        for key, value in node_config.items()
        if key not in _NO_RULES
    ]
    return fine(RULES, "; ".join([withheld, *others]))


def check_place(node: NodeConfig, run: DataSettings | None) -> Finding:
    wanted = node.num_partitions
    told = f"one of {wanted} sites" if wanted else "known by its key, among any number of sites"
    remote = run is not None and run.dataset == "remote"
    if wanted and run is not None and remote and run.clients not in ("auto", wanted):
        remedy = "leave out num-partitions, or make it and data.clients the same"
        return wrong(CONFIG, f"{told}; the run has {run.clients} sites", remedy)
    return fine(CONFIG, told)


def check_versions(folder: Path | None = None) -> Finding:
    """`folder`: with the files that name the server's versions."""
    here = {name: _installed(name) for name in _COMPARED}
    if missing := [name for name, found in here.items() if not found]:
        remedy = f"install dcfl with Flower: {install_command('site')}"
        return wrong(VERSIONS, f"{', '.join(missing)}: not installed", remedy)
    texts = _version_texts(folder) if folder else ""
    server_code = _CODE.search(texts)
    if server_code and server_code[1] != code_sha256():
        remedy = "run ./install again: it installs the dcfl that the server has"
        return wrong(VERSIONS, f"dcfl {build()} here has other code than the server's", remedy)
    server = {name.lower(): found for name, found in _PINNED.findall(texts)}
    different = [
        f"{name} {found} here, {server[name]} at the server"
        for name, found in here.items()
        # Without local parts such as +cpu: the build is the site's choice.
        if name in server and server[name].partition("+")[0] != found.partition("+")[0]
    ]
    if different:
        return wrong(VERSIONS, "; ".join(different), "install the server's versions")
    told = ", ".join(f"{name} {found}" for name, found in here.items())
    suffix = " as at the server" if server else ""
    return fine(VERSIONS, f"{told}{suffix}; Python {platform.python_version()}")


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _version_texts(folder: Path) -> str:
    texts = []
    for name in _VERSION_FILES:
        with suppress(OSError):
            texts.append(read_data(folder / name).decode("utf-8", "replace"))
    return "\n".join(texts)


def check_port(port: int, runs: bool) -> Finding:
    """`port`: the SuperNode's own. `runs`: that SuperNode has it now."""
    if runs:
        return fine(PORT, f"{port}, of the SuperNode that runs here")
    if in_use(port):
        return wrong(PORT, f"{port} is in use by another program", f"{OTHER_PORT} {SITE_FILE}")
    return fine(PORT, f"{port} is free")


def check_disk(what: str, path: Path) -> Finding:
    """`what` is kept in the folder, which need not exist yet."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        remedy = f"let this user write there, or choose another folder for {what}"
        return wrong(DISK, f"{printable(path)} cannot be written", remedy)
    free = shutil.disk_usage(there).free
    told = f"{free / 2**30:,.1f} GiB free for {what} in {printable(path)}"
    if free < LEAST_FREE:
        return wrong(DISK, told, f"make room: at least {LEAST_FREE / 2**30:g} GiB")
    return fine(DISK, told)


def check_data(node: NodeConfig, run: DataSettings | None = None) -> list[Finding]:
    """`run`: the [data] table that the sites agreed on, if it is at hand."""
    if node.data in ("", ANY_DATA):
        return [_without_pictures(node, run)]
    if node.data.startswith("npz:"):
        return _of_file(node, run)
    folder = _own_folder(node)
    if folder is None:
        remedy = "give folder:PATH, npz:FILE, or sites:PATH together with site"
        return [wrong(DATA, f"data = {printable(node.data)!r} names no folder", remedy)]
    if run is not None and run.features:
        remedy = 'set data = "npz:FILE", as `dcfl embed` writes it, or agree with the operator'
        return [wrong(DATA, "the run is of feature vectors, and these are pictures", remedy)]
    try:
        found = check_pictures(folder)
    except DCFLError as error:
        return [wrong(DATA, str(error), "correct data in the node config, or the folder")]
    usable = found.total - len(found.broken)
    if usable < 2:
        remedy = "a site needs at least two pictures, in a folder for each class"
        return [wrong(DATA, f"{printable(folder)}: {usable} pictures that can be read", remedy)]
    read = fine(DATA, f"{found.total:,} pictures in {printable(folder)}")
    return [read, _broken(found, node, run), _classes(found, node, run), _groups(folder, node)]


def _of_file(node: NodeConfig, run: DataSettings | None) -> list[Finding]:
    """Of feature vectors, or of pictures in arrays."""
    path = Path(node.data.removeprefix("npz:"))
    try:
        own = load_dataset(node.with_own_rules(DataSettings(dataset=node.data)))
        if run is not None and run.dataset == "remote":
            node.load(run)
    except DCFLError as error:
        remedy = "correct data in the node config or the file, or agree with the operator"
        return [wrong(DATA, printable(error, 400), remedy)]
    sizes = own.train.labels.bincount(minlength=own.classes).tolist()
    classes = PictureCheck(path, dict(zip(own.class_names, sizes, strict=True)), {})
    told = f"{len(own.train):,} to train on, {len(own.test):,} to test on, each {list(own.shape)}"
    groups = f"{own.group_count:,} groups" if own.group_count else "none"
    return [
        fine(DATA, f"{told}, in {printable(path)}"),
        _classes(classes, node, run),
        fine(GROUPS, f"{groups}, by the file"),
        _copies(own),
    ]


def _without_pictures(node: NodeConfig, run: DataSettings | None) -> Finding:
    if run is not None and run.dataset == "remote":
        text = "the run trains on the sites' own pictures, and the node config names none"
        return wrong(DATA, text, 'set data = "folder:PATH" or "npz:FILE"')
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
    if (node.broken or (run or DataSettings()).broken) == "skip":
        return fine(PICTURES, f"broken and left out are {found.broken_text}")
    remedy = 'repair or remove them, or set broken = "skip" in the node config to leave them out'
    return wrong(PICTURES, f"broken are {found.broken_text}", remedy)


def _groups(folder: Path, node: NodeConfig) -> Finding:
    """Were patients understood as such? By the site's own rule or, without one, by the usual."""
    rule = node.group or DataSettings().group
    try:
        group_of = grouping(rule)
        names = {
            group_of(path, part)
            for parts in class_folders(folder).values()
            for part in parts
            for path in images(part)
        } - {ALONE}
    except DCFLError as error:
        return wrong(GROUPS, str(error), "choose a group in the node config that fits the names")
    if not names:
        return fine(GROUPS, f"none by group = {rule!r}: every picture is taken for itself")
    count = f"{len(names):,} group{'' if len(names) == 1 else 's'}"
    first = printable(min(names), 60)
    return fine(GROUPS, f"{count} by group = {rule!r}, such as {first}")


def _identical(folder: Path, node: NodeConfig, run: DataSettings | None) -> Finding:
    """Pictures that are there more than once, as the run gets them; the cache is left alone."""
    reading = reading_of(node.with_own_rules(run or DataSettings()))
    try:
        arrays = read_folder(folder, replace(reading, warn=lambda line: None))
    except DCFLError as error:  # such as more than the memory holds
        return fine(IDENTICAL, f"not looked for: {error}")
    return _copies(dataset_of(folder.name, arrays, Preparation((), ())))


def _copies(dataset: Dataset) -> Finding:
    found = str(identical_pictures(dataset))
    remedy = "remove copies: a model is judged too well by pictures that it was trained on"
    return fine(IDENTICAL, found or "none in two places that matter", remedy if found else "")


def _classes(found: PictureCheck, node: NodeConfig, run: DataSettings | None) -> Finding:
    own = ", ".join(f"{printable(name, 60)} ({count:,})" for name, count in found.classes.items())
    if run is None:
        return fine(CLASSES, f"{own}; --run CONFIG.toml compares them with those agreed on")
    if not node.agrees(run.class_names):
        remedy = "agree on the classes and their order with the operator"
        return wrong(CLASSES, f"classes = {printable(node.classes, 200)} is not the run's", remedy)
    others = [printable(name, 60) for name in found.classes if name not in run.class_names]
    if others:
        agreed = ", ".join(printable(name, 60) for name in run.class_names)
        remedy = "rename the folder or move it away, or agree on the class with all sites"
        return wrong(CLASSES, f"{', '.join(others)}: not among those agreed on, {agreed}", remedy)
    absent = [printable(name, 60) for name in run.class_names if name not in found.classes]
    told = own + (f"; none of {', '.join(absent)}" if absent else "")
    if node.classes or any("," in name for name in run.class_names):
        return fine(CLASSES, told)
    line = f"classes = {to_toml(','.join(run.class_names))}"
    remedy = f"a run with other names learns which of them are folders here, unless you set {line}"
    return fine(CLASSES, told, f"{printable(remedy, 400)} in [node] of {SITE_FILE}")


_REMEDY = "repair or remove them, or leave them out: dcfl flower run ... data.broken=skip"
_MAY_WORK = (PICTURES, DISK)  # a run's config may skip broken pictures, and a small model fits


def require_usable_data(name: str, node: NodeConfig, home: Path) -> None:
    """Refuse a site whose data no run can use, before anything is started, and warn where a run may
    work all the same."""
    for finding in problems([*check_data(node), check_disk("memories and logs", home)]):
        if finding.subject == PICTURES:  # nobody can edit a node config that `up` makes
            finding = replace(finding, remedy=_REMEDY)
        line = f"{site_title(name)}: {finding.problem}"
        if finding.subject not in _MAY_WORK:
            raise ConfigError(line)
        warnings.warn(line, stacklevel=2)
