"""Which node holds which clients.

A node is believed as far as it agrees with the operator's `Roster`; anything else is refused, and
a notice tells people.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from flwr.app import ArrayRecord, RecordDict

from dcfl.errors import NetworkError, ProtocolError, RefusedBySite, TooFewClients
from dcfl.flower import codec
from dcfl.flower.codec import Claim, Task
from dcfl.flower.messenger import EXPIRY_FACTOR, LostReply, Messenger
from dcfl.flower.roster import Roster, registered_fingerprint
from dcfl.flower.withholding import in_order, refusal_of

JOIN_SECONDS = 120  # for all nodes to come up and say who they are
ASK_AGAIN_SECONDS = 120  # until a node that cannot be used, or does not answer, is asked again
MOST_NOTICES = 50  # strangers may be many


class Inquiry(NamedTuple):
    """A node was asked who it is."""

    when: float
    message: str | None  # None: answered, or not taken
    task: Task


class Nodes:
    """Which node each client lives with: client % sites is the node's partition id."""

    def __init__(
        self,
        messenger: Messenger,
        run: str,
        roster: Roster,
        classes: int,
        unsent: ArrayRecord | None = None,
    ) -> None:
        """`unsent`: weights that a node gets when it joins, and then keeps."""
        self._sent_at_join = {"unsent": unsent} if unsent is not None else {}
        self._messenger, self._run, self.classes, self.roster = messenger, run, classes, roster
        self._members: dict[int, int] = {}  # node ids by partition id
        self._successors: dict[int, int] = {}  # likewise: without keys, who takes over
        self._keys: dict[int, str] = {}  # fingerprints by node id, of those online
        self._inquiries: dict[int, Inquiry] = {}  # by node id
        self._asked_twice: set[int] = set()  # node ids: the first answer was lost
        self._problems: dict[int, str] = {}  # by node id: why it cannot be used
        self._refusing: set[int] = set()  # those of them that have decided so
        self._sites: dict[int, int] = {}  # by node id: which site it says it is, without keys
        self.images: dict[int, list[int]] = {}  # test images by partition id, as first declared
        self.examples: dict[int, int] = {}  # that replies may count, likewise
        self.withheld: dict[int, frozenset[str]] = {}  # by partition id
        self.lenders: set[int] = set()  # partition ids of sites that lend their personal part
        self.notices: list[str] = []  # for people
        self._records: dict[str, dict[str, object]] = {}
        self._join()

    def node_of(self, client: int) -> int | None:
        """The node that can be asked to train the client."""
        place = client % self.roster.count
        return self._members.get(place) if self.may_train(client) else None

    def may_train(self, client: int) -> bool:
        """As far as its site has said."""
        place = client % self.roster.count
        refuses = place in map(self._site_of, self._refusing)
        return not refuses and not refusal_of(self.withheld.get(place, frozenset()), "train")

    @property
    def nameless_refusals(self) -> int:
        """Of sites of which nobody knows which they are."""
        return sum(self._site_of(node) is None for node in self._refusing)

    def examples_of(self, client: int) -> int:
        """How many images of its own the client's replies may count, as its site first said."""
        return self.examples[client % self.roster.count]

    def tell_of_majority(self) -> None:
        """Nobody can check how many images a site has; people can see whether that is likely."""
        total = sum(self.examples.values())
        for place, count in self.examples.items():
            if len(self.examples) > 2 and 2 * count > total:
                self.notify(
                    f"{self.roster.title(place)} says it has {count:,} of the {total:,} training "
                    f"images: weighted by them, it counts for more than all others together"
                )

    def title_of(self, client: int) -> str:
        return self.roster.title(client % self.roster.count)

    def absence(self, client: int) -> str:
        """Why nobody can be asked to train the client."""
        place = client % self.roster.count
        if refusal := refusal_of(self.withheld.get(place, frozenset()), "train"):
            return refusal.value
        reasons = {
            why for node, why in self._problems.items() if self._site_of(node) in (place, None)
        }
        if not reasons:
            return "its node is not online"
        text = "; ".join(sorted(reasons))
        known = place in map(self._site_of, self._problems)
        return text if known else f"its node is not online, or cannot be used: {text}"

    def require_clients(self, clients: int, least: int) -> None:
        """Refuse a run that could not change the model with the sites that are here."""
        missing = [client for client in range(clients) if self.node_of(client) is None]
        if clients - len(missing) < least:
            told = dict.fromkeys(f"{self.title_of(one)}: {self.absence(one)}" for one in missing)
            raise TooFewClients(
                f"{clients - len(missing)} of {clients} clients can train, and "
                f"federation.minimum_replies = {least}: {'; '.join(told)}"
            )

    def online(self) -> dict[int, int]:
        """Node ids by partition id."""
        return dict(sorted(self._members.items()))

    def records(self) -> dict[str, dict[str, object]]:
        """How far each site's own record goes, by name, for an auditor to compare."""
        for place, node in self._members.items():
            if node in self._messenger.records:
                lines, last = self._messenger.records[node]
                self._records[self.roster.name(place)] = {"lines": lines, "last": last}
            if node in self._messenger.rewound:
                self.notify(f"{self.roster.title(place)} has fewer lines in its record than before")
        return dict(self._records)

    def notify(self, notice: str) -> None:
        """Tell people something once, and not without limit."""
        if notice not in self.notices and len(self.notices) < MOST_NOTICES:
            last = len(self.notices) == MOST_NOTICES - 1
            self.notices.append("more of this kind, which are not shown" if last else notice)

    def refresh(self) -> None:
        """Forget the nodes that have gone, ask new ones who they are, and read the answers that
        have come. This waits for nobody."""
        online = self._messenger.nodes()
        self._keys = {node: registered_fingerprint(key) for node, key in online.items()}
        self._forget_all_but(online.keys())
        for place in [place for place in self._successors if place not in self._members]:
            self._members[place] = self._successors.pop(place)
        strangers = online.keys() - {*self._members.values(), *self._successors.values()}
        self._ask([node for node in sorted(strangers) if self._is_invited(node)])
        for node, inquiry in list(self._inquiries.items()):
            reply = self._messenger.collect(inquiry.message) if inquiry.message else None
            if reply is None:
                continue
            if isinstance(reply, LostReply) and not reply.refused and node not in self._asked_twice:
                self._asked_twice.add(node)  # its process may have died with the run before
                del self._inquiries[node]
                continue
            self._inquiries[node] = inquiry._replace(message=None)
            self._admit(node, reply, inquiry.task)

    def _forget_all_but(self, online: Collection[int]) -> None:
        for places in (self._members, self._successors):
            for place in [place for place, node in places.items() if node not in online]:
                del places[place]
        # A node with a key of its own comes back under the same id, and is then asked at once.
        self._inquiries = {node: one for node, one in self._inquiries.items() if node in online}
        self._problems = {node: why for node, why in self._problems.items() if node in online}
        self._refusing &= self._problems.keys()
        self._asked_twice &= set(online)
        self._sites = {node: site for node, site in self._sites.items() if node in online}

    def _is_invited(self, node: int) -> bool:
        """Whether a node may be asked who it is; with keys, only the run's sites may."""
        if self.roster.keys and self._place_of(node) is None:
            self.notify(f"{self._node_title(node)} is not one of this run's sites: it gets nothing")
            return False
        return True

    def _place_of(self, node: int) -> int | None:
        return self.roster.place_of(self._keys.get(node, ""))

    def _site_of(self, node: int) -> int | None:
        """Which site a node is: by its key or, without keys, as its config says."""
        return self._place_of(node) if self.roster.keys else self._sites.get(node)

    def _title(self, node: int) -> str:
        site = self._site_of(node)
        if site is None:
            return self._node_title(node)
        return self.roster.title(site) + ("" if self.roster.keys else f" (node {node})")

    def _node_title(self, node: int) -> str:
        return f"node {node} (key {self._keys.get(node) or 'unreadable'})"

    def _ask(self, strangers: Sequence[int]) -> None:
        """Ask new nodes who they are; again after a while those that cannot be used, which may have
        been repaired."""
        now = time.monotonic()
        due = {
            node: Task(self._run, round=0, client=self._place_of(node) or 0).ticketed()
            for node in strangers
            if node not in self._inquiries or now > self._inquiries[node].when + ASK_AGAIN_SECONDS
        }
        sent = self._messenger.send_tasks(
            "query.whoami", [*due.items()], ASK_AGAIN_SECONDS / EXPIRY_FACTOR, **self._sent_at_join
        )
        messages = {one.task: one.message for one in sent}
        for node, task in due.items():
            self._inquiries[node] = Inquiry(now, messages.get(task), task)

    def _admit(self, node: int, reply: RecordDict | LostReply, task: Task) -> None:
        try:
            if isinstance(reply, LostReply):
                raise (RefusedBySite if reply.refused else ProtocolError)(reply.reason)
            claim = codec.read_claim(reply, task, self.classes)
            place = self._checked(node, claim)
        except ProtocolError as error:
            self._problems[node] = str(error)
            if isinstance(error, RefusedBySite):
                self._refusing.add(node)
            said = codec.failed_place(reply) if isinstance(reply, RecordDict) else None
            if said is not None and said < self.roster.count:
                self._sites[node] = said
            self.notify(f"{self._title(node)} cannot be used: {error}")
            return
        self._problems.pop(node, None)
        self._refusing.discard(node)
        self._sites.pop(node, None)
        self.images.setdefault(place, claim.images)
        self.examples.setdefault(place, claim.examples)
        self.withheld.setdefault(place, claim.withheld)
        self.lenders |= {place} if claim.lends else set()
        if claim.withheld:
            what = ", ".join(in_order(claim.withheld))
            self.notify(f"{self.roster.title(place)} withholds {what}")
        if claim.broken:
            pictures = f"{claim.broken:,} broken picture{'' if claim.broken == 1 else 's'}"
            self.notify(f"{self.roster.title(place)} leaves out {pictures}")
        first = self._members.setdefault(place, node)
        if first != node:
            self._successors[place] = node
            self.notify(
                f"two nodes claim partition-id {place}: {self._node_title(first)}, which "
                f"came first, has its clients; {self._node_title(node)} gets nothing while that is "
                f"online"
            )

    def _checked(self, node: int, claim: Claim) -> int:
        """The place of a node, by the operator's roster, with which its claim must agree."""
        if claim.partitions not in (None, self.roster.count):
            raise ProtocolError(
                f"its node config says num-partitions={claim.partitions}, "
                f"and this run has {self.roster.count} sites"
            )
        place = self._place_of(node)
        if place is not None and claim.partition not in (None, place):
            raise ProtocolError(
                f"its node config says partition-id={claim.partition}, "
                f"and its key is that of {self.roster.title(place)}"
            )
        found = claim.partition if place is None else place
        if found is None:
            raise ProtocolError("it has no key here, and its node config has no partition-id")
        if found >= self.roster.count:
            raise ProtocolError(
                f"its node config says partition-id={found}, counted from 0, "
                f"and this run has {self.roster.count} sites"
            )
        return found

    def _join(self) -> None:
        """Wait until every site has joined or said why it cannot, for a limited time."""
        end = time.monotonic() + JOIN_SECONDS
        while len(self._members) < self.roster.count and time.monotonic() <= end:
            self.refresh()
            if self._all_answered():
                break
            time.sleep(0.05)
        if not self._members:
            reasons = "; ".join(f"{self._title(node)}: {why}" for node, why in self._unusable())
            raise NetworkError(
                f"no node can be used: {reasons}"
                if reasons
                else f"no node has come up within {JOIN_SECONDS} s"
            )

    def _unusable(self) -> list[tuple[int, str]]:
        """The nodes that cannot be used, and why."""
        sites = {node: self._site_of(node) for node in self._problems}
        return sorted(self._problems.items(), key=lambda one: (sites[one[0]] or 0, one[0]))

    def _all_answered(self) -> bool:
        """Has each site either joined or said why it cannot? Without keys a node with a problem may
        be any of them."""
        if self.roster.keys:
            failed = {self._place_of(node) for node in self._problems}
            return len(failed | self._members.keys()) >= self.roster.count
        return len(self._members) + len(self._problems) >= self.roster.count
