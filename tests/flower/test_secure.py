"""Secure aggregation: the exact sum in spite of drop-outs at every step, or none at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from dcfl.central_noise import NoisySum
from dcfl.errors import DCFLError, ProtocolError, SiteRefusal, TooFewClients
from dcfl.evaluation import score_model
from dcfl.flower import codec
from dcfl.flower.codec import Task
from dcfl.flower.node_memories import NodeMemories
from dcfl.flower.secure.conductor import Conductor, Read, Records
from dcfl.flower.secure.masking import joined
from dcfl.flower.secure.member import KEYS_BYTES, SEALED_BYTES, Member
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import METHODS
from dcfl.privacy import PrivacySettings
from dcfl.runs.folder import RecordedRun
from dcfl.server import ServerSettings
from dcfl.server.fixed_point import FixedPoint
from tests.engines.runs import Flat, federation, trained
from tests.flower.in_process import Clock, InProcessGrid, in_process
from tests.flower.sites_in_process import Sites, pictures, remote_experiment
from tests.flower.test_masking import LARGEST, far_from_uniform

RUN = "a" * 32
STEPS = ("query.keys", "query.shares", "train", "query.unmask")
EXAMPLE = {
    "parameters": torch.empty(5, dtype=torch.int32),
    "others": torch.empty(3, dtype=torch.int64),
}


def reply_of(client: int) -> Tensors:
    """Whole numbers far apart, of both signs."""
    numbers = torch.Generator().manual_seed(client)
    return {
        "parameters": torch.randint(-(2**28), 2**28, (5,), generator=numbers, dtype=torch.int32),
        "others": torch.randint(-(2**60), 2**60, (3,), generator=numbers, dtype=torch.int64),
    }


class InRam(NodeMemories):
    """Without waiting for a disk."""

    def __init__(self) -> None:
        super().__init__(Path("never used"))
        object.__setattr__(self, "secrets", {})

    def keep_secrets(self, task: Task, text: str) -> None:
        self.secrets[task.client] = text  # type: ignore[attr-defined]

    def take_secrets(self, task: Task) -> bytes:
        return str(self.secrets.pop(task.client, "")).encode()  # type: ignore[attr-defined]


@dataclass
class Clients:
    """Of one round, without a network."""

    memories: NodeMemories
    form: FixedPoint
    lost: Mapping[str, set[int]] = field(
        default_factory=dict
    )  # clients, by the step that they miss
    tamper: Callable[[str, int, RecordDict], RecordDict] = lambda kind, client, content: content
    seen: dict[tuple[str, int], RecordDict] = field(default_factory=dict)

    def member(self, client: int, round: int = 1) -> Member:
        return Member(self.memories, self.form, Task(RUN, round, client).ticketed())

    def ask(self, kind: str, questions: Mapping[int, Records], read: Read) -> dict[int, Any]:
        found = {}
        for client, records in questions.items():
            if client in self.lost.get(kind, ()):
                continue
            member = self.member(client)
            try:
                answer = self.answer(kind, member, codec.message(member.task, **records))
                self.seen[kind, client] = answer = self.tamper(kind, client, answer)
                found[client] = read(answer, member.task)
            except DCFLError:
                continue
        return found

    def answer(self, kind: str, member: Member, question: RecordDict) -> RecordDict:
        if kind == "query.keys":
            return member.offer(question)
        if kind == "query.shares":
            return member.deal(question)
        if kind == "query.unmask":
            return member.reveal(question)
        own = member.opened(question)
        client = member.task.client
        masked = member.masked(own, ClientUpdate(client, reply_of(client), {}, 1, 0, {}))
        return codec.update_content(member.task, masked, has_memory=False)

    def sum(self, cohort: range) -> tuple[dict[int, ClientUpdate], Tensors]:
        return Conductor(self.form, Task(RUN, 1, 0), self.ask).run(cohort, lambda one: {}, EXAMPLE)


def form(clients: int, survivors: int) -> FixedPoint:
    return FixedPoint(frozenset(), {}, 1.0, clients, survivors)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[int, int, dict[str, set[int]]]:
    clients = draw(st.integers(2, 6))
    survivors = draw(st.integers(max(2, clients // 2 + 1), clients))
    some = st.sets(st.integers(0, clients - 1), max_size=2)
    return clients, survivors, {step: draw(some) for step in STEPS}


@settings(max_examples=60, deadline=None)
@given(rounds())
def test_the_sum_is_exact_or_there_is_none(given: tuple[int, int, dict[str, set[int]]]) -> None:
    """Whoever is lost, at whichever steps: the sum is that of the replies that came, to the last
    bit; with too few at any step there is no sum, and no client reveals a share for one."""
    clients, survivors, lost = given
    round = Clients(InRam(), form(clients, survivors), lost)
    came = [c for c in range(clients) if not any(c in lost[step] for step in STEPS[:3])]
    if len([c for c in came if c not in lost["query.unmask"]]) < survivors:
        with pytest.raises(ProtocolError, match="secure aggregation ended at its step"):
            round.sum(range(clients))
        assert len(came) >= survivors or not any(kind == "query.unmask" for kind, _ in round.seen)
        return
    replies, total = round.sum(range(clients))
    assert [*replies] == came
    for name in EXAMPLE:
        wanted = sum(reply_of(client)[name] for client in came)
        assert torch.equal(total[name], torch.as_tensor(wanted))


@pytest.mark.parametrize("step", STEPS)
def test_three_of_nine_may_be_lost_at_each_step_and_a_fourth_may_not(step: str) -> None:
    _, total = Clients(InRam(), form(9, 6), {step: {0, 4, 8}}).sum(range(9))
    came = range(9) if step == "query.unmask" else (1, 2, 3, 5, 6, 7)
    wanted = sum(reply_of(client)["others"] for client in came)
    assert torch.equal(total["others"], torch.as_tensor(wanted))
    with pytest.raises(ProtocolError, match=f"{step.removeprefix('query.')!r}: 5 of 9 clients"):
        Clients(InRam(), form(9, 6), {step: {0, 4, 7, 8}}).sum(range(9))


class NoisyClients(Clients):
    """Whose replies are zeros with a share of noise: the seed tells which."""

    def answer(self, kind: str, member: Member, question: RecordDict) -> RecordDict:
        if kind != "train":
            return super().answer(kind, member, question)
        own, reply = member.opened(question), noisy_reply(member.task.client)
        return codec.update_content(member.task, member.masked(own, reply), has_memory=False)


SHARED = PrivacySettings(clip=1.0, noise=2.0, where="sum")
NOISY = NoisySum(frozenset({"w"}), {}, 1.0, 9, 6, SHARED, METHODS["fedavg"](), 0)
ZEROS = {"w": torch.zeros(5000)}


def noisy_reply(client: int) -> ClientUpdate:
    return NOISY.encode(ClientUpdate(client, ZEROS, {}, 1, 0, {}), Broadcast(1, ZEROS, {}))


@pytest.mark.parametrize("step", STEPS)
def test_whoever_is_lost_the_noise_that_is_accounted_is_in_the_sum(step: str) -> None:
    """Exactly the shares of those whose replies came. Their deviation is that of the settings, by
    the five shares that are counted, or more: wrongly red once in a million seeds. With a fourth
    lost there is no sum, and what the server has of each reply is uniform (one false alarm in a
    million looks at each)."""
    example = NOISY.example(ZEROS)
    round = NoisyClients(InRam(), NOISY, {step: {0, 4, 8}})
    conductor = Conductor(NOISY, Task(RUN, 1, 0), round.ask)
    replies, total = conductor.run(range(9), lambda one: {}, example)
    wanted = sum(noisy_reply(client).weights["parameters"] for client in replies)
    assert torch.equal(total["parameters"], torch.as_tensor(wanted))
    noise = NOISY.decode(total, ZEROS)["w"]
    assert float(noise.square().mean()) > SHARED.noise**2 * (1 - 5 * (2 / 5000) ** 0.5)
    assert len(replies) == (9 if step == "query.unmask" else 6)
    for client in replies:
        seen = codec.decode(round.seen["train", client]["weights"])["parameters"]
        assert far_from_uniform(seen.numpy().tobytes()) < LARGEST
    lost = NoisyClients(InRam(), NOISY, {step: {0, 4, 7, 8}})
    with pytest.raises(ProtocolError, match="5 of 9 clients"):
        Conductor(NOISY, Task(RUN, 1, 0), lost.ask).run(range(9), lambda one: {}, example)
    assert not any(kind == "query.unmask" for kind, _ in lost.seen if step != "query.unmask")


# What a client refuses


def at(step: str, tmp_path: Path, clients: int = 4, survivors: int = 3) -> Clients:
    """A round that has ended before this step."""
    round = Clients(NodeMemories(tmp_path), form(clients, survivors), {step: {*range(clients)}})
    with pytest.raises(ProtocolError):
        round.sum(range(clients))
    return round


def survivors_of(member: Member, *survivors: int) -> RecordDict:
    table = codec.table(dict.fromkeys(survivors, b""))
    return codec.message(member.task, survivors=table)


def test_nobody_gets_both_shares_of_a_client(tmp_path: Path) -> None:
    """The server says that client 3 is in the sum, and then that it was lost: with both shares its
    reply would be bare."""
    round = at("query.unmask", tmp_path)
    member = round.member(0)
    first = codec.read_table(member.reveal(survivors_of(member, 0, 1, 2, 3)), "revealed", 66)
    with pytest.raises(SiteRefusal, match="this is not next"):
        member.reveal(survivors_of(member, 0, 1, 2))
    # Another client, told the other story, tells the other share of client 3 and no first one.
    liar = round.member(1)
    second = codec.read_table(liar.reveal(survivors_of(liar, 0, 1, 2)), "revealed", 66)
    assert first.keys() == second.keys() == {0, 1, 2, 3}
    with pytest.raises(ProtocolError):  # two shares of different secrets
        joined({0: first[3], 1: second[3]})


def test_nobody_gets_two_replies_under_the_same_masks(tmp_path: Path) -> None:
    round = Clients(NodeMemories(tmp_path), form(3, 2))
    asked: dict[int, RecordDict] = {}
    answer = round.answer

    def noted(kind: str, member: Member, question: RecordDict) -> RecordDict:
        asked.update({member.task.client: question} if kind == "train" else {})
        return answer(kind, member, question)

    round.answer = noted  # type: ignore[method-assign]
    round.lost = {"query.unmask": {0, 1, 2}}
    with pytest.raises(ProtocolError):
        round.sum(range(3))
    with pytest.raises(SiteRefusal, match="this is not next"):
        round.member(0).opened(asked[0])
    with pytest.raises(SiteRefusal, match="this is not next"):  # nor in another round
        round.member(0, round=2).reveal(survivors_of(round.member(0, round=2), 0, 1))


@pytest.mark.parametrize(
    ("survivors", "why"),
    [
        ((0, 1), "a sum of 2 clients, where 3"),
        ((1, 2, 3), "does not fit"),
        ((0, 1, 9), "does not fit"),
    ],
)
def test_no_share_is_revealed_for_another_sum(
    survivors: tuple[int, ...], why: str, tmp_path: Path
) -> None:
    """Of too few, without this client's own reply, or with a stranger's."""
    member = at("query.unmask", tmp_path).member(0)
    with pytest.raises(SiteRefusal, match=why):
        member.reveal(survivors_of(member, *survivors))


@pytest.mark.parametrize("change", ["few", "own", "twice"])
def test_no_shares_are_dealt_for_a_wrong_list_of_keys(change: str, tmp_path: Path) -> None:
    round = at("query.shares", tmp_path)
    keys = {
        client: codec.read_table(round.seen["query.keys", client], "keys", KEYS_BYTES)[client]
        for client in range(4)
    }
    wrong = {
        "few": {0: keys[0], 1: keys[1]},
        "own": {**keys, 0: keys[1][::-1]},
        "twice": {**keys, 2: keys[1]},
    }[change]
    member = round.member(0)
    with pytest.raises(SiteRefusal, match=r"a sum of 2|does not fit"):
        member.deal(codec.message(member.task, directory=codec.table(wrong)))
    assert not any(tmp_path.rglob("secrets-000000.json"))  # and it takes part in nothing more


def test_clients_that_were_told_different_keys_cannot_read_each_other(tmp_path: Path) -> None:
    """A server that stands between them gives each another list."""
    round = at("query.shares", tmp_path, clients=3, survivors=2)
    keys = {
        client: codec.read_table(round.seen["query.keys", client], "keys", KEYS_BYTES)[client]
        for client in range(3)
    }
    lists = {0: keys, 1: {0: keys[0], 1: keys[1]}}
    sealed = {}
    for client, directory in lists.items():
        member = round.member(client)
        dealt = member.deal(codec.message(member.task, directory=codec.table(directory)))
        sealed[client] = codec.read_table(dealt, "sealed", SEALED_BYTES)
    member = round.member(0)
    relayed = codec.message(member.task, relayed=codec.table({1: sealed[1][0]}))
    with pytest.raises(ProtocolError, match="changed on their way"):
        member.opened(relayed)


@pytest.mark.parametrize("lost", [set(), {2}])
def test_a_wrong_share_ends_the_round_without_a_sum(lost: set[int], tmp_path: Path) -> None:
    """Of a seed, or of a lost client's key. A wrong mask would leave random weights."""

    def forged(kind: str, client: int, content: RecordDict) -> RecordDict:
        if kind == "query.unmask" and client == 0:
            rows = codec.read_table(content, "revealed", 66)
            content["revealed"] = codec.table({of: bytes(65) + b"\1" for of in rows})
        return content

    round = Clients(NodeMemories(tmp_path), form(4, 3), {"train": lost}, forged)
    with pytest.raises(ProtocolError, match=r"wrong shares|do not belong together"):
        round.sum(range(4))


