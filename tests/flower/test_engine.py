"""Whatever a node does, only its own clients' rounds suffer, and every message is accounted for."""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.common.serde import message_to_proto
from hypothesis import given
from hypothesis import strategies as st

from dcfl.client import Client
from dcfl.data import FederatedData
from dcfl.data.datasets import Images
from dcfl.engines.engine import Session, SiteScore
from dcfl.errors import (
    CODES,
    ClientFailure,
    ConfigError,
    Diverged,
    NetworkError,
    TooFewClients,
)
from dcfl.evaluation import Score, score_model
from dcfl.experiment import (
    EngineSettings,
    Experiment,
    FederationSettings,
    OutputSettings,
)
from dcfl.flower import codec
from dcfl.flower.client_app import Site, client_app
from dcfl.flower.codec import Task
from dcfl.flower.engine import GridEngine
from dcfl.flower.node_memories import NodeMemories
from dcfl.flower.roster import Roster
from dcfl.flower.site_evaluation import SiteResult, combine, image_weights
from dcfl.methods import METHODS, Method, Objective
from dcfl.runs.evaluations import by_sites
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import ClientRow, RoundRow
from dcfl.runs.run import Run
from dcfl.scores import Scores, scores_of
from dcfl.tensors import sha256, snapshot
from tests import toys
from tests.engines.runs import TRAINING, Flat, federation
from tests.flower.in_process import Clock, InProcessGrid, engine_at, in_process
from tests.flower.test_codec import HOSTILE, MEGABYTE, Change, entry, filled, other_tensors, record

SECRET = "patient-4711-at-/home/alice/scans"
VICTIM = 1  # the client that misbehaves
Tamper = Callable[[Message], Message | None]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock().rule(monkeypatch)


