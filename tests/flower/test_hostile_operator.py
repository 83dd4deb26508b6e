"""A real SuperLink with TLS whose operator asks dcfl's own app at two sites whatever it likes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dcfl.cli.main import app as command_line
from dcfl.flower.deploy.deployment import connection, down, up
from dcfl.flower.deploy.submission import experiment_text, write_bundle
from dcfl.flower.deploy.superlink import run_status, submit
from tests.flower.sites_in_process import pictures, remote_experiment
from tests.flower.test_sites import wait_for

pytestmark = pytest.mark.flower

# Five runs that it invents, another name of the same message, and models that always give one
# answer: all at once.
SERVER = """
import json, time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp import ServerApp

from dcfl import config
from dcfl.flower import codec
from dcfl.flower.codec import Task
from dcfl.models import build_model

app = ServerApp()

@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.1)
    text = context.run_config["experiment"].replace("5e-324", "1.0")  # which it would not read
    experiment = config.from_toml(text)
    weights = build_model(experiment.model, 3, 8, 2, 0).state_dict()
    models = [{**weights, "classifier.weight": torch.zeros(2, 128), "classifier.bias": bias}
              for bias in 9 * torch.eye(2)]
    asked = [("query.whoami", "a", 0), *(("train", run, 0) for run in "abcde"),
             ("train.default", "a", 0), ("train", "a", 7),
             *((kind, run, 0) for run in "ab"
               for kind in ("evaluate", "evaluate.default", "evaluate.scores"))]
    messages = []
    for number, (kind, run, client) in enumerate(asked):
        records = {"weights": codec.encode(models[number % 2]), "shared": codec.encode({})}
        content = codec.message(Task(run * 32, 1, client, ticket="t"), **records)
        messages += [Message(content, dst_node_id=node, message_type=kind) for node in nodes]
    replies = {node: [] for node in nodes}
    for reply in grid.send_and_receive(messages, timeout=200):
        replies[reply.metadata.src_node_id].append(
            ["error"] if reply.has_error() else told(reply.content))
    Path(context.run_config["resume"]).write_text(json.dumps(list(replies.values())))

def told(content):
    rest = {name: {key: repr(value) for key, value in record.items()}
            for name, record in content.items() if name not in ("task", "weights", "record")}
    place = next((rest[name].pop("partition-id") for name in ("node", "failed")
                  if "partition-id" in rest.get(name, {})), "")
    return [place, "weights" in content, json.dumps(rest, sort_keys=True)]
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("hostile")
    own = [pictures(folder / "north", 10, 20), pictures(folder / "south", 45, 5)]
    rules = 'rounds=1 withhold="sizes"'
    up(folder / "home", 2, True, [f'data="folder:{site}" {rules}' for site in own])
    yield folder / "home"
    down(folder / "home")


def answers(home: Path, folder: Path, clip: str = "0.0") -> list[list[Any]]:
    """Of each site, by its place: what it told. `clip`: in the config that the sites read."""
    bundle, said = write_bundle(folder / "app"), folder / "said.json"
    (bundle / "hostile.py").write_text(SERVER)
    project = bundle / "pyproject.toml"
    text = project.read_text()
    project.write_text(text.replace("dcfl.flower.deploy.server_app:app", "hostile:app"))
    link = connection(home)
    text = experiment_text(remote_experiment(folder))
    assert text.count("clip = 0.0") == 1
    config = {"experiment": text.replace("clip = 0.0", f"clip = {clip}"), "resume": str(said)}
    run = submit(link, bundle, config)
    wait_for(lambda: run_status(link, run).startswith("finished"), 240)
    found: list[list[Any]] = json.loads(said.read_text())
    return sorted(found, key=lambda site: max(place for place, *_ in site))


def refusals(site: list[Any]) -> list[str]:
    failures = (json.loads(rest).get("failed", {}) for _, _, rest in site)
    return sorted(failed["reason"] for failed in failures if failed)


def test_an_operator_gets_one_round_and_nothing_else(home: Path, tmp_path: Path) -> None:
    north, south = answers(home, tmp_path / "first")
    assert sum(trained for _, trained, _ in north) == 1
    withheld, enough = (
        "'it withholds scores'",
        "'it has answered train as often as it allows: 1 in all'",
    )
    assert refusals(north) == sorted([withheld] * 6 + [enough] * 6)
    assert sorted(rest for *_, rest in north) == sorted(rest for *_, rest in south)

    logs = [home / "memories" / f"site-{site}" / "audit.jsonl" for site in (0, 1)]
    whole = CliRunner().invoke(command_line, ["flower", "audit", str(home)])
    assert whole.exit_code == 0, whole.output
    assert whole.output.count("for an auditor to note: 14 lines") == 2
    # The site's record of its one round is removed, and with it the limit would be.
    lines = logs[0].read_bytes().splitlines(keepends=True)
    kept = next(number for number, line in enumerate(lines) if b'"answered"' in line)
    logs[0].write_bytes(b"".join(lines[:kept]))
    shown = CliRunner().invoke(command_line, ["flower", "audit", str(home)])
    assert "a line was changed or removed" in str(shown.exception)
    north, south = answers(home, tmp_path / "second")
    assert not any(trained for _, trained, _ in [*north, *south])
    changed = "'what it has answered cannot be counted: its record was changed'"
    assert refusals(north) == sorted([withheld] * 6 + [changed] * 7)
    assert refusals(south) == sorted([withheld] * 6 + [enough] * 7)
    # A clip at which noise would be zero: the sites read the config themselves.
    for site in answers(home, tmp_path / "third", "5e-324"):
        failures = [json.loads(rest)["failed"]["code"] for *_, rest in site]
        assert failures.count("'version'") == 1
        assert {*failures} == {"'version'", "'refused'"}
