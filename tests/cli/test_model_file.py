"""`--model-file`: a network of one's own from the command line to the trained model and back."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import dcfl
from dcfl.errors import ConfigError, DCFLError, Interrupted, RunFolderError
from dcfl.methods import METHODS
from dcfl.models.own_models import OWN_MODELS, register_model
from dcfl.runs.checkpoints import Checkpoints
from dcfl.runs.folder import RecordedRun
from dcfl.system import own_files
from tests.command_line import Call
from tests.models.test_own_models import CLASS, FUNCTION

FAST = ["federation.rounds=2", "federation.participation=0.1", "training.epochs=1"]
# Leaves a mark when it runs.
MARKED = "from pathlib import Path\nPath('ran').touch()\n" + FUNCTION


@pytest.fixture
def cli(cli: Call) -> Call:
    def fresh(*words: str) -> tuple[int, str, str]:
        """As in a new process."""
        OWN_MODELS.clear()
        own_files._LOADED.clear()
        return cli(*words)

    return fresh


@pytest.fixture
def trained(cli: Any, tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(MARKED)
    assert cli("run", *FAST, "--model-file", "net.py", "--out", "run")[0] == 0
    (tmp_path / "ran").unlink()
    OWN_MODELS.clear()
    own_files._LOADED.clear()
    return tmp_path / "run"


def test_the_run_folder_has_a_copy_and_its_hash(trained: Path) -> None:
    assert (trained / "model.py").read_text() == MARKED
    digest = hashlib.sha256(MARKED.encode()).hexdigest()
    recorded = RecordedRun.open(trained)
    assert recorded.environment["own_files"] == {"model.py": digest}
    assert recorded.config["model"]["name"] == "tiny"


def test_the_trained_model_comes_back_with_its_file(trained: Path, tmp_path: Path) -> None:
    for file in (tmp_path / "net.py", trained / "model.py"):
        OWN_MODELS.clear()
        model = dcfl.load_model(trained, model=file)
        assert {*model.state_dict()} == {
            f"{k}.{kind}" for k in (1, 3) for kind in ("weight", "bias")
        }
        assert len(model.class_names) == 10


def test_a_run_folder_never_brings_code_along(trained: Path, cli: Any, tmp_path: Path) -> None:
    """Whoever gives you one does not have it run, whatever you do with it."""
    with pytest.raises(RunFolderError, match=r"network of your own, 'tiny': name its file"):
        dcfl.load_model(trained)
    for words in (["resume"], ["report"], ["analyse"]):
        cli(*words, "run")
    (trained / "summary.json").unlink()
    code, _, err = cli("resume", "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "--model-file" in err
    assert not (tmp_path / "ran").exists()


def test_another_file_is_refused(trained: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(FUNCTION)
    with pytest.raises(ConfigError, match=r"other\.py is not the file that .* was trained with"):
        dcfl.load_model(trained, model=other)


def test_the_name_of_a_network_cannot_be_borrowed(trained: Path, tmp_path: Path) -> None:
    """A folder whose weights claim a network that somebody has given for another run."""
    register_model(tmp_path / "net.py")
    plain = dcfl.run(out=tmp_path / "plain", federation={"rounds": 1, "participation": 0.1})
    shutil.copy(plain.folder / "model.safetensors", trained)
    with pytest.raises(DCFLError, match="damaged"):
        dcfl.load_model(trained)


def stop_after_the_first_round(run: dcfl.Run) -> None:
    for _ in run.rounds():
        run.stop()


@pytest.mark.parametrize("copied", [False, True])
def test_resuming_needs_the_same_file(copied: bool, cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(CLASS)

    def begun(name: str, rounds: int) -> dcfl.Run:
        own = {"name": register_model(file)}
        federation = {"rounds": rounds, "participation": 0.1}
        settings = {"model": own, "federation": federation, "output": {"dir": name}}
        return dcfl.Run(dcfl.load_experiment(**settings, training={"epochs": 1}))

    whole, run = begun("whole", 3), begun("run", 3)
    assert [row.round for row in whole.rounds()] == [1, 2, 3]
    with pytest.raises(Interrupted):
        stop_after_the_first_round(run)
    assert Checkpoints(tmp_path / "run").paths()
    given = "run/model.py" if copied else "net.py"
    (tmp_path / "edited.py").write_text(CLASS + "\n# more\n")
    code, _, err = cli("resume", "run", "--model-file", "edited.py")
    assert code == 2
    assert "model was " in err
    assert "--allow model resumes all the same" in err
    code, out, err = cli("resume", "run", "--model-file", given, "--json")
    assert code == 0, err
    assert json.loads(out)["weights_sha256"] == whole.result().summary.weights_sha256


def test_a_file_stands_for_a_module_from_python(cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(FUNCTION)
    module = OWN_MODELS[register_model(file)].build(1, 8, 10)

    def begun(name: str) -> dcfl.Run:
        federation = {"rounds": 3, "participation": 0.1}
        settings = {"federation": federation, "output": {"dir": name}, "training": {"epochs": 1}}
        return dcfl.Run(dcfl.load_experiment(**settings), model=module)

    whole, run = begun("whole"), begun("run")
    assert [row.round for row in whole.rounds()] == [1, 2, 3]
    with pytest.raises(Interrupted):
        stop_after_the_first_round(run)
    code, _, err = cli("resume", "run")
    assert (code, "--model-file" in err) == (2, True)
    code, out, err = cli("resume", "run", "--model-file", "net.py", "--json")
    assert code == 0, err
    assert json.loads(out)["weights_sha256"] == whole.result().summary.weights_sha256


def test_another_file_that_is_allowed_is_the_runs_from_then_on(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(CLASS)
    run = dcfl.Run(
        dcfl.load_experiment(
            model={"name": register_model(tmp_path / "net.py")},
            federation={"rounds": 3, "participation": 0.1},
            training={"epochs": 1},
            output={"dir": "run"},
        )
    )
    with pytest.raises(Interrupted):
        stop_after_the_first_round(run)
    edited = CLASS + "\n# more\n"
    (tmp_path / "edited.py").write_text(edited)
    code, _, err = cli("resume", "run", "--model-file", "edited.py", "--allow", "model")
    assert code == 0, err
    assert (tmp_path / "run" / "model.py").read_text() == edited
    environment = RecordedRun.open(tmp_path / "run").environment
    first, then = (hashlib.sha256(text.encode()).hexdigest() for text in (CLASS, edited))
    assert environment["own_files"] == {"model.py": then}
    assert environment["own_files_before"] == [first]
    # The copy in the folder is the file that its model asks for.
    code, _, err = cli("evaluate", "run", "--model-file", "run/model.py")
    assert code == 0, err


REFUSING = """
from dataclasses import dataclass
import dcfl

