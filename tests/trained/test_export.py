"""dcfl export: what other runtimes compute from the file is what the model says."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnxruntime
import pytest
import torch
import yaml  # type: ignore[import-untyped]
from markdown_it import MarkdownIt
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

import dcfl
import dcfl.cli.main
from dcfl.cli.model_verbs import Format
from dcfl.data import load_dataset
from dcfl.data.settings import DataSettings
from dcfl.errors import ConfigError
from dcfl.runs.model_file import load_with_settings
from dcfl.system.wording import install_command
from dcfl.trained import export as exporting
from dcfl.trained import exported_graph as export_formats
from dcfl.trained.export import ExportOptions, export_model
from dcfl.trained.exported_graph import FORMATS
from tests.analysis.trained import train
from tests.command_line import Call
from tests.data.pictures import save
from tests.models.test_own_models import FUNCTION
from tests.test_public_names import not_public
from tests.trained.picture_runs import coloured, trained_on

NETWORKS: dict[str, dict[str, Any]] = {
    "cnn": {"model.width": 4},
    "side": {"model.name": "resnet8", "model.width": 4, "model.head": "side16"},
    "lenet": {"model.name": "lenet"},  # on larger digits: it has no use for 8x8
    "group": {"model.width": 4, "model.norm": "group"},
    "adapted": {"model.name": "tiny", "model.head": "side16"},
}


def slow(format: str) -> Any:
    return pytest.param(format, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Trained when they are first asked for. The adapted module's file is beside its run."""
    from dcfl.models.own_models import register_model

    home = tmp_path_factory.mktemp("runs")
    (home / "net.py").write_text(FUNCTION)

    def run(name: str) -> Path:
        if name == "adapted":
            register_model(home / "net.py")
        if not (home / name).exists():
            data = {"data.dataset": f"npz:{large_digits(home)}"} if name == "lenet" else {}
            train(home / name, **{"federation.rounds": 1, **NETWORKS[name], **data})
        return home / name

    return run


@pytest.fixture(scope="module")
def digits() -> torch.Tensor:
    return load_dataset(DataSettings()).test.pixels


def enlarged(pixels: torch.Tensor) -> torch.Tensor:
    return pixels.repeat_interleave(4, dim=1).repeat_interleave(4, dim=2)


def large_digits(home: Path) -> Path:
    digits = load_dataset(DataSettings())
    arrays = {}
    for part, images in (("train", digits.train), ("test", digits.test)):
        arrays[f"{part}_images"] = enlarged(images.pixels).numpy()
        arrays[f"{part}_labels"] = images.labels.numpy()
    np.savez(home / "large.npz", **arrays)  # type: ignore[arg-type]
    return home / "large.npz"


def live(folder: Path, pixels: torch.Tensor) -> dcfl.Output:
    model = dcfl.load_model(folder)
    assert model.preparation is not None
    with torch.no_grad():
        return model(model.preparation.clean(pixels))


def card_code(card: Path) -> str:
    found = re.search(r"```python\n(.*?)```", card.read_text(), re.DOTALL)
    assert found
    assert not_public(found[1]) == set()
    return found[1]


def by_the_card(folder: Path, pixels: torch.Tensor, onnx: bool) -> dict[str, np.ndarray]:
    """What a reader of the card gets who runs its code."""
    names: dict[str, Any] = {"pixels": pixels.numpy() if onnx else pixels}
    before = Path.cwd()
    os.chdir(folder)
    try:
        with torch.no_grad():
            exec(card_code(folder / "README.md"), names)
    finally:
        os.chdir(before)
    found = {k: names.get(k) for k in ("logits", "probabilities", "embedding")}
    return {k: np.asarray(v) for k, v in found.items() if v is not None}


