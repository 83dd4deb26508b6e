"""`dcfl flower check-site`: all that can be looked at before a site takes part in a run."""

from __future__ import annotations

from dcfl.data.settings import DataSettings
from dcfl.errors import SiteRefusal
from dcfl.flower.app_code import check_pin, require_allowed
from dcfl.flower.app_pin import KEY
from dcfl.flower.deploy.data_checks import check_data
from dcfl.flower.deploy.kit_folder import SITE_FILE, SiteKit
from dcfl.flower.deploy.link_checks import check_authority, check_key, check_link
from dcfl.flower.deploy.machine_checks import check_disk, check_versions
from dcfl.flower.deploy.site_findings import Finding, fine, wrong
from dcfl.flower.node_config import NodeConfig

CONFIG = "node config"


def check_site(site: SiteKit, run: DataSettings | None = None) -> list[Finding]:
    """`run`: the [data] table that the sites agreed on, if it is at hand."""
    found = [check_versions(site.folder)]
    try:
        node = NodeConfig.read(site.node_config)
        require_allowed({}, node.code_sha256)
        check_pin(node.app_sha256, KEY)
    except SiteRefusal as error:
        found.append(wrong(CONFIG, str(error), f"correct it in {SITE_FILE}"))
    else:
        found.append(check_place(node, run))
        found += check_data(node, run)
        found += check_disk({"memories": node.memories_folder, "state and logs": site.state})
    key, authority = check_key(site.key), check_authority(site.authority)
    found += [key, authority]
    found += check_link(
        site.address, site.authority if authority.ok else None, site.key if key.ok else None
    )
    return found


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