@dataclass(frozen=True)
class Mine(dcfl.Method):
    mu: float = 0.1

    def __post_init__(self):
        if self.mu > 1:
            raise ValueError("mu is a share")
"""


def test_what_a_methods_own_fields_refuse_is_the_users_mistake(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(REFUSING)
    code, _, err = cli("run", *FAST, "--method-file", "mine.py", "method.mu=2")
    assert (code, err.strip()) == (2, "dcfl: the method mine refuses its fields: mu is a share")


def test_resuming_a_method_from_a_file_asks_for_it(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(REFUSING)
    assert cli("run", *FAST, "--method-file", "mine.py", "--out", "run")[0] == 0
    monkeypatch.delitem(METHODS, "mine")
    code, _, err = cli("resume", "run", "--rounds", "3")
    assert (code, "--method-file" in err) == (2, True)


def test_a_method_file_is_copied_too(cli: Any, tmp_path: Path) -> None:
    cli("new", "method", "mine")
    assert cli("run", *FAST, "--method-file", "mine.py", "--out", "run")[0] == 0
    text = (tmp_path / "mine.py").read_bytes()
    assert (tmp_path / "run" / "method.py").read_bytes() == text
    hashes = RecordedRun.open(tmp_path / "run").environment["own_files"]
    assert hashes == {"method.py": hashlib.sha256(text).hexdigest()}


def test_one_file_may_define_both(cli: Any, tmp_path: Path) -> None:
    method = "import dcfl\nclass Mine(dcfl.METHODS['fedavg']):\n    name = 'mine'\n"
    (tmp_path / "both.py").write_text(method + FUNCTION)
    both = ("--method-file", "both.py", "--model-file", "both.py")
    code, out, _ = cli("run", *FAST, *both, "--out", "run", "--json")
    assert code == 0
    assert json.loads(out)["method"] == "mine"
    names = sorted(path.name for path in (tmp_path / "run").glob("*.py"))
    assert names == ["method.py", "model.py"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model-file", "none.py"], "none.py: no such file"),
        (["--model-file", "nothing.py"], "nothing.py defines no network"),
        (["--model-file", "small.py"], "the model fails on images [2, 1, 8, 8]: RuntimeError: "),
        (["--model-file", "few.py"], "not logits [2, 3] of two images"),
        (["model.name=tiny"], "there is no network 'tiny'"),
        (["--model-file", "net.py", "model.head=mlp16"], 'use "side256"'),
        (["model.name=os:system"], "there is no network 'os:system'"),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, cli: Any, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FUNCTION)
    (tmp_path / "nothing.py").touch()
    (tmp_path / "small.py").write_text(FUNCTION.replace("size * size", "size"))
    (tmp_path / "few.py").write_text(FUNCTION.replace("(5, classes)", "(5, 3)"))
    code, _, err = cli("run", *FAST, *words, "--out", "out")
    assert (code, err.count("\n")) == (2, 1), err
    assert message in err
    assert not (tmp_path / "out").exists()
