import errno
import gc
import re
import shutil
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import dcfl
from dcfl.client import Batch, Client
from dcfl.config import experiment_from
from dcfl.data import Dataset, DataSettings, load_dataset
from dcfl.errors import ConfigError, RunFolderError, RunMissing, StorageError, TooFewClients
from dcfl.evaluation import ema, score_model
from dcfl.methods import Method, Objective
from dcfl.models import FeatureModel, Output
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run
from dcfl.tensors import sha256
from dcfl.testing.toys import toy_model
from tests import toys
from tests.engines.runs import Flat, federation

SHORT = {"federation": {"rounds": 2, "participation": 0.1}}


def finished(folder: Path, **tables: dict[str, object]) -> Run:
    # No checkpoints: on a busy machine the clock would ask for one.
    output = {"dir": str(folder), "checkpoint": 0}
    run = Run(experiment_from(None, {**SHORT, **tables, "output": output}))
    for _ in run.rounds():
        pass
    return run


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dcfl.runs.run.Result:
    folder = tmp_path_factory.mktemp("runs") / "one"
    return dcfl.run(out=folder, **SHORT, **{"output.checkpoint": 0})


def test_the_run_folder_is_complete(result: dcfl.runs.run.Result) -> None:
    # A machine that takes longer than ten seconds has time for checkpoints, and the best stays.
    assert {path.name for path in result.folder.iterdir()} == {
        "config.toml", "environment.json", "rounds.jsonl", "clients.jsonl", "partition.npz",
        "model.safetensors", "summary.json", "report.html", ".lock", "trained_on.digests",
    }  # fmt: skip


def test_rows_have_what_was_promised(result: dcfl.runs.run.Result) -> None:
    recorded = RecordedRun.open(result.folder)
    promised = {
        "round", "accuracy", "max_accuracy", "ema_accuracy", "loss", "seconds", "bytes_up",
        "bytes_down", "sampled", "ok", "failed", "rejected",
    }  # fmt: skip
    assert recorded.rounds == result.rounds
    assert [row["round"] for row in recorded.rounds] == [1, 2]
    assert all(promised <= row.to_json().keys() for row in recorded.rounds)
    accuracies = [row["accuracy"] for row in recorded.rounds]
    assert recorded.rounds[-1]["max_accuracy"] == max(accuracies)
    assert recorded.rounds[-1]["ema_accuracy"] == pytest.approx(ema(accuracies))
    assert {(row["round"], row["outcome"]) for row in recorded.clients} == {(1, "ok"), (2, "ok")}
    assert len(recorded.clients) == 4
    assert recorded.summary == result.summary
    assert {"method", "dataset", "rounds", "max_accuracy", "ema_accuracy", "seconds",
            "weights_sha256"} <= recorded.summary.to_json().keys()  # fmt: skip


def test_it_prints_four_lines(result: dcfl.runs.run.Result) -> None:
    summary = result.summary
    first, scores, clients, folder = str(result).splitlines()
    assert first == f"{summary.method} on digits, 20 clients, 2 rounds"
    assert scores == f"accuracy {summary.final_accuracy:.2f} %, " + (
        f"MAX {summary.max_accuracy:.2f} %, EMA {summary.ema_accuracy:.2f} %"
    )
    assert clients == f"clients  {summary.worst_decile_accuracy:.2f} % for the worst tenth"
    assert folder.endswith(str(result.folder))


def test_bytes_are_those_of_the_tensors(result: dcfl.runs.run.Result) -> None:
    """The weights go both ways; DCFL-PW adds 10 x 128 sums and counts up, prototypes and a mask
    down from the second round on."""
    weights = sum(tensor.nbytes for tensor in result.weights.values())
    up = weights + 10 * 128 * 4 + 10 * 8
    down = [weights, weights + 10 * 128 * 4 + 10]
    assert [row["bytes_up"] for row in result.rounds] == [2 * up, 2 * up]
    assert [row["bytes_down"] for row in result.rounds] == [2 * d for d in down]


