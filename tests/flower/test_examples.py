"""How many images a client may count: what it has or, at a real site, what that said at first."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from dcfl.data.identical import read_digests
from dcfl.flower.client_app import Site, client_app
from dcfl.flower.node_memories import NodeMemories
from dcfl.flower.roster import Roster
from dcfl.messages import Broadcast, ClientUpdate
from dcfl.tensors import snapshot
from tests import toys
from tests.command_line import Call
from tests.engines.runs import Flat
from tests.flower.in_process import InProcessGrid, engine_at
from tests.flower.sites_in_process import Sites, pictures, remote_experiment

BY_SIZE = {"server__aggregation": "fednova"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    disk = tmp_path_factory.mktemp("disk")
    return [pictures(disk / name, 10, 10) for name in ("north", "south", "west")]


@pytest.fixture
def trial(folders: list[Path], tmp_path: Path) -> Sites:
    return Sites(folders, [{"audit": str(tmp_path / f"{place}.jsonl")} for place in range(3)])


def claiming(trial: Sites, change: Callable[[Message], None]) -> Sites:
    """Site 1 says other numbers than its app."""

    def tamper(reply: Message) -> Message:
        if reply.metadata.src_node_id == 101:
            change(reply)
        return reply

    trial._seen = tamper  # type: ignore[method-assign]
    return trial


def counts(examples: int) -> Callable[[Message], None]:
    def change(reply: Message) -> None:
        if "counts" in reply.content:
            steps = -(-examples // 8)  # as the server works them out
            reply.content["counts"].update({"num-examples": examples, "num-steps": steps})

    return change


@pytest.mark.parametrize("aggregation", ["samples", "fednova"])
def test_a_site_counts_no_more_images_than_it_said(
    aggregation: str, trial: Sites, tmp_path: Path
) -> None:
    experiment = remote_experiment(
        tmp_path / "out", data__clients=3, server__aggregation=aggregation
    )
    recorded = claiming(trial, counts(2**39)).train(experiment)
    reasons = [row.reason for row in recorded.clients if row.client == 1]
    assert [(row.ok, row.rejected) for row in recorded.rounds] == [(2, 1)] * 2
    expected = "num_examples is 549,755,813,888, and it has 16, as it said when it joined"
    assert reasons == [expected] * 2
    assert recorded.rounds[0].notices == ()


def test_one_that_said_more_than_all_others_together_is_named(trial: Sites, tmp_path: Path) -> None:
    def change(reply: Message) -> None:
        if "node" in reply.content:
            reply.content["node"]["examples"] = 2**39
        counts(2**39)(reply)

    experiment = remote_experiment(tmp_path / "out", data__clients=3, **BY_SIZE)
    recorded = claiming(trial, change).train(experiment)
    (notice,) = recorded.rounds[0].notices
    assert notice.startswith("site 1 says it has 549,755,813,888 of the 549,755,813,920 training")
    quiet = claiming(trial, change).train(remote_experiment(tmp_path / "other", data__clients=3))
    assert quiet.rounds[0].notices == ()  # nothing is weighted by it


@pytest.mark.parametrize(
    ("withheld", "changes"),
    [
        ("sizes", {}),
        ("class-counts", BY_SIZE),
        ("", BY_SIZE),
        ("", {"privacy__clip": 1.0, "privacy__noise": 1.0}),
        ("", {"privacy__clip": 1.0, "privacy__noise": 1.0, "privacy__where": "server"}),
        ("", {"data__holdout": 0.3, **BY_SIZE}),
    ],
)
def test_honest_sites_are_never_rejected(
    withheld: str, changes: dict[str, Any], trial: Sites, tmp_path: Path
) -> None:
    if withheld:
        trial.rules = [{**own, "withhold": withheld} for own in trial.rules[:2]] + [trial.rules[2]]
    recorded = trial.train(remote_experiment(tmp_path / "out", data__clients=3, **changes))
    assert [row.ok for row in recorded.rounds] == [3, 3]


def test_of_images_that_the_server_knows_nobody_counts_more(tmp_path: Path) -> None:
    runner = toys.runner("fedavg", Flat(), toys.federated(4))
    site = Site(runner, NodeMemories(tmp_path), 1)
    grid = InProcessGrid(client_app(lambda context, task: site), 2)
    own = [int(size) for size in runner.data.sizes]

    def boast(reply: Message) -> Message:
        if "counts" in reply.content and reply.content["task"]["client"] == 1:
            reply.content["counts"]["num-examples"] = own[1] + 1
        return reply

    grid.tamper = boast
    engine = engine_at(grid, runner, Roster(2))
    replies = [*engine.run(Broadcast(1, snapshot(runner.model), {}), range(4))]
    assert [isinstance(reply, ClientUpdate) for reply in replies] == [True, False, True, True]
    assert replies[1].reason == f"num_examples is {own[1] + 1}, and it has {own[1]}"  # type: ignore[union-attr]


def test_a_joined_model_says_which_pictures_its_site_trained_on(
    trial: Sites, folders: list[Path], tmp_path: Path, cli: Call
) -> None:
    """The digests stay at the site until its owner joins them with the model."""
    changes: dict[str, Any] = {"federation__personal": ["classifier"], "data__holdout": 0.3}
    recorded = trial.train(remote_experiment(tmp_path / "out", data__clients=3, **changes))
    north = recorded.folder.parent / "at-north"
    shutil.copytree(recorded.folder, north)
    assert read_digests(north) is None
    kept = Path(trial.node(0)["memories"])
    assert cli("flower", "personal", north, kept)[0] == 0
    digests = read_digests(north)
    assert digests is not None
    (trained,) = {row.num_examples for row in recorded.clients if row.client == 0}
    assert len(digests) == trained < 16  # without those that it held out
    out = cli("evaluate", north, folders[0], "--client", 0)[1]
    assert f"the model was trained on {trained} of" in out
