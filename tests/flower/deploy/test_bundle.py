from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

from dcfl.errors import ConfigError
from dcfl.flower.deploy.submission import write_bundle


def test_the_bundle_is_one_file_that_points_into_dcfl(tmp_path: Path) -> None:
    experiment = '[data]\ndataset = "digits"'
    folder = write_bundle(tmp_path / "deep" / "app", experiment, "2")
    assert [path.name for path in folder.iterdir()] == ["pyproject.toml"]
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    app = project["tool"]["flwr"]["app"]
    assert project["project"]["dependencies"] == []
    assert set(app["components"].values()) == {
        "dcfl.flower.deploy.server_app:app",
        "dcfl.flower.client_app:app",
    }
    assert app["config"] == {
        "experiment": experiment,
        "resume": "",
        "sites": "2",
        "code": "",
        "asks": "",
    }


def test_an_empty_folder_is_filled_and_a_full_one_refused(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    with pytest.raises(ConfigError, match="not empty"):
        write_bundle(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="not empty"):
        write_bundle(tmp_path / "file")


def test_flower_accepts_the_bundle(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "app")
    config, warnings = load_and_validate(folder / "pyproject.toml")
    assert not warnings
    assert config["project"]["name"] == "dcfl-app"
    assert len(build_fab_from_disk(folder)) < 10_000
