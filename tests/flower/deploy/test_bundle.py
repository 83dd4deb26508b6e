from __future__ import annotations

import tomllib
from pathlib import Path

from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

from dcfl.flower.deploy.submission import write_bundle


def test_the_bundle_is_one_file_that_points_into_dcfl(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "app")
    assert [path.name for path in folder.iterdir()] == ["pyproject.toml"]
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    app = project["tool"]["flwr"]["app"]
    assert project["project"]["dependencies"] == []
    assert set(app["components"].values()) == {
        "dcfl.flower.deploy.server_app:app",
        "dcfl.flower.client_app:app",
    }
    assert app["config"] == {
        "experiment": "",
        "resume": "",
        "sites": "",
        "code": "",
        "asks": "",
    }


def test_flower_accepts_the_bundle(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "app")
    config, warnings = load_and_validate(folder / "pyproject.toml")
    assert not warnings
    assert config["project"]["name"] == "dcfl-app"
    assert len(build_fab_from_disk(folder)) < 10_000