@pytest.mark.parametrize(
    ("network", "format"),
    [
        pytest.param(network, format, marks=pytest.mark.slow)
        if network in ("lenet", "group", "adapted") and format == "onnx"
        else (network, format)
        for network in NETWORKS
        for format in FORMATS
    ],
)
def test_every_format_gives_the_logits_of_the_model(
    network: str,
    format: str,
    runs: Callable[[str], Path],
    digits: torch.Tensor,
    tmp_path: Path,
) -> None:
    folder = runs(network)
    out = tmp_path / "hub" / f"model{FORMATS[format].suffix}"
    exported = export_model(folder, ExportOptions(format, out=out))
    assert exported.compared_on == "100 test images"
    assert {path.name for path in (tmp_path / "hub").iterdir()} == {
        exported.path.name,
        "README.md",
        *(["label.py"] if format == "onnx" else []),
    }
    assert names_in(exported.path, format) == list("0123456789")
    if (network, format) == ("adapted", "safetensors"):
        assert not any("side" in name for name in load_file(exported.path))
        return  # its code is not in the card
    pixels = enlarged(digits[:37]) if network == "lenet" else digits[:37]
    found = by_the_card(tmp_path / "hub", pixels, format == "onnx")
    assert list(found) == ["logits"]
    np.testing.assert_allclose(found["logits"], live(folder, pixels).logits, atol=1e-4)


def names_in(path: Path, format: str) -> Any:
    """The classes, as a program reads them that has this file alone."""
    extra = {"class_names": ""}
    if format == "onnx":
        session = onnxruntime.InferenceSession(path)
        extra = session.get_modelmeta().custom_metadata_map
    elif format == "torchscript":
        torch.jit.load(path, _extra_files=extra)  # type: ignore[no-untyped-call]
    else:
        with safe_open(path, "pt") as file:
            extra = file.metadata()
    return json.loads(extra["class_names"])


@pytest.mark.parametrize("format", ["onnx", "torchscript"])
def test_pixels_in_probabilities_and_the_side_head_out(
    format: str, runs: Callable[[str], Path], digits: torch.Tensor, tmp_path: Path
) -> None:
    folder, out = runs("side"), tmp_path / f"model{FORMATS[format].suffix}"
    export_model(folder, ExportOptions(format, prepare=True, embedding="projection", out=out))
    for pixels in (digits[:1], digits[:50]):
        found = by_the_card(tmp_path, pixels, format == "onnx")
        wanted = live(folder, pixels)
        np.testing.assert_allclose(found["probabilities"], wanted.logits.softmax(1), atol=1e-5)
        np.testing.assert_allclose(found["embedding"], wanted.z(), atol=1e-4)
    assert wanted.z().shape == (50, 16)
    with pytest.raises(Exception, match=r"(?i)size|dimension|shape"):
        by_the_card(tmp_path, enlarged(digits[:5]), format == "onnx")


def test_a_side_head_is_left_out_unless_asked_for(
    runs: Callable[[str], Path], tmp_path: Path
) -> None:
    without, with_it = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    export_model(runs("side"), ExportOptions("safetensors", out=without))
    export_model(runs("side"), ExportOptions("safetensors", embedding="projection", out=with_it))
    extra = load_file(with_it).keys() - load_file(without).keys()
    assert extra
    assert {name.partition(".")[0] for name in extra} == {"side"}


