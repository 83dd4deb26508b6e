"""Models that only their owners can put together: a site's personal part, a module from Python."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dcfl
from dcfl.data import load_dataset
from dcfl.data.identical import TRAINED_ON
from dcfl.errors import ConfigError, RunFolderError, RunMissing
from dcfl.experiment import Experiment
from dcfl.flower.codec import Task
from dcfl.flower.node_memories import NodeMemories
from dcfl.models.parts import with_personal
from dcfl.runs.model_file import PERSONAL, join_personal_part
from dcfl.system.tensor_files import read_tensors
from dcfl.trained.embed import embed_pictures
from dcfl.trained.export import ExportOptions, export_model
from tests.command_line import Call
from tests.data.scanners import scanners

SMALL: dict[str, Any] = {
    "training": {"batch_size": 8, "epochs": 1},
    "engine": {"workers": 1},
    "output": {"report": False},
}
RUN = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scanners(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="module")
def whole(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedBN: what a simulation keeps in one folder."""
    data = {"dataset": f"sites:{pictures}", "image_size": 8}
    federation = {"rounds": 2, "personal": ["norms"]}
    out = tmp_path_factory.mktemp("runs") / "whole"
    return dcfl.run(data=data, federation=federation, out=out, **SMALL).folder


@pytest.fixture
def served(whole: Path, tmp_path: Path) -> Path:
    """The same as a server of real sites has it, and what the node of client 1 keeps."""
    folder = tmp_path / "server"
    shutil.copytree(whole, folder)
    part, _ = read_tensors(folder / PERSONAL / "client-000001.safetensors")
    shutil.rmtree(folder / PERSONAL)
    environment = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**environment, "run": RUN}))
    node = NodeMemories(tmp_path / "memories")
    older = {name: torch.zeros_like(tensor) for name, tensor in part.items()}
    node.save(Task(RUN, 1, 1, 0), with_personal(older, {}))
    node.save(Task(RUN, 2, 1, 1), with_personal(part, {"method": torch.ones(3)}))
    node.save(Task(RUN[::-1], 9, 1, 0), with_personal(older, {}))  # of another run
    return folder


def test_a_site_joins_its_part_with_the_servers_model(
    whole: Path, served: Path, pictures: Path, cli: Call
) -> None:
    with pytest.raises(RunMissing, match="no personal model"):
        dcfl.load_model(served, 1)
    code, out, _ = cli("flower", "personal", served, served.parent / "memories")
    assert code == 0
    assert "--client 1" in out
    own = pictures / "north"
    scores = [cli("evaluate", run, own, "--client", 1, "--json")[1] for run in (whole, served)]
    assert json.loads(scores[0])["accuracy"] == json.loads(scores[1])["accuracy"]
    (served / TRAINED_ON).unlink()  # which pictures the sites have, a server does not know
    unknown = "some of these images is not known here"
    assert unknown in cli("evaluate", served, own, "--client", 1)[1]
    assert "is not known here" in cli("predict", served, own, "--client", 1)[1]
    ranked = [[p.ranking for p in dcfl.predict(run, own, which=1)] for run in (whole, served)]
    assert ranked[0] == ranked[1]
    assert ranked[0] != [p.ranking for p in dcfl.predict(served, own)]
    out_file = served / "own.safetensors"
    export_model(served, ExportOptions("safetensors", which=1, out=served / "x" / out_file.name))


def test_what_is_not_a_sites_part_is_refused_in_a_line(served: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunMissing, match="there is nothing of it"):
        join_personal_part(served, tmp_path / "empty")
    with pytest.raises(RunMissing, match="there is nothing of it"):
        join_personal_part(served, tmp_path / "memories" / RUN[::-1])
    node = NodeMemories(tmp_path / "memories")
    odd = {"elsewhere": torch.ones(2)}
    node.save(Task(RUN, 2, 0, 0), with_personal(odd, {}))
    with pytest.raises(RunMissing, match="those of clients 0, 1: name the folder of one"):
        join_personal_part(served, tmp_path / "memories")
    with pytest.raises(RunFolderError, match="no personal part of the model"):
        join_personal_part(served, tmp_path / "memories" / RUN / "client-000000")


# --- modules from Python --------------------------------------------------------------------------

NET = """
from torch import nn

def own_net(channels, size, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, 8), nn.ReLU(),
                         nn.Linear(8, classes))
"""


def module() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def test_every_reader_takes_the_module_or_a_file_that_builds_it(tmp_path: Path, cli: Call) -> None:
    result = dcfl.run(model=dcfl.adapt(module()), federation={"rounds": 1}, **SMALL)
    (tmp_path / "net.py").write_text(NET)
    run, picture = result.folder, tmp_path / "white.png"
    from PIL import Image

    Image.new("L", (8, 8), 255).save(picture)
    with pytest.raises(RunFolderError, match=r"give it as model=, or name a file .* --model-file"):
        dcfl.load_model(run)
    given: list[Any] = [dcfl.adapt(module()), tmp_path / "net.py"]
    for model in given:
        assert dcfl.load_model(run, model=model).class_names[3] == "3"
        scores = dcfl.evaluate(run, model=model)
        assert scores.accuracy == pytest.approx(result.summary.final_accuracy)
        (one,) = dcfl.predict(run, picture, model=model)
        assert one.label is not None
        assert embed_pictures(run, [picture], network=model).features.shape == (1, 8)
        kind = "module" if isinstance(model, nn.Module) else "file"
        for format in ("safetensors", "torchscript"):
            out = (
                tmp_path
                / kind
                / format
                / f"m{'.pt' if format == 'torchscript' else '.safetensors'}"
            )
            assert export_model(run, ExportOptions(format, out=out), model).difference < 1e-4
    assert not any(
        torch.equal(trained, new)
        for (_, trained), (_, new) in zip(
            result.model.named_parameters(), given[0].named_parameters(), strict=True
        )
        if new.dim() > 1
    ), "a copy gets the weights"
    for verb in (["evaluate"], ["predict", picture], ["embed", picture, "--out", "f.npz"]):
        code, _, err = cli(verb[0], run, *verb[1:], "--model-file", tmp_path / "net.py")
        assert code == 0, err
    with pytest.raises(ConfigError, match=r"dcfl\.adapt\(module\)"):
        dcfl.load_model(run, model=module())
    with pytest.raises(ConfigError, match="other names or shapes"):
        dcfl.load_model(run, model=dcfl.adapt(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))))
    assert len(load_dataset(Experiment().data).test) == scores.images
