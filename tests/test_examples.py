"""What the README and the examples show, runs as shown."""

import ast
import re
import runpy
from pathlib import Path

import pytest

import dcfl
from dcfl.config import experiment_from
from dcfl.local_training import LocalTraining
from tests.site.blocks import PAGES

ROOT = Path(__file__).parent.parent


EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}
MARKED = {
    "flower_simulation": pytest.mark.flower,
    "over_a_setting": pytest.mark.slow,
    "personal_models": pytest.mark.slow,
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKED.get(name, ())) for name in EXAMPLES]
)
def test_examples_run(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    short = re.sub(r'"rounds": \d+', '"rounds": 1', EXAMPLES[name].read_text())
    copy = tmp_path / f"{name}.py"
    copy.write_text(short.replace("seeds=[0, 1, 2]", "seeds=[0, 1]"))
    runpy.run_path(str(copy), run_name="__main__")
    shown = capsys.readouterr().out
    assert "accuracy" in shown
    assert "bit: False" not in shown


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_use_public_names_alone(name: str) -> None:
    for node in ast.walk(ast.parse(EXAMPLES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dcfl":
            assert node.module == "dcfl"
            assert {alias.name for alias in node.names} <= {*dcfl.__all__}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id != "dcfl" or node.attr in dcfl.__all__


def test_the_readme_shows_the_method_of_the_example() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    example = (ROOT / "examples" / "your_method.py").read_text()
    assert shown[1].strip() in example


def test_the_readmes_python_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    code = first.replace('"rounds": 20', '"rounds": 1')
    names: dict[str, object] = {}
    exec(code, names)  # the point is that a reader can paste it
    assert isinstance(names["model"], dcfl.models.FeatureModel)


def test_the_readmes_verdict_is_that_of_the_stored_comparison() -> None:
    """All of its sentences: `dcfl demo` opens a page with the numbers of `make run`."""
    shown = " ".join((ROOT / "README.md").read_text().split())
    page = (ROOT / "dcfl" / "report" / "demo.html").read_text()
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    told = re.findall(
        r"(?:dcfl-sw|dcfl-pw|scaffold) is [^(]{,40} \([^)]*95 % interval[^)]*\)\.", text
    )
    assert len(told) == 3
    assert all(sentence in shown for sentence in told)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "tiny-imagenet"])
def test_the_papers_configs_are_the_papers(name: str) -> None:
    experiment = experiment_from(ROOT / "configs" / f"{name}.toml")
    assert experiment.data.dataset == name
    assert (experiment.data.clients, experiment.federation.participation) == (100, 0.05)
    assert experiment.model.name == "resnet18"
    assert experiment.training == LocalTraining()
    assert experiment.method.mu == (1 if name == "tiny-imagenet" else 10)  # type: ignore[attr-defined]


def test_the_config_for_own_images_is_sound() -> None:
    assert experiment_from(ROOT / "configs" / "own-images.toml").data.dataset == "folder:pictures"


def test_the_readmes_first_screen_has_the_two_commands() -> None:
    first = (ROOT / "README.md").read_text().splitlines()[:20]
    assert any("make run" in line for line in first)
    assert any("make test" in line for line in first)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_placeholder_is_left_and_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"^(TABLE|PILOT|TODO.*)$", text, re.MULTILINE)
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target
