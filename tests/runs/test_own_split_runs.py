"""Whole runs on a split of one's own: the file's content belongs to what makes a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dcfl.comparisons.cells import refuse_another_run
from dcfl.comparisons.groups import group_runs
from dcfl.data import DataSettings
from dcfl.errors import ConfigError, RunFolderError, SiteRefusal
from dcfl.experiment import Experiment
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run
from dcfl.trained.evaluate import evaluation_of
from tests.command_line import Call
from tests.engines.runs import bits
from tests.reliability.victims import interrupted
from tests.runs.small_runs import finished, quick_experiment

MIXED = [list(range(start, 400, 4)) for start in range(4)]
SORTED = [list(range(start, start + 100)) for start in range(0, 400, 100)]


def split_file(path: Path, parts: list[list[int]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(parts))
    return path


def experiment(folder: Path, split: Path, **settings: Any) -> Experiment:
    own = {
        "method.name": "fedavg",
        "data.partition": f"file:{split}",
        "federation.rounds": 2,
    }
    return quick_experiment(folder, **own, **settings)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("alone")
    return finished(Run(experiment(folder / "run", split_file(folder / "split.json", MIXED))))


def test_a_run_has_the_clients_of_the_file(alone: Run) -> None:
    recorded = RecordedRun.open(alone.folder)
    assert recorded.config["data"]["clients"] == 4
    assert recorded.config["data"]["partition"] == f"file:{alone.folder.parent / 'split.json'}"
    assert recorded.partition_counts.sum(axis=1).tolist() == [100] * 4
    record = evaluation_of(alone.folder, None, "last", clients=True)
    assert len(record.clients) == 4


def test_a_changed_file_does_not_pass_for_the_same_split(alone: Run, tmp_path: Path) -> None:
    split = split_file(tmp_path / "split.json", MIXED)
    interrupted(Run(experiment(tmp_path / "run", split)), 1)
    split_file(split, SORTED)
    with pytest.raises(ConfigError, match=r"begun with something else.*split was"):
        Run.resume(tmp_path / "run")
    split_file(split, MIXED)
    assert bits(finished(Run.resume(tmp_path / "run"))) == bits(alone)
    split_file(split, SORTED)
    with pytest.raises(ConfigError, match="split differently now"):
        evaluation_of(tmp_path / "run", None, "last", clients=True)


def test_runs_are_alike_by_the_content_wherever_it_lies(alone: Run, tmp_path: Path) -> None:
    moved = split_file(tmp_path / "elsewhere" / "other.json", MIXED)
    changed = split_file(tmp_path / "split.json", SORTED)
    same = finished(Run(experiment(tmp_path / "same", moved)))
    other = finished(Run(experiment(tmp_path / "other", changed)))
    runs = [RecordedRun.open(run.folder) for run in (alone, same, other)]
    groups = group_runs(runs)
    assert [len(group.runs) for group in groups] == [2, 1]
    assert all("data.partition=file (" in group.label for group in groups)
    refuse_another_run(experiment(same.folder, moved), runs[0])
    with pytest.raises(RunFolderError, match=r"holds another run: data\.partition"):
        refuse_another_run(experiment(same.folder, changed), runs[0])


def test_a_moved_file_is_gone_on_with(alone: Run, tmp_path: Path) -> None:
    split = split_file(tmp_path / "here" / "split.json", MIXED)
    interrupted(Run(experiment(tmp_path / "run", split)), 1)
    shutil.move(split, tmp_path / "there.json")
    with pytest.raises(ConfigError, match="no such file"):
        Run.resume(tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("here/split.json", "there.json"))
    assert bits(finished(Run.resume(tmp_path / "run", trust=True))) == bits(alone)


def test_a_number_of_clients_that_the_file_does_not_have(tmp_path: Path) -> None:
    split = split_file(tmp_path / "split.json", MIXED)
    with pytest.warns(UserWarning, match="data.clients = 9 is not used: the split's file has 4"):
        Run(experiment(tmp_path / "run", split, **{"data.clients": 9}))


def test_a_run_does_not_choose_among_a_sites_files() -> None:
    from dcfl.flower.node_config import NodeConfig

    settings = DataSettings(partition="file:/etc/passwd.json")
    for data in ("", "folder:/scans"):
        with pytest.raises(SiteRefusal, match="does not choose among its files"):
            NodeConfig(0, 2, data=data).load(settings)


def test_a_saved_split_is_the_split(cli: Call, tmp_path: Path) -> None:
    part = ("data.clients=5", "data.train_images=600")
    code, out, _ = cli("partition", *part, "--save", "split.json")
    assert (code, "saved    split.json; data.partition=file:split.json uses it" in out) == (0, True)
    assert "without an owner" not in out
    whole = json.loads(cli("partition", *part, "--json")[1])
    again = json.loads(cli("partition", *part[1:], "data.partition=file:split.json", "--json")[1])
    assert again == whole
    code, _, err = cli("partition", "--save", "split.json")
    assert (code, "there is such a file already" in err) == (2, True)
    for name, why in (("split.txt", "must end in .json or .csv"), ("a/b.csv", "no folder a")):
        code, _, err = cli("partition", "--save", name)
        assert (code, why in err) == (2, True)
    assert {path.name for path in tmp_path.iterdir()} == {"split.json"}
