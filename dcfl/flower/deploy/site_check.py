"""`dcfl flower check-site`: all that can be looked at before a site takes part in a run."""

from __future__ import annotations

from collections.abc import Mapping

from dcfl.data.settings import DataSettings
from dcfl.errors import SiteRefusal
from dcfl.experiment import Experiment
from dcfl.flower.app_code import check_pin, require_allowed
from dcfl.flower.app_pin import KEY
from dcfl.flower.deploy.checks import (
    Finding,
    check_authority,
    check_disk,
    check_key,
    check_link,
    check_port,
    check_versions,
    fine,
    wrong,
)
from dcfl.flower.deploy.data_checks import check_data
from dcfl.flower.deploy.deployment_record import read_record
from dcfl.flower.deploy.kit_folder import SITE_FILE, SiteKit
from dcfl.flower.node_config import NodeConfig
from dcfl.flower.site_rules import SiteRules
from dcfl.flower.withholding import check_run, in_order
from dcfl.system.wording import printable

CONFIG, RULES = "node config", "rules"
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


def check_site(site: SiteKit, run: Experiment | None = None) -> list[Finding]:
    """`run`: the experiment that the sites agreed on, if it is at hand."""
    data = run.data if run else None
    found = [check_versions(site.folder)]
    try:
        node = NodeConfig.read(site.node_config)
        require_allowed({}, node.code_sha256)
        check_pin(node.app_sha256, KEY)
        rules = node.rules
    except SiteRefusal as error:
        found.append(wrong(CONFIG, str(error), f"correct it in {SITE_FILE}"))
    else:
        found += [check_place(node, data), check_rules(site.node_config, rules, run)]
        found += check_data(node, data)
        found += check_disk({"memories": node.memories_folder, "state and logs": site.state})
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
    """As when the site joins the run."""
    try:
        if run is not None:
            check_run(rules.withheld, run)
    except SiteRefusal as error:
        remedy = f"agree with the operator on another run, or change withhold in {SITE_FILE}"
        return wrong(RULES, f"this site would refuse the run: {error}", remedy)
    withheld = f"withheld: {', '.join(in_order(rules.withheld)) or 'nothing'}"
    others = [
        f"{key} = {printable(str(value), _SHOWN)}"
        for key, value in node_config.items()
        if key not in _NO_RULES
    ]
    return fine(RULES, "; ".join([withheld, *others]))


def check_place(node: NodeConfig, run: DataSettings | None) -> Finding:
    told = f"site {node.partition_id} of {node.num_partitions}, counted from 0"
    if not 0 <= node.partition_id < node.num_partitions:
        return wrong(CONFIG, told, "agree on partition-id and num-partitions with the operator")
    if (
        run is not None
        and run.dataset == "remote"
        and run.clients not in ("auto", node.num_partitions)
    ):
        remedy = "make num-partitions and data.clients the same"
        return wrong(CONFIG, f"{told}; the run has {run.clients} sites", remedy)
    return fine(CONFIG, told)
