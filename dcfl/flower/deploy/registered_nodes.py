"""Which nodes a SuperLink knows by their keys, and which of them are online."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dcfl.flower.deploy.superlink import Connection, loopback_unproxied
from dcfl.flower.key_fingerprints import registered_fingerprint

if TYPE_CHECKING:
    from dcfl.flower.roster import Roster  # it imports torch, which ./status needs not

_UNREGISTERED = "unregistered"  # Flower's word for a node that its database keeps all the same


class RegisteredNode(NamedTuple):
    key: str  # its fingerprint
    online: bool  # as the SuperLink sees it, up to a minute late


class Absence(NamedTuple):
    """Sites of a run that are not online."""

    sites: str  # for a person; empty: all are online, or the SuperLink does not say
    of_all: bool = False


def registered_nodes(link: Connection) -> list[RegisteredNode] | None:
    """None if the SuperLink does not say it. Flower's command lists nodes without their keys. What
    that command uses is asked here, and may be different in another version."""
    try:
        listed = _listed(link)
    except Exception:
        return None
    return [
        RegisteredNode(registered_fingerprint(key), state == "online")
        for key, state in listed
        if state != _UNREGISTERED
    ]


def absent_sites(link: Connection, roster: Roster) -> Absence:
    nodes = registered_nodes(link)
    if nodes is None:
        return Absence("")
    online = [node.key for node in nodes if node.online]
    if roster.keys:
        absent = [place for place, key in enumerate(roster.keys) if key not in online]
        told = ", ".join(roster.title(place) for place in absent)
        return Absence(told, len(absent) == roster.count)
    missing = max(0, roster.count - len(online))
    return Absence(f"{missing} of {roster.count} sites" if missing else "", not online)


def _listed(link: Connection) -> list[tuple[bytes, str]]:
    from flwr.proto.control_pb2 import ListNodesRequest
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

    authority = link.root_certificate
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    with loopback_unproxied():
        client = ControlHttpClient.from_server_address(
            link.address,
            link.insecure,
            authority.read_bytes() if authority else None,
            interceptors=[version],
        )
    with client:
        answer = client.ListNodes(ListNodesRequest())
    return [(node.public_key, node.status) for node in answer.nodes_info]
