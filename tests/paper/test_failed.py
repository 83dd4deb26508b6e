"""A method that diverges has a result: that it did."""

from dataclasses import replace
from pathlib import Path

from dcfl.comparisons.cell_worker import answers
from dcfl.comparisons.cells import FAILED, CellFolder
from dcfl.comparisons.trainer import Trainer
from dcfl.config import apply, as_tables, to_toml
from dcfl.paper.recipe import RecipeCell
from dcfl.paper.recipe_book import RECIPES
from dcfl.paper.reproduction_files import write_results
from dcfl.paper.results import Results
from dcfl.paper.scales import SMOKE


def diverging(tmp_path: Path) -> CellFolder[RecipeCell]:
    cell = next(iter(RECIPES["ablation"].cells(SMOKE, [0])))
    wild = {"training": {"lr": 1e30, "max_grad_norm": 0.0}, "federation": {"rounds": 4}}
    return CellFolder(replace(cell, experiment=apply(cell.experiment, wild)), tmp_path / cell.name)


def test_it_is_said_once_and_not_tried_again(tmp_path: Path) -> None:
    cell_folder = diverging(tmp_path)
    *_, answer = answers(Trainer(), cell_folder.path, to_toml(as_tables(cell_folder.experiment)))
    assert answer["state"] == "failed"
    again = CellFolder(cell_folder.cell, cell_folder.path)
    assert again.ended
    assert not again.finished
    assert again.rounds_left == 0
    assert again.failed == answer["why"] == (cell_folder.path / FAILED).read_text()


def test_the_tables_name_it(tmp_path: Path) -> None:
    cell_folder = diverging(tmp_path)
    list(answers(Trainer(), cell_folder.path, to_toml(as_tables(cell_folder.experiment))))
    results = Results(RECIPES["ablation"], SMOKE, [CellFolder(cell_folder.cell, cell_folder.path)])
    write_results(results, tmp_path)
    assert f"{cell_folder.cell.name} failed: no client" in (tmp_path / "ablation.md").read_text()


def test_a_missing_data_set_is_nobodys_result(tmp_path: Path) -> None:
    cell_folder = diverging(tmp_path)
    elsewhere = apply(
        cell_folder.experiment, {"data": {"dataset": "cifar10", "path": str(tmp_path)}}
    )
    *_, answer = answers(Trainer(), cell_folder.path, to_toml(as_tables(elsewhere)))
    assert answer["state"] == "failed"
    assert not CellFolder(cell_folder.cell, cell_folder.path).ended
