"""The snippets of docs/how-do-i.md, run in their order as a reader would."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import dcfl
from tests.site.blocks import ROOT, blocks


@pytest.mark.slow
def test_every_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DCFL_CACHE", str(tmp_path / "cache"))
    said: dict[str, Any] = {"__name__": "how_do_i"}
    snippets = [one for one in blocks(ROOT / "docs" / "how-do-i.md") if one.language == "python"]
    assert len(snippets) >= 10
    for snippet in snippets:
        exec(compile(snippet.text, str(snippet), "exec"), said)
    assert said["run"].partition_counts.shape == (20, 10)
    assert said["logged"].rounds[-1].logged["entropy"] > 0
    assert said["features"].shape[0] == len(said["labels"])
    assert said["ablation"].groups[0].label == "fedavg"
    assert dcfl.evaluate(said["trained"].folder).images == len(said["data"].test)


@pytest.mark.parametrize("owner", [dcfl.Client, dcfl.ServerStep, dcfl.ClientUpdate])
def test_help_knows_every_field(owner: Any) -> None:
    told = str(owner.__doc__)
    for field in dataclasses.fields(owner):
        assert f"`{field.name}`" in told, field.name