@pytest.fixture(autouse=True)
def _quiet(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Clients print their tracebacks."""
    yield
    capsys.readouterr()


def flat() -> Flat:
    torch.manual_seed(0)
    return Flat()


def ready(
    folder: Path,
    tamper: Tamper = lambda reply: reply,
    method: Method | None = None,
    prepare: Callable[[InProcessGrid], None] = lambda grid: None,
    rounds: int = 2,
    **settings: Any,
) -> Run:
    def prepared(grid: InProcessGrid) -> None:
        grid.tamper = tamper
        prepare(grid)

    experiment = Experiment(
        method=method or METHODS["fedavg"](),
        training=TRAINING,
        federation=FederationSettings(rounds, 1.0, **settings),
        engine=EngineSettings("flower-simulation", workers=1, device="cpu"),
        output=OutputSettings(str(folder), report=False),
    )
    return Run(experiment, federation((3, 10, 5, 8)), flat(), in_process(2, prepared))


def trained(folder: Path, tamper: Tamper = lambda reply: reply, **more: Any) -> Run:
    run = ready(folder, tamper, **more)
    for _ in run.rounds():
        pass
    return run


def weights_of(run: Run) -> str:
    return str(run.result().summary["weights_sha256"])


def rows_of(folder: Path) -> tuple[list[RoundRow], list[ClientRow]]:
    """Rounds and clients, as strict JSON; all sampled clients are accounted for."""

    def no_json(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for name in ("rounds.jsonl", "clients.jsonl"):
        for line in (folder / name).read_text().splitlines():
            json.loads(line, parse_constant=no_json)
    recorded = RecordedRun.open(folder)
    for row in recorded.rounds:
        assert row["sampled"] == sum(row[key] for key in ("ok", "failed", "late", "rejected"))
    return recorded.rounds, recorded.clients


def task_of(reply: Message) -> Task:
    return codec.read_task(reply.content)


def is_training(reply: Message, client: int | None = None, rounds: Iterable[int] = ()) -> bool:
    if reply.metadata.message_type != "train":
        return False
    task = task_of(reply)
    return client in (None, task.client) and (not rounds or task.round in rounds)


def changed(change: Change, client: int = VICTIM) -> Tamper:
    def tamper(reply: Message) -> Message:
        if is_training(reply, client) and "failed" not in reply.content:
            change(reply.content)
        return reply

    return tamper


def fail(content: RecordDict) -> None:
    """As an honest client does."""
    task = codec.read_task(content)
    for key in list(content):
        del content[key]
    content.update(codec.failure_content(task, ClientFailure(task.client, "")))


@pytest.fixture(scope="module")
def without_the_victim(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The weights of a run in which the victim's rounds simply fail."""
    known: dict[str, str] = {}

    def look(method: str) -> str:
        if method not in known:
            folder = tmp_path_factory.mktemp("reference")
            known[method] = weights_of(trained(folder, changed(fail), method=METHODS[method]()))
        return known[method]

    return look


def check_rejected_alone(folder: Path) -> None:
    rounds, clients = rows_of(folder)
    assert [row["rejected"] for row in rounds] == [1] * len(rounds)
    for row in clients:
        assert row["outcome"] == ("rejected" if row["client"] == VICTIM else "ok")
        assert bool(row["reason"]) == (row["client"] == VICTIM)
        assert len(row["reason"]) <= codec.LONGEST_REASON


# Hostile replies in whole rounds

# Of each reader and check one; test_codec.py has all.
IN_ROUNDS = ["no task", "kept is a text", "another client", "a thousand metrics", "truncated data"]
IN_ROUNDS += ["NaN", "a row that broadcasts", "NaN in the upload", "a failure of an unknown code"]


@pytest.mark.parametrize("case", IN_ROUNDS)
def test_a_hostile_client_is_rejected_alone(
    case: str, tmp_path: Path, without_the_victim: Callable[[str], str]
) -> None:
    run = trained(tmp_path, changed(HOSTILE[case]))
    check_rejected_alone(tmp_path)
    assert weights_of(run) == without_the_victim("fedavg")


def upload(**tensors: torch.Tensor | None) -> Change:
    """Other tensors beside the weights; None: missing."""

    def change(found: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            found.pop(name, None)
            if tensor is not None:
                found[name] = tensor

    return other_tensors(change, "upload")


UPLOADS = {
    ("dcfl-pw", "empty"): other_tensors(dict.clear, "upload"),
    ("dcfl-pw", "no sums"): upload(sums=None),
    ("dcfl-pw", "no counts"): upload(counts=None),
    ("dcfl-pw", "another shape"): upload(sums=torch.zeros(7, 3)),
    ("dcfl-pw", "sums that broadcast"): upload(sums=torch.ones(())),
    ("dcfl-pw", "counts that broadcast"): upload(counts=torch.ones(1, dtype=torch.int64)),
    ("dcfl-pw", "a class too many"): upload(counts=torch.ones(5, dtype=torch.int64)),
    ("dcfl-pw", "negative counts"): upload(counts=torch.full((4,), -3)),
    ("dcfl-pw", "counts that are floats"): upload(counts=torch.full((4,), 0.5)),
    ("dcfl-pw", "complex sums"): upload(sums=torch.full((4, 64), 1j)),
    ("dcfl-pw", "float8 sums"): upload(sums=torch.ones(4, 64).to(torch.float8_e4m3fn)),
    ("scaffold", "empty"): other_tensors(dict.clear, "upload"),
    ("scaffold", "one missing"): other_tensors(dict.popitem, "upload"),
    ("scaffold", "one too many"): upload(more=torch.zeros(1)),
    ("scaffold", "another shape"): upload(**{"classifier.bias": torch.zeros(9)}),
    ("scaffold", "one that broadcasts"): upload(**{"classifier.bias": torch.zeros(())}),
    ("scaffold", "another dtype"): upload(**{"classifier.bias": torch.zeros(4).double()}),
    ("scaffold", "integers"): upload(**{"classifier.bias": torch.ones(4, dtype=torch.int64)}),
    ("fedavg", "a name of a megabyte"): upload(**{MEGABYTE: torch.tensor(torch.nan)}),
}


@pytest.mark.parametrize(("method", "case"), UPLOADS)
def test_a_hostile_upload_is_rejected_alone(
    method: str, case: str, tmp_path: Path, without_the_victim: Callable[[str], str]
) -> None:
    run = trained(tmp_path, changed(UPLOADS[method, case]), method=METHODS[method]())
    check_rejected_alone(tmp_path)
    assert weights_of(run) == without_the_victim(method)


def test_weights_that_are_only_just_finite_are_rejected(
    tmp_path: Path, without_the_victim: Callable[[str], str]
) -> None:
    run = trained(tmp_path, changed(filled(-3e38)))
    check_rejected_alone(tmp_path)
    assert weights_of(run) == without_the_victim("fedavg")


def test_huge_metrics_and_counts_leave_rows_that_are_json(tmp_path: Path) -> None:
    def boast(content: RecordDict) -> None:
        entry("counts", "num-steps", 2**40 - 1)(content)
        content["metrics"] = MetricRecord({"loss": 1e308})

    trained(tmp_path, changed(boast))
    rounds, _ = rows_of(tmp_path)
    assert [row["ok"] + row["rejected"] for row in rounds] == [4, 4]


def test_all_bytes_of_a_hostile_reply_are_counted(tmp_path: Path) -> None:
    trained(tmp_path, changed(record("more", codec.encode({"noise": torch.zeros(10**5)}))))
    up = {row["client"]: row["bytes_up"] for row in rows_of(tmp_path)[1]}
    assert up[VICTIM] > 4 * 10**5 > up[0] > 0


def test_a_reply_that_comes_twice_counts_once(tmp_path: Path) -> None:
    def prepare(grid: InProcessGrid) -> None:
        pull = grid.pull_messages
        seen: list[Message] = []

        def again(message_ids: Iterable[str]) -> list[Message]:
            wanted = [*message_ids]
            seen.extend(pull(wanted))
            mine = [reply for reply in seen if reply.metadata.reply_to_message_id in wanted]
            return [*mine, *reversed(seen)]

        grid.pull_messages = again  # type: ignore[method-assign]

    twice = trained(tmp_path / "twice", prepare=prepare)
    assert [row["ok"] for row in rows_of(tmp_path / "twice")[0]] == [4, 4]
    assert weights_of(twice) == weights_of(trained(tmp_path / "once"))


def test_a_reply_that_flower_cannot_read_costs_its_own_client(
    tmp_path: Path, without_the_victim: Callable[[str], str]
) -> None:
    """Flower unpacks the replies that it pulls one after the other; when a client's cannot be
    unpacked it raises, and the others of that pull are gone from the SuperLink."""

    def prepare(grid: InProcessGrid) -> None:
        pull = grid.pull_messages

        def unpack(message_ids: Iterable[str]) -> Iterable[Message]:
            found = pull(message_ids)
            if any(is_training(reply, VICTIM) for reply in found):
                raise AttributeError("'NoneType' object has no attribute 'endswith'")
            return found

        grid.pull_messages = unpack  # type: ignore[method-assign]

    run = trained(tmp_path, prepare=prepare, deadline=10.0)
    rounds, clients = rows_of(tmp_path)
    assert [row["ok"] for row in rounds] == [3, 3]
    assert {row["client"] for row in clients if row["outcome"] != "ok"} == {VICTIM}
    assert weights_of(run) == without_the_victim("fedavg")


# Too few replies


def test_a_round_without_replies_leaves_the_model_alone(tmp_path: Path) -> None:
    def tamper(reply: Message) -> Message:
        if is_training(reply, rounds=[2, 3]):
            fail(reply.content)
        return reply

    gaps = trained(tmp_path / "gaps", tamper, rounds=3)
    rounds, _ = rows_of(tmp_path / "gaps")
    assert [(row["ok"], row["failed"]) for row in rounds] == [(4, 0), (0, 4), (0, 4)]
    assert weights_of(gaps) == weights_of(trained(tmp_path / "one", rounds=1))
    assert rounds[0]["accuracy"] == rounds[2]["accuracy"]


def test_so_does_one_with_fewer_replies_than_asked_for(tmp_path: Path) -> None:
    def tamper(reply: Message) -> Message:
        if is_training(reply, VICTIM, [2]):
            HOSTILE["NaN"](reply.content)
        return reply

    few = trained(tmp_path / "few", tamper, minimum_replies=4)
    assert [row["ok"] for row in rows_of(tmp_path / "few")[0]] == [4, 3]
    assert weights_of(few) == weights_of(trained(tmp_path / "one", rounds=1))
    enough = trained(tmp_path / "enough", tamper, minimum_replies=3)
    assert weights_of(enough) != weights_of(few)


@pytest.mark.parametrize(("minimum", "clients"), [(1, None), (4, VICTIM)])
def test_three_such_rounds_end_the_run(minimum: int, clients: int | None, tmp_path: Path) -> None:
    def tamper(reply: Message) -> Message:
        if is_training(reply, clients, range(2, 100)):
            HOSTILE["NaN"](reply.content)
        return reply

    run = ready(tmp_path, tamper, rounds=10, minimum_replies=minimum)
    with pytest.raises(TooFewClients, match="3 rounds"):
        list(run.rounds())
    assert [row["round"] for row in rows_of(tmp_path)[0]] == [1, 2, 3, 4]


# Deadlines


def held_back(client: int, round: int, until: int) -> Tamper:
    """The reply of one round is there only when another round's replies are."""
    latest = 0

    def tamper(reply: Message) -> Message | None:
        nonlocal latest
        if is_training(reply):
            latest = max(latest, task_of(reply).round)
        return None if is_training(reply, client, [round]) and latest < until else reply

    return tamper


def test_a_late_reply_is_dropped_and_the_run_goes_on(tmp_path: Path, clock: Clock) -> None:
    began = clock.now
    late = trained(tmp_path / "late", held_back(VICTIM, 2, until=3), rounds=4, deadline=10.0)
    rounds, clients = rows_of(tmp_path / "late")
    assert [row["late"] for row in rounds] == [0, 1, 0, 0]
    assert [row["ok"] for row in rounds] == [4, 3, 4, 4]
    assert sum(row["dropped"] for row in rounds) == 1
    (row,) = [row for row in clients if row["outcome"] == "late"]
    assert (row["round"], row["client"], row["bytes_up"]) == (2, VICTIM, 0)
    assert row["reason"] == "no reply within 10 s"
    assert row["bytes_down"] > 0
    summary = late.result().summary
    assert (summary["late"], summary["dropped"], summary["ok"]) == (1, 1, 15)
    assert 10 <= clock.now - began < 12

    def tamper(reply: Message) -> Message:
        if is_training(reply, VICTIM, [2]):
            fail(reply.content)
        return reply

    assert weights_of(late) == weights_of(trained(tmp_path / "failed", tamper, rounds=4))


def test_without_any_reply_every_client_is_late_at_one_deadline(
    tmp_path: Path, clock: Clock
) -> None:
    def tamper(reply: Message) -> Message | None:
        return None if is_training(reply) else reply

    began = clock.now
    run = ready(tmp_path, tamper, rounds=10, deadline=10.0)
    with pytest.raises(TooFewClients):
        list(run.rounds())
    rounds, _ = rows_of(tmp_path)
    assert [row["late"] for row in rounds[:3]] == [4, 4, 4]
    assert clock.now - began < 45


def error_instead(reply: Message, code: int) -> Message:
    """From the SuperLink, as for a node that died."""
    metadata = copy.copy(reply.metadata)
    metadata.__dict__["_src_node_id"] = 1
    return make_message(metadata, error=Error(code, f"Traceback ... {SECRET}"))


@pytest.mark.parametrize("code", [0, 8, 4711, -1])
def test_flowers_errors_are_accounted_for_by_message(
    code: int, tmp_path: Path, without_the_victim: Callable[[str], str]
) -> None:
    def tamper(reply: Message) -> Message:
        return error_instead(reply, code) if is_training(reply, VICTIM) else reply

    run = trained(tmp_path, tamper)
    rounds, clients = rows_of(tmp_path)
    assert [(row["ok"], row["failed"]) for row in rounds] == [(3, 1), (3, 1)]
    lost = [row for row in clients if row["outcome"] == "failed"]
    assert [row["client"] for row in lost] == [VICTIM, VICTIM]
    assert all(row["reason"] for row in lost)
    assert not leaks(tmp_path)
    assert weights_of(run) == without_the_victim("fedavg")


@pytest.mark.parametrize(
    ("until", "error", "dropped"),
    [(3, False, [0, 0, 0, 1]), (3, True, [0, 0, 0, 0]), (100, False, [0, 0, 0, 0])],
    ids=["a reply", "an error", "nothing"],
)
def test_a_dropped_reply_counts_in_the_round_at_whose_beginning_it_is_found(
    until: int, error: bool, dropped: list[int], tmp_path: Path
) -> None:
    hold = held_back(VICTIM, 1, until)

    def tamper(reply: Message) -> Message | None:
        found = hold(reply)
        late = found and error and is_training(reply, VICTIM, [1])
        return error_instead(reply, 5) if late else found

    trained(tmp_path, tamper, rounds=4, deadline=5.0)
    rounds, _ = rows_of(tmp_path)
    assert [row["late"] for row in rounds] == [1, 0, 0, 0]
    assert [row["dropped"] for row in rounds] == dropped


def test_a_reply_to_a_message_that_was_never_sent_is_ignored(tmp_path: Path) -> None:
    """The id in a reply is what the node wrote there."""

    def tamper(reply: Message) -> Message:
        if is_training(reply, VICTIM):
            reply.metadata.__dict__["_reply_to_message_id"] = "f" * 64
        return reply

    trained(tmp_path, tamper, deadline=5.0)
    rounds, _ = rows_of(tmp_path)
    assert [(row["ok"], row["failed"]) for row in rounds] == [(3, 1), (3, 1)]


Push = Callable[[list[str]], Any]


@pytest.mark.parametrize(
    ("push", "ok"),
    [
        (lambda ids: [*ids[:-1], None], 3),
        (lambda ids: [*ids[:-1], ""], 3),
        (lambda ids: ids[:-1], 3),
        (lambda ids: [], 0),
        (lambda ids: None, 0),
        (lambda ids: iter(ids), 4),
    ],
    ids=["None in it", "no text", "shorter", "empty", "None", "iterator"],
)
def test_messages_that_were_not_taken_fail(push: Push, ok: int, tmp_path: Path) -> None:
    def prepare(grid: InProcessGrid) -> None:
        original = grid.push_messages

        def some(messages: Iterable[Message]) -> Any:
            messages = list(messages)
            ids = list(original(messages))
            second = [codec.read_task(message.content).round == 2 for message in messages]
            return push(ids) if any(second) else ids

        grid.push_messages = some  # type: ignore[method-assign]

    trained(tmp_path, prepare=prepare)
    rounds, clients = rows_of(tmp_path)
    assert [(row["ok"], row["failed"]) for row in rounds] == [(4, 0), (ok, 4 - ok)]
    lost = [row for row in clients if row["outcome"] == "failed"]
    assert all(row["bytes_up"] == row["bytes_down"] == 0 for row in lost)


# Sites that judge the model on test images of their own


Claims = dict[int, tuple[int, int]]  # partition-id and num-partitions, by node id
TWO: Claims = {100: (0, 2), 101: (1, 2)}


def boast(images: int) -> Change:
    """So many test images, and all of them right."""

    def change(content: RecordDict) -> None:
        for key in ("right", "totals"):
            entry("score", key, [images, 0, 0, 0])(content)

    return change


def judged(
    folder: Path,
    nodes: Claims,
    change: Change = lambda content: None,
    silent: tuple[int, ...] = (),
    declared: list[int] | None = None,
) -> GridEngine:
    """After an evaluation in which the second node's score was changed; `declared`: the images that
    it said it has when it joined."""
    data = toys.federated(4)
    blind = FederatedData(
        replace(data.dataset, test=Images(*(part[:0] for part in images(data)))), data.partition
    )
    site = Site(toys.runner("fedavg", flat(), data), NodeMemories(folder), 1)
    grid = InProcessGrid(client_app(lambda context, task: site), 0)
    for node, (own, count) in nodes.items():
        said = {"partition-id": own, "num-partitions": count}
        grid.contexts[node] = Context(1, node, said, RecordDict(), {})

    def tamper(reply: Message) -> Message | None:
        if reply.metadata.message_type == "evaluate":
            if reply.metadata.src_node_id in silent:
                return None
            if reply.metadata.src_node_id == 101:
                change(reply.content)
        elif declared and reply.metadata.src_node_id == 101:
            entry("node", "images", declared)(reply.content)
        return reply

    grid.tamper = tamper
    roster = Roster(next(iter(nodes.values()))[1])
    engine = engine_at(grid, toys.runner("fedavg", flat(), blind), roster, deadline=10.0)
    engine.begin_evaluation(snapshot(flat()))
    return engine


def images(data: FederatedData) -> tuple[torch.Tensor, torch.Tensor]:
    return data.dataset.test.pixels, data.dataset.test.labels


def test_sites_with_the_same_images_judge_as_one_does(tmp_path: Path) -> None:
    alone = score_model(flat(), toys.dataset())
    found = judged(tmp_path, TWO).end_evaluation()
    assert found.accuracy == alone.accuracy
    assert found.loss == pytest.approx(alone.loss)
    assert torch.equal(found.by_class, alone.by_class)


@pytest.mark.parametrize(
    ("change", "silent"),
    [
        (entry("score", "right", [1000, 0, 0, 0]), ()),
        (boast(10**4), ()),
        (entry("task", "client", 0), ()),
        (lambda content: content.clear(), ()),
        (lambda content: None, (101,)),
    ],
    ids=["too good", "more than before", "another's", "empty", "silence"],
)
def test_a_site_whose_score_cannot_be_has_no_say(
    change: Change, silent: tuple[int, ...], tmp_path: Path
) -> None:
    engine = judged(tmp_path, TWO, change, silent)
    alone = score_model(flat(), toys.dataset())
    assert engine.end_evaluation().loss == alone.loss
    assert engine.sites.own_accuracies.isfinite().tolist() == [True, False, False, False]


def test_a_site_that_lies_about_its_images_from_the_start_weighs_as_the_middle_one(
    tmp_path: Path,
) -> None:
    """Four sites with the same images; one says that it has 2**39 and gets all of them right."""
    four = {100 + own: (own, 4) for own in range(4)}
    honest = score_model(flat(), toys.dataset()).accuracy
    engine = judged(tmp_path, four, boast(2**39 - 1), declared=[2**39 - 1, 0, 0, 0])
    found = engine.end_evaluation()
    assert found.accuracy == pytest.approx((3 * honest + 100) / 4)
    images = len(toys.dataset().test)
    assert engine.sites.site_scores() == tuple(
        SiteScore(site, honest, images, 1.0)
        if site != 1
        else SiteScore(1, 100.0, 2**39 - 1, pytest.approx(images / (2**39 - 1)))
        for site in range(4)
    )


def test_a_site_with_other_images_than_it_said_has_no_say_and_a_person_is_told(
    tmp_path: Path,
) -> None:
    engine = judged(tmp_path, TWO, boast(10**4))
    engine.end_evaluation()
    (notice,) = engine.take_notices()
    assert notice.startswith("site 1 has no say: a score of other test images")
    assert not engine.take_notices()  # once


COUNTS = st.lists(st.integers(0, 2**40 - 1), min_size=1, max_size=12).filter(any)


@given(COUNTS)
def test_no_site_decides_alone(counts: list[int]) -> None:
    """Whatever each of them counts: the share of the largest, and sites that are alike."""
    say = [weight * count for weight, count in zip(image_weights(counts), counts, strict=True)]
    judges = sum(count > 0 for count in counts)
    assert max(say) / sum(say) <= 1 / (judges // 2 + 1) + 1e-9
    middle = statistics.median_low(count for count in counts if count)
    assert say == pytest.approx([min(count, middle) for count in counts])


@given(st.integers(1, 2**40 - 1), st.integers(1, 10), st.data())
def test_sites_alike_are_pooled(count: int, sites: int, data: st.DataObject) -> None:
    right = data.draw(st.lists(st.integers(0, count), min_size=sites, max_size=sites))
    scores = [SiteResult(own, Score([hits], [1.0]), [count]) for own, hits in enumerate(right)]
    found = combine(scores)
    assert found is not None
    assert found.accuracy == pytest.approx(100 * sum(right) / (count * sites))
    assert found.loss == pytest.approx(1 / count)


def test_without_any_score_there_is_no_evaluation(tmp_path: Path) -> None:
    engine = judged(tmp_path, TWO, silent=(100, 101))
    assert engine.end_evaluation() is None
    assert engine.sites.absent == (0, 1, 2, 3)


def test_a_node_beyond_the_clients_does_not_end_the_run(tmp_path: Path) -> None:
    engine = judged(tmp_path, {100: (0, 6), 105: (5, 6)})
    assert engine.end_evaluation().accuracy == score_model(flat(), toys.dataset()).accuracy


# What a client says of its exceptions


KINDS = {kind.__name__: kind for kind in (RuntimeError, MemoryError, ConfigError, Diverged)}


@dataclass(frozen=True)
class Telling(Method):
    """Raises something whose text nobody else may see."""

    kind: str = "RuntimeError"

    def objective(self, client: Client) -> Objective:
        if client.id == VICTIM:
            raise KINDS[self.kind](SECRET)
        return super().objective(client)


def leaks(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("kind", KINDS)
def test_an_exceptions_text_stays_on_the_client_in_its_log(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replies: list[bytes] = []

    def tamper(reply: Message) -> Message:
        replies.append(message_to_proto(reply).SerializeToString())
        return reply

    trained(tmp_path, tamper, method=Telling(kind))
    assert SECRET in capsys.readouterr().err
    assert len(replies) == 2 + 2 * 4
    assert not any(SECRET.encode() in reply for reply in replies)
    assert not leaks(tmp_path)
    _, clients = rows_of(tmp_path)
    lost = [row for row in clients if row["outcome"] == "failed"]
    assert {row["client"] for row in lost} == {VICTIM}
    assert {row["reason"] for row in lost} <= set(CODES.values())


def test_unreadable_tasks_are_answered_without_their_story(tmp_path: Path) -> None:
    site = Site(toys.runner("fedavg", flat(), toys.federated(4)), NodeMemories(tmp_path), 1)
    app = client_app(lambda context, task: site)
    context = Context(1, 100, {"partition-id": 0, "num-partitions": 2}, RecordDict(), {})
    strange = codec.message(Task("a" * 32, 1, 0))
    entry("task", "run", SECRET * 100)(strange)
    for content, code in (
        (RecordDict(), "error"),
        (codec.message(Task("a" * 32, 1, 0)), "error"),
        (codec.message(Task("a" * 32, 1, 10**9)), "error"),
        (strange, "error"),
        (RecordDict({"task": ConfigRecord({"run": SECRET * 100})}), "version"),
    ):
        reply = app(Message(content, dst_node_id=100, message_type="train"), context)
        assert codec.read_task(reply.content).run in ("", "a" * 32)
        assert reply.content["failed"] == ConfigRecord({"code": code, "partition-id": 0})


def test_a_run_that_cannot_begin_leaves_no_trace(tmp_path: Path) -> None:
    def nobody(grid: InProcessGrid) -> None:
        grid.contexts.clear()

    run = ready(tmp_path / "new", prepare=nobody)
    before = sha256(snapshot(run.prepared.model))
    with pytest.raises(NetworkError, match="no node has come up"):
        list(run.rounds())
    assert sha256(snapshot(run.prepared.model)) == before
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with pytest.raises(NetworkError):
        list(ready(tmp_path / "old", prepare=nobody).rounds())
    list(ready(tmp_path / "old").rounds())  # not refused
    assert RecordedRun.open(tmp_path / "old").summary


def test_a_run_that_cannot_go_on_keeps_its_folder(tmp_path: Path) -> None:
    def nobody(session: Session) -> Any:
        raise NetworkError("no node has come up")

    run = ready(tmp_path)
    next(run.rounds())
    kept = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(NetworkError):
        list(Run.resume(tmp_path, run.prepared.data.dataset, flat(), connect=nobody).rounds())
    assert {path.name for path in tmp_path.iterdir()} >= kept >= {"config.toml", "rounds.jsonl"}


# All scores of the final model, by sites


def scored(
    folder: Path, change: Change = lambda content: None, declared: list[int] | None = None
) -> GridEngine:
    """Two sites, the second of which says something else of the final model."""
    engine = judged(folder, TWO, declared=declared)
    engine.end_evaluation()
    grid = engine._messenger._grid
    assert isinstance(grid, InProcessGrid)

    def tamper(reply: Message) -> Message:
        if (reply.metadata.message_type, reply.metadata.src_node_id) == ("evaluate.scores", 101):
            change(reply.content)
        return reply

    grid.tamper = tamper
    return engine


def other_scores(count: int, classes: int = 4) -> Change:
    labels = torch.arange(count) % classes

    def change(content: RecordDict) -> None:
        logits = torch.nn.functional.one_hot(labels, classes).float()
        content["scores"] = codec.encode(Scores.of(logits, labels).tensors)

    return change


def test_sites_count_what_one_would_have_counted(tmp_path: Path) -> None:
    data = toys.dataset()
    alone = scores_of(flat(), data.test, data.preparation, data.classes)
    found = scored(tmp_path).sites.own_scores(snapshot(flat()))
    assert [one.name for one in found] == ["site 0", "site 1"]
    assert all(one.scores == alone for one in found)
    assert by_sites("remote", data.class_names, found, "").scores == alone + alone


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (other_scores(40), "a score of other test images"),
        (other_scores(20, classes=5), "not of 4 classes"),
        (lambda content: content.pop("scores"), "tensors"),
        (lambda content: content.clear(), "without its task"),
    ],
    ids=["more", "classes", "nothing", "empty"],
)
def test_scores_that_cannot_be_are_left_out_and_a_person_is_told(
    change: Change, reason: str, tmp_path: Path
) -> None:
    engine = scored(tmp_path, change)
    (one,) = engine.sites.own_scores(snapshot(flat()))
    assert one.name == "site 0"
    (notice,) = engine.take_notices()
    assert notice.startswith("site 1 has no say: ")
    assert reason in notice


def test_a_site_that_boasts_weighs_as_the_middle_one_in_the_scores_too(tmp_path: Path) -> None:
    """It says when it joins, and when it is asked, that it has a hundred times the images."""
    engine = scored(tmp_path, other_scores(2000), declared=[500] * 4)
    honest, boaster = engine.sites.own_scores(snapshot(flat()))
    assert [honest.weight, boaster.weight] == pytest.approx([1.0, 20 / 2000])
    summed = by_sites("remote", tuple("abcd"), [honest, boaster], "").scores
    assert summed.accuracy == pytest.approx((honest.scores.accuracy + 100) / 2)
    assert summed.images == pytest.approx(40)
