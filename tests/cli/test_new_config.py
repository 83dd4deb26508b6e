"""`dcfl new config` writes what is in configs/, and hints name a command that works."""

import re
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from dcfl.cli import new as module
from dcfl.cli.new import config_names, new_config
from dcfl.config import as_tables, experiment_from, read_toml
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.system import wording as installing
from dcfl.system.wording import install_command

ROOT = Path(__file__).parents[2]


def test_all_that_a_clone_has_can_be_written(tmp_path: Path) -> None:
    kept = {path.stem for path in (ROOT / "configs").glob("*.toml")}
    assert config_names() == sorted({"digits", *kept})
    for name in kept:
        path, _ = new_config(name, tmp_path)
        assert path == tmp_path / f"{name}.toml"
        assert experiment_from(path) == experiment_from(ROOT / "configs" / path.name)
        assert "configs/" not in path.read_text().split("[data]")[0]


def test_the_digits_config_is_the_default_with_a_comment_at_every_key(tmp_path: Path) -> None:
    text = new_config("digits", tmp_path)[0].read_text()
    assert experiment_from(tmp_path / "digits.toml") == Experiment()
    assert read_toml(tmp_path / "digits.toml") == {
        section: {
            key: list(value) if isinstance(value, tuple) else value for key, value in table.items()
        }
        for section, table in as_tables(Experiment()).items()
    }
    lines = text.splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r"\w+ = ", line)]
    assert all(" # " in lines[number] or lines[number - 1].startswith("# ") for number in keys)
    assert max(map(len, lines)) <= 100


def test_the_verb_that_runs_it(tmp_path: Path) -> None:
    assert new_config("digits", tmp_path)[1] == "dcfl run"
    assert new_config("hospitals", tmp_path)[1] == "dcfl flower run"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "digits.toml").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        new_config("digits", tmp_path)
    assert (tmp_path / "digits.toml").read_text() == "mine"
    with pytest.raises(ConfigError, match="did you mean digits"):
        new_config("digit", tmp_path)
    with pytest.raises(ConfigError, match=r"no config '\.\./digits'"):
        new_config("../digits", tmp_path)


def test_a_wheel_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLACES", (tmp_path,))
    with pytest.raises(ConfigError, match="install it again"):
        new_config("digits", tmp_path)


TORCH = f"torch=={version('torch')}"  # it stays as it is


@pytest.mark.parametrize("mine", [True, False])
def test_the_pip_of_this_python(
    mine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(sys.executable).parent if mine else tmp_path
    monkeypatch.setattr(shutil, "which", lambda name: str(folder / name))
    monkeypatch.setattr(installing, "find_spec", lambda name: name)
    monkeypatch.setattr(installing, "CLONE", tmp_path)
    program = "pip" if mine else f"{sys.executable} -m pip"
    assert install_command("flower") == f"{program} install 'dcfl[flower]' {TORCH}"
    (
        tmp_path / "constraints.txt"
    ).touch()  # now it is a clone, and its versions are the tested ones
    tested = tmp_path / "constraints.txt"
    assert install_command("flower") == f"{program} install -c {tested} 'dcfl[flower]' {TORCH}"
    monkeypatch.chdir(tmp_path)
    assert (
        install_command("flower") == f"{program} install -c constraints.txt 'dcfl[flower]' {TORCH}"
    )


def test_an_environment_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "uv" else None)
    monkeypatch.setattr(installing, "find_spec", lambda name: None)
    monkeypatch.setattr(installing, "CLONE", tmp_path)
    expected = f"uv pip install --python {sys.executable} 'dcfl[onnx]' {TORCH}"
    assert install_command("onnx") == expected
