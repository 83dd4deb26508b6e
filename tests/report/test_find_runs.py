from pathlib import Path

import pytest

from dcfl.errors import RunFolderError
from dcfl.report import find_runs, write_report
from tests.report.folders import write_run


def test_a_run_folder_is_its_only_run(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    assert [run.folder for run in find_runs(tmp_path / "run")] == [tmp_path / "run"]


def test_runs_below_a_folder_come_in_natural_order(tmp_path: Path) -> None:
    for name in ("seed10", "seed9", "a"):
        write_run(tmp_path / name)
    (tmp_path / "notes").mkdir()
    assert [run.folder.name for run in find_runs(tmp_path)] == ["a", "seed9", "seed10"]


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_a_folder_without_runs_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    for look in (find_runs, write_report):
        with pytest.raises(RunFolderError, match=name) as caught:
            look(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / name / "report.html").exists()


def test_a_folder_of_folders_of_runs_is_pointed_to(tmp_path: Path) -> None:
    """A sweep has its runs in `trials`, a reproduction in `cells`."""
    write_run(tmp_path / "sweep" / "trials" / "a")
    with pytest.raises(RunFolderError, match=r"holds no run.*there are runs in .*sweep/trials$"):
        find_runs(tmp_path / "sweep")


def test_no_folder_at_all_is_refused() -> None:
    with pytest.raises(RunFolderError, match="no folder given"):
        write_report()


def test_a_page_does_not_replace_what_a_run_has_written(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    before = (run.folder / "rounds.jsonl").read_bytes()
    with pytest.raises(RunFolderError, match="another name"):
        write_report(run.folder, out=run.folder / "rounds.jsonl")
    assert (run.folder / "rounds.jsonl").read_bytes() == before
