"""What makes two runs the same: one table, and everything that goes by it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dcfl
from dcfl.comparisons.cells import difference_to, refuse_another_run
from dcfl.comparisons.groups import group_runs
from dcfl.comparisons.pairs import Spread
from dcfl.comparisons.standing import Standing
from dcfl.config import apply, as_tables, to_toml
from dcfl.data import DataSettings, FederatedData, load_dataset
from dcfl.errors import ConfigError, RunFolderError
from dcfl.experiment import Experiment
from dcfl.report.comparison_section import csv_text
from dcfl.runs.folder import RecordedRun
from dcfl.runs.identity import fingerprint, kind_of, own_code
from dcfl.runs.start import require_resumable
from tests.engines.runs import federation
from tests.report.folders import as_recorded, write_run


def test_the_kinds_that_matter_most() -> None:
    kinds = {
        "result": "engine.precision engine.compile engine.threads federation.deadline faults.crash "
        "attack.kind privacy.noise method.mu server.optimizer server.momentum",
        "place": "data.path engine.name engine.workers engine.device "
        "engine.workers_per_device engine.memory_budget "
        "output.dir output.checkpoint",
        "seed": "data.seed federation.seed",
    }
    for kind, keys in kinds.items():
        assert {kind_of(key) for key in keys.split()} == {kind}


OTHER: dict[str, list[tuple[str, Any]]] = {
    "result": [
        ("engine.precision", "bfloat16"),
        ("engine.compile", True),
        ("engine.threads", 2),
        ("federation.deadline", 5.0),
        ("faults.crash", 0.1),
        ("attack.kind", "sign-flip"),
        ("privacy.clip", 1.0),
        ("server.optimizer", "fedavgm"),
        ("method.mu", 3.0),
        ("model.head", "mlp256"),
    ],
    "place": [
        ("data.path", "/elsewhere"),
        ("engine.workers", 3),
        ("engine.device", "cpu"),
        ("engine.workers_per_device", 2),
        ("engine.memory_budget", 7),
        ("output.checkpoint", 4),
        ("engine.name", "flower-simulation"),
    ],
    "seed": [("federation.seed", 3), ("data.seed", 3)],
}
CASES = [(kind, key, value) for kind, pairs in OTHER.items() for key, value in pairs]
EACH = pytest.mark.parametrize(("kind", "key", "value"), CASES, ids=[key for _, key, _ in CASES])


# With a seed for the split, so that the federation's changes nothing else.
BASE = apply(Experiment(), {"data": {"seed": 0}})


def changed(experiment: Experiment, key: str, value: Any) -> Experiment:
    section, _, name = key.partition(".")
    return apply(experiment, {section: {name: value}})


def recorded(folder: Path, experiment: Experiment) -> RecordedRun:
    write_run(folder)
    (folder / "config.toml").write_text(as_recorded(experiment))
    return RecordedRun.open(folder)


@EACH
def test_runs_share_a_row_unless_their_numbers_may_differ(
    kind: str, key: str, value: Any, tmp_path: Path
) -> None:
    runs = [
        recorded(tmp_path / "a", BASE),
        recorded(tmp_path / "b", changed(BASE, key, value)),
    ]
    groups = group_runs(runs)
    if kind == "result":
        shown = key.removeprefix("method.")
        assert len(groups) == 2
        assert f"{shown}={str(value).removesuffix('.0')}" in groups[1].label.split()
    else:
        (group,) = groups
        assert group.seeds == (2 if kind == "seed" else 1)


@EACH
def test_a_cell_is_shared_unless_its_numbers_may_differ(
    kind: str, key: str, value: Any, tmp_path: Path
) -> None:
    run = recorded(tmp_path / "run", changed(BASE, key, value))
    if kind == "place":
        refuse_another_run(BASE, run)
    else:
        with pytest.raises(RunFolderError, match=rf"holds another run: {key} was "):
            refuse_another_run(BASE, run)


@pytest.mark.parametrize("dataset", ["digits", "folder:pictures"])
@pytest.mark.parametrize(
    ("key", "usual", "other"),
    [("data.clients", 20, 30), ("federation.participation", 0.25, 0.5)],
)
def test_an_open_number_is_no_excuse_for_another(
    key: str, usual: float, other: float, dataset: str, tmp_path: Path
) -> None:
    """With public data "auto" is known; images of one's own decide it."""
    asked = changed(changed(BASE, "data.dataset", dataset), key, "auto")
    assert not difference_to(asked, recorded(tmp_path / "a", changed(asked, key, usual)))
    different = difference_to(asked, recorded(tmp_path / "b", changed(asked, key, other)))
    assert bool(different) == (dataset == "digits")