def test_the_model_can_be_taken_away(result: dcfl.runs.run.Result) -> None:
    model = dcfl.load_model(result.folder)
    digits = load_dataset(DataSettings())
    accuracy, *_ = score_model(model, digits)
    assert accuracy == result.rounds[-1]["accuracy"]
    assert sha256(model.state_dict()) == result.summary["weights_sha256"]
    assert sha256(load_file(result.folder / "model.safetensors")) == sha256(result.weights)
    assert model.class_names == digits.class_names
    assert model.preparation is not None
    inputs = model.preparation.clean(digits.test.pixels)
    assert torch.equal(inputs, digits.preparation.clean(digits.test.pixels))


def test_the_written_config_repeats_the_run(result: dcfl.runs.run.Result, tmp_path: Path) -> None:
    again = dcfl.run(result.folder / "config.toml", out=tmp_path / "again")
    assert again.summary["weights_sha256"] == result.summary["weights_sha256"]
    assert RecordedRun.open(tmp_path / "again").config["data"]["crop"] == 1  # resolved, not "auto"


def test_another_seed_gives_other_weights(result: dcfl.runs.run.Result, tmp_path: Path) -> None:
    federation = {**SHORT["federation"], "seed": 1}
    other = dcfl.run(out=tmp_path / "other", federation=federation)
    assert other.summary["weights_sha256"] != result.summary["weights_sha256"]
    assert other.summary["partition_sha256"] != result.summary["partition_sha256"]


def test_the_global_generator_and_thread_count_play_no_part(
    result: dcfl.runs.run.Result, tmp_path: Path
) -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(99)
    torch.set_num_threads(2)
    try:
        run = finished(tmp_path / "again")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert run.result().summary["weights_sha256"] == result.summary["weights_sha256"]


def test_methods_see_the_same_split_schedule_and_start(tmp_path: Path) -> None:
    """With one step of nothing but cross-entropy in round one, they even do the same."""
    runs = [finished(tmp_path / name, method={"name": name}) for name in ("fedavg", "dcfl-pw")]
    one, other = (RecordedRun.open(run.folder) for run in runs)
    assert [row["client"] for row in one.clients] == [row["client"] for row in other.clients]
    assert one.rounds[0]["accuracy"] == other.rounds[0]["accuracy"]
    assert one.rounds[1]["loss"] != other.rounds[1]["loss"]


def test_it_learns(tmp_path: Path) -> None:
    run = finished(
        tmp_path / "run", federation={"rounds": 12, "participation": 0.5}, data={"alpha": 1.0}
    )
    assert run.result().rounds[-1]["accuracy"] > 80


def test_a_used_folder_is_refused_and_left_alone(result: dcfl.runs.run.Result) -> None:
    before = sorted(path.stat().st_mtime_ns for path in result.folder.iterdir())
    with pytest.raises(RunFolderError, match="not empty"):
        dcfl.run(out=result.folder, **SHORT)
    assert sorted(path.stat().st_mtime_ns for path in result.folder.iterdir()) == before


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunFolderError, match="not a folder"):
            dcfl.run(out=target, **SHORT)


def test_a_refused_experiment_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        dcfl.run(out=tmp_path / "x", data={"dataset": "nope"})
    assert not (tmp_path / "x").exists()


def test_divergence_costs_the_client_and_then_the_run(tmp_path: Path) -> None:
    with pytest.raises(TooFewClients, match=r"3 rounds .*no longer finite"):
        finished(
            tmp_path / "run",
            federation={"rounds": 9, "participation": 0.1},
            training={"lr": 1e20, "max_grad_norm": 0},
        )
    rows = RecordedRun.open(tmp_path / "run").rounds
    assert [(row["ok"], row["failed"], row["sampled"]) for row in rows] == [(0, 2, 2)] * 3
    assert len({row["accuracy"] for row in rows}) == 1  # the model was left alone