def test_weights_are_float32_whatever_they_were_trained_in(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"model.width": 4, "engine.precision": "bfloat16"}
    run = train(tmp_path / "run", **{"federation.rounds": 1, **changes}).folder
    export_model(run, ExportOptions("safetensors", out=tmp_path / "m.safetensors"))
    stored = load_file(tmp_path / "m.safetensors").values()
    assert {tensor.dtype for tensor in stored if tensor.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("format", ["torchscript", "safetensors", slow("onnx")])
def test_a_file_that_disagrees_leaves_nothing_behind(
    format: str,
    runs: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cli: Call,
) -> None:
    """And an earlier export stays as it was."""
    kind = FORMATS[format]
    monkeypatch.setattr(exporting, "AGREEMENT", -1.0)
    new = tmp_path / "new" / "hub" / f"model{kind.suffix}"
    words = ["export", runs("cnn"), "--format", format, "--out", new]
    code, shown, err = cli(*words)
    assert (code, shown, err.count("\n")) == (2, "", 1)
    assert "differs from the model by" in err
    assert [*tmp_path.iterdir()] == []
    old = tmp_path / f"old{kind.suffix}"
    old.write_bytes(b"old")
    assert cli("export", runs("cnn"), "--format", format, "--out", old)[0] == 2
    assert ([*tmp_path.iterdir()], old.read_bytes()) == ([old], b"old")


@pytest.mark.parametrize("format", FORMATS)
def test_a_corrupted_file_leaves_nothing_behind(
    format: str,
    runs: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cli: Call,
) -> None:
    kind = FORMATS[format]
    monkeypatch.setattr(
        export_formats.ExportFormat, "written", lambda *_: b"no file of any known format"
    )
    out = tmp_path / f"m{kind.suffix}"
    code, _, err = cli("export", runs("cnn"), "--format", format, "--out", out)
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot be used, and was not kept" in err
    assert [*tmp_path.iterdir()] == []


STUBBORN = """
import torch
from torch import nn

class Stubborn(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images):
        flat = images.flatten(1)
        if float(flat.sum()) > 1e9:  # a graph has no place for this
            flat = flat * 2
        return self.fc(flat)

def stubborn(channels, size, classes):
    return Stubborn(channels * size * size, classes)
"""


def test_a_network_that_an_exporter_refuses_is_one_line(tmp_path: Path, cli: Call) -> None:
    from dcfl.models.own_models import register_model

    (tmp_path / "net.py").write_text(STUBBORN)
    register_model(tmp_path / "net.py")
    run = train(tmp_path / "run", **{"federation.rounds": 1, "model.name": "stubborn"}).folder
    out = tmp_path / "m.onnx"
    code, shown, err = cli(
        "export", run, "--format", "onnx", "--out", out, "--model-file", run / "model.py"
    )
    assert (code, shown, err.count("\n")) == (2, "", 1)
    assert "the network cannot be exported as" in err
    assert {path.name for path in tmp_path.iterdir()} == {"net.py", "run"}


def test_without_the_extra_one_line_says_what_to_install(
    runs: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, cli: Call
) -> None:
    monkeypatch.setattr(
        export_formats, "find_spec", lambda name: None if name == "onnxruntime" else name
    )
    code, _, err = cli("export", runs("cnn"), "--format", "onnx")
    assert code == 2
    assert err == f"dcfl: this format needs onnxruntime: {install_command('onnx')}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "onnx", "--out", "model.pt"], "must end in .onnx"),
        (["--format", "safetensors", "--prepare"], "holds weights, not a graph"),
        (["--format", "onnx", "--license", "mit\n---"], "--license takes a name"),
        (["--format", "onnx", "--best"], "output.keep_best"),
        (["--format", "torchscript", "--out", "mine/m.pt"], "README.md was not written by dcfl"),
        (["--format", "safetensors", "--out", "run/model.safetensors"], "is a file of a run"),
        (["--format", "nonsense"], "Invalid value for '--format'"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_bad_input_is_one_line(
    words: list[str],
    message: str,
    runs: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Call,
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs("cnn"), tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("# mine\n")
    before = sorted(tmp_path.rglob("*"))
    code, _, err = cli("export", "run", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


def test_the_formats_of_the_command_line_are_those_there_are() -> None:
    assert [*get_args(Format)] == [*FORMATS]
    with pytest.raises(ConfigError, match="no format 'tflite'"):
        ExportOptions("tflite")


def test_the_card_has_what_hubs_and_people_ask_for(
    runs: Callable[[str], Path], tmp_path: Path, cli: Call
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs("cnn"), folder)
    words = ["export", folder, "--format", "safetensors", "--license", "Apache-2.0"]
    assert cli(*words)[0] == 0
    card = (folder / "export-safetensors" / "README.md").read_text()
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["license"] == "apache-2.0"
    assert head["library_name"] == "dcfl"
    assert {"federated-learning", "dcfl-pw", "safetensors"} <= {*head["tags"]}
    (result,) = head["model-index"][0]["results"]
    assert result["dataset"] == {"name": "digits", "type": "digits"}
    (metric,) = result["metrics"]
    summary = json.loads((folder / "summary.json").read_text())
    assert metric["value"] == pytest.approx(summary["final_accuracy"] / 100, abs=1e-6)
    assert summary["weights_sha256"] in card
    assert "Nobody has said under which licence" not in card
    assert cli("evaluate", folder)[0] == 0
    assert cli(*words)[0] == 0  # an earlier export of ours may be replaced
    head = yaml.safe_load(
        (folder / "export-safetensors" / "README.md").read_text().split("---\n")[1]
    )
    assert head["metrics"] == ["accuracy", "f1"]


@pytest.mark.filterwarnings("ignore:.*skipped 1 broken image")
def test_the_card_has_recall_groups_and_broken_pictures(tmp_path: Path, cli: Call) -> None:
    rng = np.random.default_rng(0)
    for name in ("blue", "re|d"):
        for number in range(12):
            path = tmp_path / "pictures" / name / f"{name} {number // 3}" / f"{number}.png"
            save(path, coloured(name.replace("|", ""), rng))
    (tmp_path / "pictures" / "blue" / "blue 0" / "half.png").write_bytes(b"no picture")
    changes: dict[str, Any] = {"model.width": 4, "data.min_size": 2, "data.broken": "skip"}
    run = trained_on(tmp_path / "pictures", tmp_path / "run", **changes).folder
    summary = json.loads((run / "summary.json").read_text())

    def card() -> str:
        return export_model(run, ExportOptions("safetensors")).card.read_text()

    before = card()
    for row in summary["recalls"]:
        name = row["name"].replace("|", r"\|")
        assert f"\n| {name} | {row['images']} | {row['recall']:.2f} % |" in before
        assert (f"It never recognised {name}." in before) == (row["recall"] == 0)
    assert "\n| groups of images | 8, such as patients" in before
    assert "\n| broken images, left out | 1 |" in before
    assert cli("evaluate", run)[0] == 0
    assert "| recall |" in before.partition("## Accuracy")[2]
    assert before.partition("| class |")[2] == card().partition("| class |")[2]


def test_the_card_names_no_path_and_no_name_breaks_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    changes: dict[str, Any] = {"model.width": 4, "data.min_size": 2}
    for name in ('a"]: {b}', "c | d", "\n\n## Install\n\n    curl a | sh\n```sh"):
        for number in range(6):
            path = tmp_path / "secret" / "pictures" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(path)
    run = trained_on(tmp_path / "secret" / "pictures", tmp_path / "run", **changes).folder
    shutil.rmtree(tmp_path / "secret")
    exported = export_model(run, ExportOptions("torchscript"))
    assert exported.compared_on == "100 random inputs (the run's own images are not at hand)"
    card = exported.card.read_text()
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["model-index"][0]["results"][0]["dataset"]["name"] == "pictures"
    assert "secret" not in card
    assert r"c \| d" in card
    assert_only_ours(card)


def assert_only_ours(card: str) -> list[str]:
    """No heading, link or code but those of the template; returns the title, as text."""
    tokens = MarkdownIt("commonmark").enable("table").parse(card.split("---\n", 2)[2])
    headings = [tokens[at + 1] for at, one in enumerate(tokens) if one.type == "heading_open"]
    assert [one.content for one in headings[1:]] == ["Use", "Training", "Accuracy", "Cautions"]
    assert [one.info for one in tokens if one.type in ("fence", "code_block")] == ["python"]
    inside = {inner.type for one in tokens for inner in one.children or ()}
    assert inside <= {"text", "text_special", "softbreak", "code_inline"}
    prose = re.sub(r"\n```python\n.*?\n```\n", "", card.split("---\n", 2)[2], flags=re.DOTALL)
    assert not re.search(r"[^\\]://|www\.[a-z]", prose)  # nor a bare address
    return [one.content for one in headings[0].children or ()]


HOSTILE = (
    r"x\n\n## Install\n\n    curl https://a.example | sh\n```sh\n"
    "[b](https://b) <i> www.c.example"
)


def test_a_hostile_name_writes_no_heading_link_or_code(
    runs: Callable[[str], Path], tmp_path: Path
) -> None:
    """The folder of a run may be somebody else's."""
    shutil.copytree(runs("cnn"), tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    changed = config.read_text().replace('name = "dcfl-pw"', f'name = "{HOSTILE}"')
    changed = re.sub("participation = .*", 'participation = "auto"', changed)
    config.write_text(changed)
    card = export_model(tmp_path / "run", ExportOptions("torchscript")).card.read_text()
    assert yaml.safe_load(card.split("---\n")[1])["tags"][2].startswith("x\n\n## Install")
    assert "".join(assert_only_ours(card)) == f"cnn on digits, trained with {HOSTILE}"
    elsewhere = config.read_text().replace('"digits"', f'"npz:/data/{HOSTILE}"')
    config.write_text(elsewhere)
    out = tmp_path / f"{HOSTILE.replace('/', '')}.pt".replace(r"\n", "\n")
    card = export_model(tmp_path / "run", ExportOptions("torchscript", out=out)).card.read_text()
    assert_only_ours(card)


def test_a_model_that_has_diverged_is_refused(
    runs: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Call
) -> None:
    model, settings = load_with_settings(runs("cnn"))
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    monkeypatch.setattr(exporting, "load_with_settings", lambda *_: (model, settings))
    out = tmp_path / "m.onnx"
    code, _, err = cli("export", runs("cnn"), "--format", "onnx", "--out", out)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{runs('cnn')}: the model's outputs are not finite" in err
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_feature_vectors_and_what_normalises_by_the_batch(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(3, 2, (60, 7)).astype(np.float32), np.arange(60) % 3
    np.savez(
        tmp_path / "f.npz",
        train_features=rows[:40],
        train_labels=labels[:40],
        test_features=rows[40:],
        test_labels=labels[40:],
    )
    changes: dict[str, Any] = {
        "data.dataset": f"npz:{tmp_path / 'f.npz'}",
        "data.clients": 2,
        "data.partition": "iid",
        "model.name": "mlp",
        "method.name": "fedavg",
        "federation.participation": 1.0,
    }
    run = train(tmp_path / "run", **changes).folder
    for prepare in (False, True):
        exported = export_model(run, ExportOptions("onnx", prepare=prepare))
        assert exported.compared_on == "20 test images"
        assert exported.graph.input_name == "vectors"
    nostats = {"federation.rounds": 1, "model.width": 4, "model.norm": "batch-nostats"}
    run = train(tmp_path / "nostats", **nostats).folder
    card = export_model(run, ExportOptions("torchscript", prepare=True)).card
    assert "depends on those beside it" in card.read_text()


def test_files_of_other_runs_and_of_others_are_never_overwritten(
    runs: Callable[[str], Path], cli: Call, tmp_path: Path
) -> None:
    other, foreign = tmp_path / "other", tmp_path / "foreign"
    shutil.copytree(runs("cnn"), other)
    shutil.copytree(runs("cnn"), foreign)
    before = (other / "model.safetensors").read_bytes()
    (foreign / "export-safetensors").symlink_to(other)
    (tmp_path / "mine.safetensors").write_bytes(b"precious")
    for words, message in (
        ((), "is a link"),
        (("--out", other / "model.safetensors"), "is a file of a run"),
        (("--out", tmp_path / "mine.safetensors"), "was not written by dcfl"),
    ):
        code, _, err = cli("export", foreign, "--format", "safetensors", *words)
        assert code in (2, 3)
        assert message in err
        assert err.count("\n") == 1
        (foreign / "export-safetensors").unlink(missing_ok=True)
    assert (other / "model.safetensors").read_bytes() == before
    assert (tmp_path / "mine.safetensors").read_bytes() == b"precious"