def begun_with(experiment: Experiment, device: str = "cpu") -> dict[str, Any]:
    dataset = federation((5, 5, 5))
    assert dataset.partition is not None
    data, code = FederatedData(dataset, dataset.partition), own_code(experiment.method, None)
    return {**fingerprint(experiment, data, code, torch.device("cpu")), "device": device}


@EACH
def test_a_run_goes_on_unless_its_bits_would_differ(kind: str, key: str, value: Any) -> None:
    before, now = begun_with(BASE), begun_with(changed(BASE, key, value))
    if kind == "place":
        require_resumable(before, now, ())
        return
    with pytest.raises(ConfigError, match=rf"{key} was "):
        require_resumable(before, now, ())
    new = now.keys() - before.keys()  # another optimiser brings fields of its own
    require_resumable(before, now, [key, *new])


def test_a_run_goes_on_on_the_kind_of_device_that_it_was_begun_on() -> None:
    with pytest.raises(ConfigError, match="device was 'cpu' and is 'some GPU'"):
        require_resumable(begun_with(Experiment()), begun_with(Experiment(), "some GPU"), ())
    require_resumable(begun_with(Experiment()), begun_with(Experiment(), "some GPU"), ["device"])


def test_a_checkpoint_that_lacks_a_key_has_its_default() -> None:
    now = begun_with(Experiment())
    before = {
        key: value
        for key, value in now.items()
        if key not in ("model.head", "method.align") and not key.startswith("attack.")
    }
    require_resumable({**before, "engine.device": "auto"}, now, ())
    with pytest.raises(ConfigError, match=r"model\.head was 'none' and is 'mlp256'"):
        require_resumable(before, {**now, "model.head": "mlp256"}, ())


def test_a_run_that_lacks_a_key_is_compared_by_its_default(tmp_path: Path) -> None:
    """Without [engine], [faults] and the like, and a method's field."""
    numbers = {"data": {"seed": 0, "clients": 20}, "federation": {"participation": 0.25}}
    usual = apply(Experiment(), numbers)
    tables = as_tables(usual)
    old = {name: tables[name] for name in ("data", "method", "federation")}
    old["method"] = {key: value for key, value in old["method"].items() if key != "temperature"}
    runs = [recorded(tmp_path / "new", usual), recorded(tmp_path / "old", usual)]
    (tmp_path / "old" / "config.toml").write_text(to_toml(old))
    runs[1] = RecordedRun.open(tmp_path / "old")
    (group,) = group_runs(runs)
    assert group.seeds == 1
    refuse_another_run(usual, runs[1])
    with pytest.raises(RunFolderError, match=r"method\.temperature was 0\.5 and would be 0\.4"):
        refuse_another_run(changed(usual, "method.temperature", 0.4), runs[1])


