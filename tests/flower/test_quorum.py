"""A site that leaves neither changes the score of a run nor ends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from dcfl.cli.cards import run_card
from dcfl.errors import Interrupted, TooFewClients
from dcfl.flower import codec
from dcfl.flower.site_failures import Refusal
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run
from tests.flower.in_process import Clock, InProcessGrid
from tests.flower.sites_in_process import Sites, pictures, remote_experiment

SOUTH = 101
Train = Callable[..., tuple[RecordedRun, "Leaving"]]


class Leaving(Sites):
    """The south leaves while a round trains, for so many seconds of the test's clock."""

    def __init__(self, folders: list[Path], clock: Clock, away: dict[int, float]) -> None:
        super().__init__(folders)
        self.clock, self.away, self.back = clock, dict(away), 0.0
        self.trained: list[int] = []  # the round of each reply

    def grid(self, grid: InProcessGrid) -> None:
        known, push, south = grid.get_nodes, grid.push_messages, grid.contexts.pop(SOUTH)

        def get_nodes() -> Any:
            if self.clock.now >= self.back:
                grid.contexts[SOUTH] = south
            return known()

        def push_messages(messages: Any) -> Any:
            ids = push(messages := list(messages))
            for message in messages:
                train = message.metadata.message_type == "train"
                round = codec.read_task(message.content).round
                if train and message.metadata.dst_node_id == SOUTH and round in self.away:
                    self.back = self.clock.now + self.away.pop(round)
                    del grid.contexts[SOUTH], grid.waiting[message.metadata.message_id]
            return ids

        grid.get_nodes, grid.push_messages = get_nodes, push_messages  # type: ignore[method-assign]

    def _seen(self, reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            self.trained.append(codec.read_task(reply.content).round)
        return super()._seen(reply)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock().rule(monkeypatch)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [pictures(tmp_path / "north", 20, 10), pictures(tmp_path / "south", 10, 40)]


@pytest.fixture
def train(tmp_path: Path, folders: list[Path], clock: Clock) -> Train:
    def trained(away: dict[int, float], **changes: Any) -> tuple[RecordedRun, Leaving]:
        there = Leaving(folders, clock, away)
        usual = {"federation__deadline": 20.0, "federation__rounds": 4}
        out = tmp_path / ("left" if away else "whole")
        return there.train(remote_experiment(out, **{**usual, **changes})), there

    return trained


def test_a_round_that_a_site_does_not_score_counts_neither_for_max_nor_for_ema(
    train: Train,
) -> None:
    """The south leaves in round 2, which the north trains and scores alone."""
    whole, _ = train({})
    run, _ = train({2: 15.0})
    first, second, *rest = run.rounds
    assert first.accuracy == whole.rounds[0].accuracy
    assert second.accuracy is None
    assert second.absent == (1,)
    assert [site.client for site in second.sites] == [0]
    assert (second.max_accuracy, second.ema_accuracy) == (first.max_accuracy, first.ema_accuracy)
    (notice,) = second.notices
    assert notice.startswith("without the test images of site 1 a round has no accuracy")
    assert all(row.accuracy is not None and not row.absent for row in rest)
    assert rest[-1].max_accuracy == max(row.accuracy for row in run.rounds if row.accuracy)


def test_a_quorum_is_awaited_and_costs_no_round(train: Train) -> None:
    """Both are needed, and one is away for twenty minutes: the same model, all rounds used."""
    needed = {"federation__minimum_replies": 2}
    whole, _ = train({}, **needed)
    run, there = train({2: 1200.0}, **needed)
    assert run.summary.weights_sha256 == whole.summary.weights_sha256
    assert [row.used for row in run.rounds] == [2] * 4
    assert any("the run waited 19.7 min" in notice for notice in run.rounds[1].notices)
    # The north trained once for nothing, and not while the south was known to be away.
    assert there.trained == [1, 1, 2, 2, 2, 3, 3, 4, 4]


def test_patience_ends_and_says_for_whom_it_was(train: Train) -> None:
    with pytest.raises(TooFewClients) as caught:
        train({2: 10**5}, federation__minimum_replies=2, federation__quorum_minutes=10)
    said = str(caught.value)
    assert "too few sites for 10 minutes (federation.quorum_minutes): site 1: " in said
    assert "goes on later" in said


def test_a_resumed_run_is_scored_by_the_sites_that_began_it(
    folders: list[Path], clock: Clock, tmp_path: Path
) -> None:
    there = Leaving(folders, clock, {})
    run = Run(remote_experiment(tmp_path / "out", output__report=True), connect=there._connect)
    rounds = run.rounds()
    assert next(rounds).accuracy is not None
    run.stop()
    with pytest.raises(Interrupted):
        next(rounds)
    there.back = float("inf")
    (row,) = Run.resume(tmp_path / "out", connect=there._connect).rounds()
    assert (row.accuracy, row.absent) == (None, (1,))
    recorded = RecordedRun.open(tmp_path / "out")
    card = run_card(recorded.summary, recorded.rounds, "SuperNodes", recorded.folder)
    assert f"accuracy ?, MAX {recorded.rounds[0].accuracy:.2f} %, " in card
    assert "without the test images of site 1" in (tmp_path / "out" / "report.html").read_text()


def test_sites_that_refuse_are_not_awaited(
    folders: list[Path], tmp_path: Path, clock: Clock
) -> None:
    """A decision stays: the others do not train for it again and again."""
    sites = Sites(folders, [{}, {"rounds": 1}])
    began = clock.now
    with pytest.raises(TooFewClients, match="for 3 rounds") as caught:
        sites.train(
            remote_experiment(tmp_path / "out", federation__minimum_replies=2, federation__rounds=6)
        )
    assert Refusal.ENOUGH_ANSWERED.value.split("{")[0] in str(caught.value)
    assert clock.now - began < 60
