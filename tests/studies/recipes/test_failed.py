"""A method that diverges has a result: that it did."""

from dataclasses import replace
from pathlib import Path

from dcfl.config import apply, as_tables, to_toml
from dcfl.studies.recipes.cell_worker import Worker
from dcfl.studies.recipes.cells import FAILED, Kept
from dcfl.studies.recipes.paper import RECIPES
from dcfl.studies.recipes.reproduction_page import write_results
from dcfl.studies.recipes.results import Results
from dcfl.studies.recipes.scales import SMOKE


def diverging(tmp_path: Path) -> Kept:
    cell = next(iter(RECIPES["ablation"].cells(SMOKE, [0])))
    wild = {"training": {"lr": 1e30, "max_grad_norm": 0.0}, "federation": {"rounds": 4}}
    return Kept(replace(cell, experiment=apply(cell.experiment, wild)), tmp_path / cell.name)


def test_it_is_said_once_and_not_tried_again(tmp_path: Path) -> None:
    kept = diverging(tmp_path)
    answer = Worker().train(kept.folder, to_toml(as_tables(kept.experiment)))
    assert answer["state"] == "failed"
    again = Kept(kept.cell, kept.folder)
    assert again.ended
    assert not again.finished
    assert again.rounds_left == 0
    assert again.failed == answer["why"] == (kept.folder / FAILED).read_text()


def test_the_tables_name_it(tmp_path: Path) -> None:
    kept = diverging(tmp_path)
    Worker().train(kept.folder, to_toml(as_tables(kept.experiment)))
    results = Results(RECIPES["ablation"], SMOKE, [Kept(kept.cell, kept.folder)])
    write_results(results, tmp_path)
    assert f"{kept.cell.name} failed: no client" in (tmp_path / "ablation.md").read_text()


def test_a_missing_data_set_is_nobodys_result(tmp_path: Path) -> None:
    kept = diverging(tmp_path)
    elsewhere = apply(kept.experiment, {"data": {"dataset": "cifar10", "path": str(tmp_path)}})
    answer = Worker().train(kept.folder, to_toml(as_tables(elsewhere)))
    assert answer["state"] == "failed"
    assert not Kept(kept.cell, kept.folder).ended