# Whole rounds


SECURE = ServerSettings(secure=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock().rule(monkeypatch)


def losing(*kinds: str, clients: set[int]) -> Callable[[InProcessGrid], None]:
    """Replies to these steps of the first round that get lost."""

    def prepare(grid: InProcessGrid) -> None:
        def tamper(reply: Message) -> Message | None:
            content = reply.content
            task = codec.read_task(content)
            if task.round == 1 and task.client in clients and kind_of(content) in kinds:
                content.clear()  # it cannot be read
            return reply

        grid.tamper = tamper

    return prepare


def kind_of(content: RecordDict) -> str:
    names = {"keys": "query.keys", "sealed": "query.shares", "revealed": "query.unmask"}
    found = [kind for name, kind in names.items() if name in content]
    return found[0] if found else "train" if "weights" in content else ""


@pytest.mark.parametrize("step", STEPS)
def test_a_round_that_loses_too_many_changes_nothing_and_says_why(
    step: str, tmp_path: Path, clock: Clock
) -> None:
    model, dataset = Flat(), federation((5, 7, 6, 5))
    before = score_model(model, dataset).loss
    lost = in_process(4, losing(step, clients={0, 2}))
    settings: dict[str, Any] = {"rounds": 1, "dataset": dataset, "model": model, "connect": lost}
    with pytest.raises(TooFewClients):
        trained(tmp_path / "run", METHODS["fedavg"](), 1, server=SECURE, **settings)
    recorded = RecordedRun(tmp_path / "run")
    assert recorded.rounds[0]["loss"] == before
    clients = recorded.clients
    assert [row["outcome"] for row in clients] == ["rejected", "failed", "rejected", "failed"]
    wanted = f"ended at its step '{step.removeprefix('query.')}': 2 of 4 clients took it, and a sum"
    assert all(wanted in clients[place]["reason"] for place in (1, 3))


@dataclass
class Watched(Sites):
    """What the server sees of each client's training."""

    def masked(self) -> dict[tuple[int, int], Tensors]:
        trained = [reply.content for reply in self.replies if kind_of(reply.content) == "train"]
        tasks = [codec.read_task(content) for content in trained]
        return {
            (task.round, task.client): codec.decode(content["weights"])
            for task, content in zip(tasks, trained, strict=True)
        }


@pytest.mark.parametrize("noise", [0.0, 4.0])
def test_sites_send_masked_numbers_record_every_step_and_count_one_round(
    noise: float, tmp_path: Path
) -> None:
    """And the server has nothing else of a site: no losses, no sizes; with shares of noise, no
    squared lengths either."""
    folders = [pictures(tmp_path / name, *count) for name, count in (("a", (8, 8)), ("b", (9, 5)))]
    sites = Watched(folders, ({"rounds": 2, "secure-sum": 2}, {}))
    shared = {"privacy__clip": 1.0, "privacy__noise": noise, "privacy__where": "sum"}
    words: dict[str, Any] = {"server__secure": True, **(shared if noise else {})}
    run = sites.train(remote_experiment(tmp_path / "out", **words))
    assert [row["used"] for row in run.rounds] == [2, 2]
    assert all(0.9 < row["bytes_up"] / row["bytes_down"] < 1.1 for row in run.rounds)
    asked = [entry.asked for entry in sites.history(0).entries]
    assert [kind for kind in asked if not kind.startswith("evaluate")] == [
        "query.whoami",
        *("query.keys", "query.shares", "train", "query.unmask") * 2,
    ]
    entries = [entry for entry in sites.history(0).entries if entry.asked == "query.shares"]
    assert all("sealed.bytes" in entry.sent and "secure = True" in entry.about for entry in entries)
    assert not any(row["metrics"] for row in run.clients)
    for numbers in sites.masked().values():
        assert (len(numbers["others"]) == 0) == bool(noise)
        assert far_from_uniform(numbers["parameters"].numpy().tobytes()) < LARGEST
    # Nothing is left of the secrets.
    assert not any(tmp_path.rglob("secrets-*"))


def test_a_site_trains_for_sums_of_as_many_as_it_demands(tmp_path: Path) -> None:
    folders = [pictures(tmp_path / name, 8, 8) for name in ("a", "b")]
    for secure, least in ((False, 2), (True, 3)):
        sites = Sites(folders, ({"secure-sum": least}, {"secure-sum": least}))
        with pytest.raises(DCFLError, match=f"in sums of at least {least} replies alone"):
            sites.train(remote_experiment(tmp_path / f"out-{least}", server__secure=secure))
