"""A method that diverges has a result: that it did."""

from dataclasses import replace
from pathlib import Path

from dcfl.comparisons.cells import FAILED, CellFolder
from dcfl.comparisons.trainer import Trainer
from dcfl.config import apply
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
    *_, news = Trainer().train(cell_folder)
    assert news.state == "failed"
    again = CellFolder(cell_folder.cell, cell_folder.path)
    assert again.ended
    assert not again.finished
    assert again.rounds_left == 0
    assert again.failed == news.why == (cell_folder.path / FAILED).read_text()


def test_the_tables_name_it(tmp_path: Path) -> None:
    cell_folder = diverging(tmp_path)
    list(Trainer().train(cell_folder))
    results = Results(RECIPES["ablation"], SMOKE, [CellFolder(cell_folder.cell, cell_folder.path)])
    write_results(results, tmp_path)
    assert f"{cell_folder.cell.name} failed: no client" in (tmp_path / "ablation.md").read_text()


def test_a_missing_data_set_is_nobodys_result(tmp_path: Path) -> None:
    cell_folder = diverging(tmp_path)
    elsewhere = {"data": {"dataset": "cifar10", "path": str(tmp_path)}}
    cell = replace(cell_folder.cell, experiment=apply(cell_folder.cell.experiment, elsewhere))
    *_, news = Trainer().train(CellFolder(cell, cell_folder.path))
    assert news.state == "failed"
    assert not CellFolder(cell_folder.cell, cell_folder.path).ended