def test_a_method_and_a_model_of_ones_own(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Smooth(Method):
        smoothing: float = 0.1

        def objective(self, client: Client) -> Objective:
            def loss(batch: Batch) -> Tensor:
                logits = client.model(batch.images).logits
                return F.cross_entropy(logits, batch.labels, label_smoothing=self.smoothing)

            return loss

    class Linear(FeatureModel):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = nn.Linear(64, 10)

        def forward(self, images: Tensor) -> Output:
            pixels = images.flatten(1)
            return Output(self.classifier(pixels), pixels, (pixels,))

    result = dcfl.run(out=tmp_path / "own", method=Smooth(), model=Linear(), **SHORT)
    assert result.summary["method"] == "smooth"
    assert result.weights["classifier.weight"].shape == (10, 64)
    assert RecordedRun.open(result.folder).config["method"] == {"name": "smooth", "smoothing": 0.1}
    with pytest.raises(RunFolderError, match="a module from Python"):
        dcfl.load_model(result.folder)


def test_a_model_of_ones_own_is_copied_and_looked_at_first(tmp_path: Path) -> None:
    module = toy_model()
    dataset = toys.dataset()
    data = {"clients": 4, "min_size": 5}
    short = {"rounds": 1, "participation": 0.5}
    hashes = {
        dcfl.run(
            out=tmp_path / name, model=module, dataset=dataset, data=data, federation=short
        ).summary["weights_sha256"]
        for name in ("a", "b")
    }
    assert len(hashes) == 1
    config = RecordedRun.open(tmp_path / "a").config
    assert Path(config["data"]["dataset"].removeprefix("npz:")).parent == tmp_path / "a"

    class Plain(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)[:, :4]

    with pytest.raises(ConfigError, match=r"must return dcfl.models.Output .* not Tensor"):
        dcfl.run(out=tmp_path / "c", model=Plain(), dataset=dataset, data=data)  # type: ignore[arg-type]
    assert not (tmp_path / "c").exists()


def test_losing_every_client_is_not_a_success(tmp_path: Path) -> None:
    with pytest.raises(TooFewClients, match="no round had enough usable replies"):
        finished(tmp_path / "run", training={"lr": 1e30, "max_grad_norm": 0})
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"data": {"crop": 8}}, "leave nothing of images of 8 pixels"),
        ({"data": {"crop": 0}, "method": {"name": "dcfl-sw", "positives": "view"}}, "second view"),
    ],
)
def test_augmentations_that_make_no_sense_are_refused(tables: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Run(experiment_from(None, tables))


def test_a_full_disk_is_a_storage_error_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        Path(args[1]).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dcfl.system.tensor_files.save_file", full)
    with pytest.raises(StorageError, match=r"model.safetensors: cannot be written \(No space left"):
        finished(tmp_path / "run")
    assert not [path for path in (tmp_path / "run").iterdir() if "safetensors" in path.name]


def test_group_norm_resnet_and_head_run_too(tmp_path: Path) -> None:
    run = finished(
        tmp_path / "run",
        model={"name": "resnet18", "norm": "group", "head": "mlp256"},
        federation={"rounds": 1, "participation": 0.05},
        training={"epochs": 1},
    )
    assert np.isfinite(run.result().rounds[0]["loss"])
    assert dcfl.load_model(run.folder)(torch.zeros(1, 1, 8, 8)).embedding.shape == (1, 256)


def test_reading_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        RecordedRun.open(tmp_path)
    with pytest.raises(FileNotFoundError, match="has the run finished"):
        dcfl.load_model(tmp_path)
    with pytest.raises(RunMissing, match="no such folder"):
        dcfl.load_model(tmp_path / "nowhere")
    (tmp_path / "model.safetensors").write_bytes(b"nonsense" * 10)
    with pytest.raises(RunFolderError, match="damaged"):
        dcfl.load_model(tmp_path)


def test_half_a_row_is_not_there_yet_and_damage_is_said(
    result: dcfl.runs.run.Result, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(result.folder, folder)
    with (folder / "rounds.jsonl").open("a") as stream:
        stream.write('{"round": 3, "accur')
    assert len(RecordedRun.open(folder).rounds) == 2
    for name, read in (
        ("rounds.jsonl", lambda run: run.rounds),
        ("summary.json", lambda run: run.summary),
        ("partition.npz", lambda run: run.partition_counts),
    ):
        (folder / name).write_text("nonsense\n")
        with pytest.raises(RunFolderError, match=f"{name} is damaged"):
            read(RecordedRun.open(folder))


def many_sites(sites: int = 100) -> Dataset:
    """Two images for each of so many sites."""
    return federation((2,) * sites)


def test_few_of_many_sites_are_sampled_whatever_the_usual_number_of_clients(tmp_path: Path) -> None:
    """data.clients is not known before the data is: its default plays no part."""
    settings = {"federation.participation": 0.02, "federation.rounds": 1, "method": "fedavg"}
    result = dcfl.run(out=tmp_path / "run", dataset=many_sites(), model=Flat(), **settings)
    assert [row["sampled"] for row in result.rounds] == [2]


@pytest.mark.parametrize(
    ("sites", "wrong", "message"),
    [
        (100, {"federation.participation": 0.004}, "0.004 of 100 clients .* at least 0.01"),
        (4, {"federation.participation": 0.1}, "0.1 of 4 clients .* at least 0.25"),
        (4, {"federation.minimum_replies": 5}, "5 of a round's 4 clients"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_by_the_clients_that_there_are(
    sites: int, wrong: dict[str, float], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        dcfl.run(out=tmp_path / "run", dataset=many_sites(sites), model=Flat(), **wrong)
    assert not (tmp_path / "run").exists()


def test_max_and_ema_of_the_accuracy_on_the_clients_own_mixes(
    result: dcfl.runs.run.Result,
) -> None:
    means = [row["client_accuracy"] for row in result.rounds]
    for number, row in enumerate(result.rounds, start=1):
        assert row["max_client_accuracy"] == max(means[:number])
        assert row["ema_client_accuracy"] == ema(means[:number])
    for name in ("max_client_accuracy", "ema_client_accuracy"):
        assert result.summary[name] == result.rounds[-1][name]
        assert RecordedRun.open(result.folder).rounds[-1][name] == result.summary[name]


@pytest.mark.parametrize("rule", ["krum", "multi-krum"])
def test_krum_with_too_few_clients_a_round_is_refused_with_the_numbers(
    rule: str, tmp_path: Path
) -> None:
    """The default run: 5 of 20 clients, of which two may be attackers."""
    tables: dict[str, Any] = {"server": {"aggregation": rule}, "output": {"dir": str(tmp_path)}}
    with pytest.raises(ConfigError) as refusal:
        Run(experiment_from(None, tables))
    said = str(refusal.value)
    assert said.startswith(f'server.aggregation = "{rule}" with 5 of 20 clients a round')
    assert "server.byzantine = 0.2 lets 2 be attackers, needs 7 replies" in said
    advised = re.search(r"federation.participation = ([\d.]+) \((\d+) clients\)", said)
    assert advised is not None
    assert advised[2] == "11"
    for participation, byzantine in ((float(advised[1]), 0.2), (0.25, 0.05)):
        tables["federation"] = {"participation": participation}
        tables["server"]["byzantine"] = byzantine
        folder = tmp_path / f"{participation}"
        Run(experiment_from(None, {**tables, "output": {"dir": str(folder)}}))
    tables["server"]["byzantine"] = 0.49
    with pytest.raises(ConfigError, match=r"replies: set a smaller server\.byzantine or another"):
        Run(experiment_from(None, tables))


@pytest.mark.parametrize(
    ("rule", "asked", "used"),
    [
        *(("uniform", "auto", "mean"), ("samples", "auto", "mean"), ("median", "auto", "median")),
        *(("norm-clipping", "auto", "median"), ("median", "mean", "mean")),
        ("uniform", "median", "median"),
    ],
)
def test_the_config_says_how_prototypes_are_merged(
    rule: str, asked: str, used: str, tmp_path: Path
) -> None:
    run = Run(
        experiment_from(
            None,
            {
                "server": {"aggregation": rule},
                "method": {"name": "dcfl-pw", "prototype_merge": asked},
                "output": {"dir": str(tmp_path / "run")},
            },
        )
    )
    assert RecordedRun.open(run.folder).config["method"]["prototype_merge"] == used


def test_no_model_of_an_earlier_round_is_kept(tmp_path: Path) -> None:
    """Each holds as much memory as the network."""
    settings = {**SHORT, "engine.workers": 1, "output.report": False}
    run = Run(dcfl.load_experiment(**settings, **{"output.dir": str(tmp_path / "run")}))
    before = weakref.ref(run._position.state)
    for _ in run.rounds():
        gc.collect()
        assert before() is None
        before = weakref.ref(run._position.state)