def test_a_run_counts_once_however_often_its_folder_was_copied(tmp_path: Path) -> None:
    """The spread of a run and its copy would be 0, as if two seeds agreed."""
    run = write_run(tmp_path / "run", [30.0, 60.0])
    copies = [
        RecordedRun.open(Path(shutil.copytree(run.folder, tmp_path / name)))
        for name in ("copy", "again")
    ]
    unlike = write_run(tmp_path / "unlike", [30.0, 61.0])  # as another processor may end
    other = write_run(tmp_path / "other", [30.0, 60.0], seed=1)
    (group,) = group_runs([run, *copies])
    assert (group.counted, group.seeds, group.copies) == ((run,), 1, True)
    assert group.spread("ema_accuracy") == Spread(33.0, None, 1)
    row = csv_text(Standing([group])).splitlines()[1].split(",")
    assert row[:3] == ["fedavg", "", "1"]
    (group,) = group_runs([copies[0], unlike, other, run])
    assert group.counted == (copies[0], unlike, other)
    assert group.seeds == 2
    (half,) = group_runs([write_run(tmp_path / name, [1.0], finished=False) for name in "ab"])
    assert len(half.counted) == 1


def test_a_method_that_is_not_known_here_is_compared_by_what_was_written(tmp_path: Path) -> None:
    runs = [
        write_run(
            tmp_path / f"{seed}-{mu}", method="of-mine", seed=seed, settings={"method.mu": mu}
        )
        for seed in (0, 1)
        for mu in (1.0, 2.0)
    ]
    assert [group.label for group in group_runs(runs)] == ["of-mine mu=1", "of-mine mu=2"]


def test_pictures_of_ones_own_are_known_by_what_is_in_them(tmp_path: Path) -> None:
    """Where that was recorded; by where they lie where it was not."""

    def run(name: str, where: str, content: str) -> RecordedRun:
        made = write_run(tmp_path / name, settings={"data.dataset": f"folder:{where}/pictures"})
        if content:
            (made.folder / "environment.json").write_text(f'{{"data": "{content}"}}')
        return RecordedRun.open(made.folder)

    moved = [run("a", "/here", "1f"), run("b", "/there", "1f")]
    assert len(group_runs(moved)) == 1
    labels = [group.label for group in group_runs([*moved, run("c", "/here", "2e")])]
    assert labels == [f"fedavg data.dataset=folder:pictures ({c})" for c in ("1f", "2e")]
    assert len(group_runs([run("d", "/here", ""), run("e", "/there", "")])) == 2
    # What is held out, and so what is left to train on, is drawn by the seed.
    held_out = [run("f", "/here", "3d"), run("g", "/here", "4c")]
    for one in held_out:
        text = one.config_text.replace("[data]", "[data]\nholdout = 0.1")
        (one.folder / "config.toml").write_text(text)
    assert len(group_runs([RecordedRun.open(one.folder) for one in held_out])) == 1


def test_a_run_says_what_is_in_pictures_of_ones_own(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (80, 8, 8, 3), np.uint8)
    parts = {f"{part}_{kind}": v for part, rows in (("train", images[:40]), ("test", images[40:]))
             for kind, v in (("images", rows), ("labels", np.arange(40) % 2))}  # fmt: skip
    np.savez(tmp_path / "own.npz", **parts)
    words = {"federation.rounds": 1, "data.clients": 2, "data.dataset": f"npz:{tmp_path}/own.npz"}
    result = dcfl.run(out=tmp_path / "run", **words)
    content = RecordedRun.open(result.folder).environment["data"]
    assert load_dataset(DataSettings(words["data.dataset"])).fingerprint.startswith(content)
    assert len(content) == 16


def test_pictures_that_were_moved_are_gone_on_with() -> None:
    def own(where: str) -> Experiment:
        return changed(Experiment(), "data.dataset", where)

    require_resumable(begun_with(own("folder:/here/a")), begun_with(own("folder:/there/b")), ())
    with pytest.raises(ConfigError, match=r"data\.dataset was 'folder' and is 'npz'"):
        require_resumable(begun_with(own("folder:/here/a")), begun_with(own("npz:/here/a.npz")), ())
    other = {**begun_with(own("folder:/there/b")), "data": "something else"}
    with pytest.raises(ConfigError, match="data was "):
        require_resumable(begun_with(own("folder:/here/a")), other, ())
