"""A node is what the operator says, not what it says itself."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import make_message

from dcfl.data.settings import DataSettings
from dcfl.errors import CODES, BrokenPicture, ConfigError, NetworkError
from dcfl.flower import codec
from dcfl.flower.client_app import Site, client_app
from dcfl.flower.codec import Task
from dcfl.flower.deploy.keys import make_keys
from dcfl.flower.node_memories import NodeMemories
from dcfl.flower.nodes import MOST_NOTICES
from dcfl.flower.roster import Roster, fingerprint_in, registered_fingerprint
from dcfl.messages import Broadcast, ClientUpdate
from dcfl.tensors import snapshot
from tests import toys
from tests.engines.runs import Flat
from tests.flower.in_process import Clock, InProcessGrid, engine_at

PEM = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
KEYS = [ec.generate_private_key(ec.SECP384R1()).public_key().public_bytes(*PEM) for _ in range(4)]
PRINTS = tuple(map(registered_fingerprint, KEYS))
NAMES = ("north", "south", "west")
SITES = Roster(3, PRINTS[:3], NAMES)
HOSTILE = 99  # the first in every list
Claims = dict[int, tuple[int, int]]  # partition-id and num-partitions, by node id
THREE: Claims = {100: (0, 3), 101: (1, 3), 102: (2, 3)}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock().rule(monkeypatch)


class Federation:
    """Six clients at nodes that claim what a test says; the keys of 100, 101, ... are KEYS."""

    def __init__(
        self,
        folder: Path,
        roster: Roster,
        claims: Claims,
        tamper: Callable[[Message], Message | None] = lambda reply: reply,
    ) -> None:
        self.tamper = tamper
        self.answered: set[int] = set()
        self.deaf: set[int] = set()
        site = Site(toys.runner("fedavg", Flat(), toys.federated(6)), NodeMemories(folder), 1)
        self.grid = InProcessGrid(client_app(lambda context, task: site), 0)
        self.grid.tamper = self._seen
        self.join(claims)
        self.weights = snapshot(site.runner.model)
        self.engine = engine_at(self.grid, site.runner, roster, deadline=10.0)

    def join(self, claims: Claims, key: bytes | None = None) -> None:
        for node, (own, count) in claims.items():
            said = {"partition-id": own, "num-partitions": count}
            self.grid.contexts[node] = Context(1, node, said, RecordDict(), {})
            self.grid.keys[node] = key or KEYS[-1 if node == HOSTILE else node - 100]

    def _seen(self, reply: Message) -> Message | None:
        node = reply.metadata.src_node_id
        if reply.metadata.message_type == "train":
            self.answered.add(node)
        return None if node in self.deaf else self.tamper(reply)

    def round(self) -> list[str]:
        """The reasons, empty for an update, of the six clients; who trained is in `answered`."""
        self.answered.clear()
        replies = self.engine.run(Broadcast(1, self.weights, {}), range(6))
        return ["" if isinstance(reply, ClientUpdate) else reply.reason for reply in replies]

    def notices(self) -> str:
        return "\n".join(self.engine.take_notices())


HONEST = {100, 101, 102}
ALL = [""] * 6
LIES = {
    "all clients for itself": (0, 1),
    "another's place": (0, 3),
    "2**39 sites": (0, 2**39),
    "2**39, the last of them": (2**39 - 1, 2**39),
    "one site more": (3, 4),
}


@pytest.mark.parametrize("lie", LIES)
def test_with_keys_a_stranger_gets_nothing_and_is_named(lie: str, tmp_path: Path) -> None:
    there = Federation(tmp_path, SITES, {HOSTILE: LIES[lie], **THREE})
    assert there.round() == ALL
    assert there.answered == HONEST
    assert f"node {HOSTILE} (key {PRINTS[3]}) is not one of this run's sites" in there.notices()


@pytest.mark.parametrize("lie", LIES)
def test_with_keys_a_site_that_lies_loses_its_own_clients_alone(lie: str, tmp_path: Path) -> None:
    """A registered site, the first to answer, claims what is not its own."""
    there = Federation(tmp_path, SITES, {102: LIES[lie], 100: (0, 3), 101: (1, 3)})
    reasons = there.round()
    assert [bool(reason) for reason in reasons] == [False, False, True] * 2
    assert there.answered == {100, 101}
    own, count = LIES[lie]
    said = f"num-partitions={count}" if count != 3 else f"partition-id={own}"
    assert said in reasons[2]
    assert there.notices().startswith(f"site west cannot be used: its node config says {said}")


def test_with_keys_a_site_is_told_whose_key_it_has(tmp_path: Path) -> None:
    there = Federation(tmp_path, SITES, {100: (1, 3), 101: (0, 3), 102: (2, 3)})
    assert "its key is that of site north" in there.round()[0]
    assert there.answered == {102}


@pytest.mark.parametrize(
    ("lie", "refused"), [((0, 1), True), ((1, 2**39), True), ((0, 2), True), ((0, 3), False)]
)
def test_without_keys_the_operators_number_holds(
    lie: tuple[int, int], refused: bool, tmp_path: Path
) -> None:
    """And the rest is first come, first served, which a person is told."""
    there = Federation(tmp_path, Roster(3), {HOSTILE: lie, **THREE})
    assert there.round() == ALL
    assert there.answered == (HONEST if refused else {HOSTILE, 101, 102})
    assert f"node {HOSTILE} (key {PRINTS[3]})" in there.notices()
    if not refused:
        there.join(THREE)
        del there.grid.contexts[HOSTILE]
        assert there.round() == ALL
        assert there.answered == HONEST


def test_two_with_one_key_are_a_conflict_that_a_person_is_told(tmp_path: Path) -> None:
    """Flower gives no two ids to a key; if it did, the first would stay."""
    there = Federation(tmp_path, SITES, THREE)
    there.join({205: (1, 3)}, KEYS[1])
    assert there.round() == there.round() == ALL
    assert there.answered == HONEST
    assert "two nodes claim partition-id 1: node 101" in there.notices()
    assert not there.notices()


def test_a_site_that_comes_back_under_its_key_is_asked_at_once(
    tmp_path: Path, clock: Clock
) -> None:
    there = Federation(tmp_path, SITES, THREE)
    before = clock.now
    del there.grid.contexts[101]
    assert there.round() == ["", "its node is not online", ""] * 2
    there.join({101: (1, 3)})
    assert there.round() == ALL
    assert clock.now < before + 10


TWO: Claims = {100: (0, 2), 101: (1, 2)}
LOST = ["", "its node is not online"] * 3


def test_without_keys_a_node_comes_back_under_another_id(tmp_path: Path) -> None:
    there = Federation(tmp_path, Roster(2), TWO)
    del there.grid.contexts[101]
    assert there.round() == LOST
    there.join({205: (1, 2)}, KEYS[1])
    assert there.round() == ALL


def test_even_while_its_old_self_still_seems_to_be_there(tmp_path: Path) -> None:
    """Flower takes a killed SuperNode for alive until it has missed some heartbeats."""
    there = Federation(tmp_path, Roster(2), TWO)
    there.deaf.add(101)
    there.join({205: (1, 2)}, KEYS[1])
    assert there.round() == ["", "no reply within 10 s"] * 3
    del there.grid.contexts[101]
    assert there.round() == ALL


def test_a_newcomer_that_does_not_answer_costs_nobody_a_round(tmp_path: Path, clock: Clock) -> None:
    there = Federation(tmp_path, Roster(2), TWO)
    there.deaf.add(300)
    there.join({300: (0, 2)}, KEYS[2])
    began = clock.now
    assert there.round() == there.round() == ALL
    assert clock.now < began + 1


def error(reply: Message) -> Message:
    return make_message(reply.metadata, error=Error(2, "Traceback"))


def empty(reply: Message) -> Message:
    return make_message(reply.metadata, RecordDict())


def to_nobody(reply: Message) -> Message:
    reply.metadata.__dict__["_reply_to_message_id"] = "f" * 64
    return reply


@pytest.mark.parametrize(
    "change",
    [
        error,
        lambda reply: make_message(reply.metadata, RecordDict()),
        lambda reply: None,
        to_nobody,
    ],
    ids=["error", "empty", "silence", "to nobody"],
)
def test_a_node_that_does_not_say_who_it_is_is_left_out(
    change: Callable[[Message], Message | None], tmp_path: Path
) -> None:
    def tamper(reply: Message) -> Message | None:
        asked = reply.metadata.message_type == "query.whoami"
        return change(reply) if asked and reply.metadata.src_node_id == 101 else reply

    there = Federation(tmp_path, Roster(2), TWO, tamper)
    assert [bool(reason) for reason in there.round()] == [False, True] * 3
    assert there.answered == {100}


def test_a_node_whose_first_answer_was_lost_is_asked_once_more(tmp_path: Path) -> None:
    """Such as one whose process died with the run before."""
    lost: list[Message] = []

    def tamper(reply: Message) -> Message:
        if reply.metadata.src_node_id == 101 and not lost:
            lost.append(reply)
            return error(reply)
        return reply

    there = Federation(tmp_path, Roster(2), TWO, tamper)
    assert lost[0].metadata.message_type == "query.whoami"
    assert there.round() == ALL


def test_a_site_that_was_refused_is_welcome_when_it_is_mended(tmp_path: Path) -> None:
    there = Federation(tmp_path, SITES, {100: (0, 3), 101: (1, 2), 102: (2, 3)})
    assert there.round()[1].startswith("its node config says num-partitions=2")
    del there.grid.contexts[101]
    there.round()
    there.join({101: (1, 3)})
    assert there.round() == ALL


def test_a_flood_of_strangers_makes_a_short_list(tmp_path: Path) -> None:
    there = Federation(tmp_path, SITES, THREE)
    there.join(dict.fromkeys(range(1000, 1200), (0, 3)), KEYS[3])
    assert there.round() == ALL
    notices = there.notices().splitlines()
    assert len(notices) == MOST_NOTICES
    assert notices[-1].startswith("more of this kind")


def test_a_reply_in_anothers_name_is_not_believed(tmp_path: Path) -> None:
    """It would have to repeat what only the other one has read."""
    there = Federation(tmp_path, SITES, THREE)

    def forge(reply: Message) -> Message:
        if reply.metadata.message_type == "train" and reply.metadata.src_node_id == 101:
            task = codec.read_task(reply.content)
            reply.content["task"]["ticket"] = task.ticketed().ticket  # type: ignore[index]
        return reply

    there.grid.tamper = forge
    assert [reason[:25] for reason in there.round()] == ["", "an answer from somebody w", ""] * 2


@pytest.mark.parametrize("roster", [SITES, Roster(3)])
def test_without_one_usable_node_the_run_says_why(roster: Roster, tmp_path: Path) -> None:
    claims = {node: (own, 2) for node, (own, _) in list(THREE.items())[:2]} | {102: (0, 1)}
    with pytest.raises(NetworkError, match="says num-partitions=2, and this run has 3 sites"):
        Federation(tmp_path, roster, claims)


@pytest.mark.parametrize("roster", [SITES, Roster(3, names=NAMES)], ids=["keys", "no keys"])
def test_a_site_that_cannot_be_used_is_named(roster: Roster, tmp_path: Path) -> None:
    """By its key or, without keys, by its own word."""
    site = Site(toys.runner("fedavg", Flat(), toys.federated(6)), NodeMemories(tmp_path), 1)
    broken = {101}

    def site_of(context: Context, task: Task) -> Site:
        if context.node_id in broken:
            raise BrokenPicture("a secret path")
        return site

    grid = InProcessGrid(client_app(site_of), 3)
    grid.keys = dict(zip(THREE, KEYS, strict=False))
    engine = engine_at(grid, site.runner, roster, deadline=10.0)
    (notice,) = engine.take_notices()
    named = "site south" if roster.keys else "site south (node 101)"
    assert notice == f"{named} cannot be used: {CODES['picture']}"
    replies = list(engine.run(Broadcast(1, snapshot(site.runner.model), {}), range(3)))
    lost = [reply for reply in replies if not isinstance(reply, ClientUpdate)]
    assert [(one.client, one.reason) for one in lost] == [(1, CODES["picture"])]
    broken |= {100, 102}
    with pytest.raises(NetworkError, match=r"site north.*: one of its .* site south.* site west"):
        engine_at(grid, site.runner, roster)


# The operator's word


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "keys"
    make_keys(folder, ["north", "south"])
    return folder


def test_a_roster_survives_the_run_config(keys: Path) -> None:
    given = Roster.of_keys([keys / "north.pub", keys / "south.pub"])
    assert given.names == ("north", "south")
    assert given.title(1) == "site south"
    for roster in (given, Roster(7), Roster(2, names=("north", "south"))):
        assert Roster.from_text(roster.to_text()) == roster


def test_the_fingerprint_is_that_of_the_registered_key(keys: Path) -> None:
    public = serialization.load_ssh_public_key((keys / "north.pub").read_bytes())
    assert fingerprint_in(keys / "north.pub") == registered_fingerprint(public.public_bytes(*PEM))
    assert registered_fingerprint(b"") == registered_fingerprint(b"anything") == ""
    assert len({*PRINTS}) == 4


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen here")
def test_ssh_keygen_shows_the_same_fingerprint(keys: Path) -> None:
    shown = subprocess.check_output(["ssh-keygen", "-lf", keys / "north.pub"], text=True)
    assert shown.split()[1] == fingerprint_in(keys / "north.pub")


REMOTE = DataSettings("remote", clients=2, class_names=("a", "b"))


def test_with_pictures_at_the_sites_each_client_is_one(keys: Path) -> None:
    Roster(2).require_fitting(REMOTE)
    for fits in (DataSettings("remote", class_names=("a", "b")), DataSettings(clients=20)):
        Roster(3).require_fitting(fits)
    with pytest.raises(ConfigError, match=r"data\.clients = 2, and there are 3 sites"):
        Roster(3).require_fitting(REMOTE)


BAD: dict[str, Callable[[Path], Roster]] = {
    "at least one": lambda keys: Roster.from_text("0"),
    "at most 10,000": lambda keys: Roster.from_text("9" * 18),
    "give a number": lambda keys: Roster.from_text("north south"),
    "or a line with": lambda keys: Roster.from_text("9" * 5_000),
    "not a public key": lambda keys: Roster.of_keys([keys / "north"]),
    "cannot be read": lambda keys: Roster.of_keys([keys / "east.pub"]),
    "the same key": lambda keys: Roster.of_keys([keys / "north.pub"] * 2),
}


@pytest.mark.parametrize("message", BAD)
def test_a_roster_that_cannot_be_is_one_line(message: str, keys: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        BAD[message](keys)
