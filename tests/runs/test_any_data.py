"""Series, tables and texts from memory: every verb works on them, wherever the folder is moved."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dcfl
from dcfl.data import Dataset
from dcfl.engines.engine import Engine, Session
from dcfl.errors import ConfigError, Interrupted, RunFolderError
from dcfl.models import ModelSettings, build_model
from dcfl.trained.evaluate import evaluation_of
from tests.command_line import Call, calls

RNG = np.random.default_rng(0)
LABELS = np.arange(120) % 3
QUICK: dict[str, Any] = {
    "data.clients": 3,
    "data.min_size": 2,
    "data.alpha": 10.0,
    "training.lr": 0.1,
    "training.batch_size": 16,
    "federation.rounds": 3,
    "federation.participation": 1.0,
    "engine.workers": 1,
    "output.checkpoint": 1,
    "output.report": False,
}


def waves() -> Dataset:
    """Two channels of sines, far from zero; the class is the frequency."""
    angles = (1 + LABELS)[:, None] * np.linspace(0, 6, 32) + RNG.uniform(0, 6, (120, 1))
    series = 50 + 20 * np.stack([np.sin(angles), np.cos(angles)], axis=1)
    return Dataset.of(series + RNG.normal(size=series.shape), LABELS, name="waves")


def wine() -> Dataset:
    """A table that comes with scikit-learn, at three sites."""
    table = pytest.importorskip("sklearn.datasets").load_wine()
    return Dataset.of(table.data, table.target, sites=np.arange(178) % 3, name="wine")


def texts() -> Dataset:
    """Words of any order and number; each class prefers words of its own."""
    words = [RNG.choice([1 + label, *range(4, 10)], RNG.integers(4, 9)) for label in LABELS]
    return Dataset.of(
        [
            [*(1 + label for _ in range(2)), *found]
            for label, found in zip(LABELS, words, strict=True)
        ],
        LABELS,
        name="texts",
    )


FEDERATIONS = {"cnn1d": waves, "mlp": wine, "transformer": texts}


@pytest.fixture(autouse=True)
def cached_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCFL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return calls(monkeypatch, capsys)


@pytest.mark.parametrize("network", FEDERATIONS)
def test_every_verb(network: str, tmp_path: Path, command: Call) -> None:
    data, settings = FEDERATIONS[network](), {**QUICK, "model.name": network}
    whole = dcfl.run(dataset=data, out=tmp_path / "whole", **settings)
    assert whole.summary.final_accuracy > 80

    def stop(row: dcfl.RoundRow) -> bool:
        return row.round < 2

    with pytest.raises(Interrupted):
        dcfl.run(dataset=data, out=tmp_path / "part", on_round=stop, **settings)
    # The run is moved, and the process knows nothing of its data.
    shutil.move(tmp_path / "part", tmp_path / "elsewhere")
    resumed = dcfl.resume(tmp_path / "elsewhere")
    assert resumed.summary.weights_sha256 == whole.summary.weights_sha256
    assert dcfl.evaluate(resumed.folder).accuracy == pytest.approx(whole.summary.final_accuracy)
    assert len(evaluation_of(resumed.folder, clients=True).clients) == 3
    other = dcfl.evaluate(resumed.folder, f"npz:{data.save(tmp_path / 'other.npz')}")
    assert other.accuracy == pytest.approx(whole.summary.final_accuracy)
    assert command("analyse", resumed.folder, "--no-drift")[0] == 0
    assert (resumed.folder / "analysis" / "analysis.html").is_file()


def test_a_run_begins_beside_its_own_data_and_no_other(tmp_path: Path) -> None:
    """As one that was killed before its config leaves them. A run without an engine keeps them."""
    data, settings = wine(), {**QUICK, "model.name": "linear", "federation.rounds": 1}
    file = data.save(tmp_path / "run")
    experiment = dcfl.load_experiment(**settings, output={"dir": str(tmp_path / "run")})

    def no_engine(session: Session) -> AbstractContextManager[Engine]:
        raise ConfigError("no engine")

    with pytest.raises(ConfigError, match="no engine"):
        list(dcfl.Run(experiment, data, connect=no_engine).rounds())
    assert {path.name for path in file.parent.iterdir()} == {file.name, ".lock"}
    assert dcfl.run(experiment, dataset=data).summary.rounds == 1
    waves().save(tmp_path / "other")
    with pytest.raises(RunFolderError, match="is not empty"):
        dcfl.run(dataset=data, out=tmp_path / "other", **settings)


def test_a_comparison_has_its_data_once(tmp_path: Path) -> None:
    data, settings = wine(), {**QUICK, "model.name": "linear", "federation.rounds": 1}
    for methods in (["fedavg"], ["fedavg", "dcfl-pw"]):  # the second time another one is added
        comparison = dcfl.compare(
            methods=methods, dataset=data, out=tmp_path / "all", parallel=1, **settings
        )
    assert [group.label for group in comparison.groups] == ["fedavg", "dcfl-pw"]
    assert [file.name for file in (tmp_path / "all").rglob("wine-*")] == [data.file_name]
    (tmp_path / "all").rename(tmp_path / "moved")
    assert dcfl.evaluate(tmp_path / "moved" / "fedavg-seed0").images == len(data.test)


@pytest.mark.slow
def test_a_sweep_has_its_data_too(tmp_path: Path) -> None:
    found = dcfl.sweep(
        settings={**QUICK, "model.name": "cnn1d", "training.lr": [1e-6, 0.1]},
        dataset=waves(),
        out=tmp_path / "sweep",
        parallel=1,
    )
    assert found.chosen.point == {"training.lr": 0.1}
    assert len([*(tmp_path / "sweep").rglob("waves-*.npz")]) == 1


def test_a_run_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    for settings in ({"model.name": "cnn"}, {"model.name": "cnn1d", "data.crop": 2}):
        with pytest.raises(ConfigError, match="waves"):
            dcfl.run(dataset=waves(), out=tmp_path / "run", **{**QUICK, **settings})
        assert not (tmp_path / "run").exists()


def test_a_module_of_ones_own_gets_it_as_it_is(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []

    class Means(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = torch.nn.Linear(2, 3)

        def forward(self, series: torch.Tensor) -> torch.Tensor:
            seen.append(series)
            return self.out(series.mean(dim=2) / 100)

    data = waves()
    dcfl.run(dataset=data, model=dcfl.adapt(Means()), out=tmp_path / "run", **QUICK)
    given = {*data.train.pixels.flatten().tolist(), *data.test.pixels.flatten().tolist()}
    assert {*torch.cat(seen).flatten().tolist()} <= given


@pytest.mark.parametrize("network", FEDERATIONS)
def test_a_network_of_ones_own_file(network: str, tmp_path: Path, command: Call) -> None:
    """It is built for channels, size and classes, and may be for anything."""
    (tmp_path / "own.py").write_text(
        "from dcfl.models import ModelSettings, build_model\n\n\n"
        "def own(channels, size, classes):\n"
        f"    settings = ModelSettings({network!r})\n"
        "    return build_model(settings, channels, size, classes, seed=1)\n"
    )
    file = FEDERATIONS[network]().save(tmp_path / "data.npz")
    settings = [f"{key}={str(value).lower()}" for key, value in QUICK.items()]
    own = ("--model-file", tmp_path / "own.py")
    out = ("--out", tmp_path / "run")
    assert command("run", f"data.dataset=npz:{file}", *settings, *own, *out)[0] == 0
    assert command("evaluate", tmp_path / "run", *own)[0] == 0


@pytest.mark.flower
@pytest.mark.parametrize("network", FEDERATIONS)
def test_the_same_on_flowers_simulation(network: str, tmp_path: Path) -> None:
    data, settings = FEDERATIONS[network](), {**QUICK, "model.name": network}
    here = dcfl.run(dataset=data, out=tmp_path / "here", **settings)
    there = dcfl.run(
        dataset=data, out=tmp_path / "there", **{**settings, "engine.name": "flower-simulation"}
    )
    assert here.summary.weights_sha256 == there.summary.weights_sha256


# --- the networks ---------------------------------------------------------------------------------


def test_what_follows_a_text_does_not_change_it() -> None:
    model = build_model(ModelSettings("transformer"), 20, (9,), 3, seed=0).eval()
    text = torch.randint(1, 20, (4, 6))
    padded = torch.nn.functional.pad(text, (0, 3))
    torch.testing.assert_close(model(text).logits, model(padded).logits)
    swapped = text.flip(1)
    assert (model(text).logits - model(swapped).logits).abs().max() > 1e-4  # order matters
    assert model(torch.zeros(2, 9, dtype=torch.int64)).logits.isfinite().all()  # empty texts


@pytest.mark.parametrize("norm", ["batch", "group", "batch-nostats"])
@pytest.mark.parametrize("length", [5, 40])
def test_a_series_may_have_any_scale(norm: Any, length: int) -> None:
    model = build_model(ModelSettings("cnn1d", norm=norm), 3, (length,), 4, seed=0)
    series = torch.randn(8, 3, length)
    output = model(series)
    assert output.logits.shape == (8, 4)
    assert [stage.shape[1] for stage in output.stages] == [32, 64, 128]
    torch.testing.assert_close(model(1000 * series).logits, output.logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("network", "shape", "integers", "remedy"),
    [
        ("cnn", (3, 40), False, '"linear", "mlp", "cnn1d"'),
        ("cnn1d", (3, 8, 8), False, '"linear", "mlp"'),
        ("mlp", (40,), True, '"transformer"'),
        ("transformer", (40,), False, '"linear", "mlp"'),
        ("resnet8", (4, 40), True, "use one of your own"),
        ("timm:resnet18", (4, 40), False, '"cnn1d"'),
    ],
)
def test_a_network_for_other_data_is_refused(
    network: str, shape: tuple[int, ...], integers: bool, remedy: str
) -> None:
    with pytest.raises(ConfigError, match=f'"{network}" is not for mine.*{remedy}'):
        ModelSettings(network).require_fitting("mine", shape, integers)
