"""`dcfl theory` as a person types it."""

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from dcfl.cli.paper_verbs import theory
from dcfl.errors import ConfigError

app = typer.Typer()
app.command()(theory)
QUICK = ["--repetitions", "200", "--samples", "8,64,128,256,512"]


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run, which was not there before, and what was printed."""
    out = tmp_path_factory.mktemp("theory") / "new" / "folder"
    done = call(*QUICK, "--out", str(out), "--figures", str(out / "print"))
    assert done.exit_code == 0
    return out, done.output


@pytest.fixture
def folder(written: tuple[Path, str]) -> Path:
    return written[0]


def test_the_numbers_as_json(folder: Path) -> None:
    values = json.loads((folder / "theory.json").read_text())
    three, many = values["studies"]
    assert (three["dimension"], many["dimension"]) == (3, 128)
    assert three["limit"] == pytest.approx(-1.40478, abs=1e-5)
    assert [p["negatives"] for p in three["points"]] == [8, 64, 128, 256, 512]
    assert [(b["positives"], b["negatives"]) for b in three["batches"]] == [
        (1, 63),
        (1, 42),
        (21, 42),
    ]


def test_the_page_needs_nothing_else(folder: Path) -> None:
    page = (folder / "theory.html").read_text()
    assert page.count("data-chart=") == 2
    for said in ("Theorem 1", "Proposition 1", "42 negatives", "Dimension 128"):
        assert said in page
    assert not re.search(r"(src|href)=[\"']?http", page)
    assert str(folder.parent) not in page
    assert len([*(folder / "print").glob("dimension-*.pdf")]) == 2


def test_the_same_seed_gives_the_same_bytes_and_json_is_all_that_is_printed(
    folder: Path, tmp_path: Path
) -> None:
    done = call(*QUICK, "--out", str(tmp_path), "--json")
    for name in ("theory.html", "theory.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    values = json.loads((folder / "theory.json").read_text())
    assert json.loads(done.stdout) == {**values, "folder": str(tmp_path)}


def test_what_is_printed(written: tuple[Path, str]) -> None:
    out, printed = written
    for said in (
        "−1.40478",
        "bound / RMS",
        "1 positive, 63 negatives",
        "21 positives, 42 negatives",
        "keeps 22 % of its pull",
        f"page  {out / 'theory.html'}",
    ):
        assert " ".join(said.split()) in " ".join(printed.split())  # lines may be broken anywhere


def test_a_cold_loss_does_not_reach_its_regime(tmp_path: Path) -> None:
    words = ["--temperature", "0.05", "--dimension", "128", "--samples", "4,64"]
    done = call(*words, "--repetitions", "200", "--out", str(tmp_path))
    assert done.exit_code == 0
    assert "too few points" in done.output
    assert "nan" not in done.output
    assert "inf" not in done.output.split()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--temperature", "0"], "temperature must be from 0.01"),
        (["--temperature", "1e-9"], "temperature must be from 0.01"),
        (["--dimension", "3,1"], "dimension must be from 2"),
        (["--dimension", "many"], "--dimension takes whole numbers such as 0,1,2, not 'many'"),
        (["--samples", "4,,8"], "--samples takes whole numbers"),
        (["--samples", "4,0"], "1 or more negatives"),
        (["--repetitions", "1"], "repetitions must be at least 100"),
        (["--seed", "-1"], "seed must be 0 or more"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    words: list[str], said: str, tmp_path: Path
) -> None:
    done = call(*words, "--out", str(tmp_path / "none"))
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (tmp_path / "none").exists()
