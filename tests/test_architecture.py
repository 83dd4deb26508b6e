"""The rules of the house that a reader cannot see at a glance."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.metadata import version
from pathlib import Path

import pytest

import dcfl

PACKAGE = Path(dcfl.__file__).parent

# From the ground up. A file may import from its own layer and from those before it.
LAYERS = {
    "the vocabulary": "errors messages settings tensors seeding system",
    "the mathematics": "losses",
    "what is trained, on what": "models data",
    "a client's half of a round": "client methods local_training",
    "the server's half, and what came out": "server federation evaluation scores",
    "a run as a value": "privacy experiment config",
    "where clients train": "engines",
    "at Flower's nodes": "flower",
    "one run, many runs, their models and pages": "runs comparisons trained report trackers",
    "sites": "flower.deploy",
    "experiments about experiments": "analysis paper testing",
    "people": "cli __main__",
}
LEVELS = {room: level for level, rooms in enumerate(LAYERS.values()) for room in rooms.split()}

MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def level(module: str) -> int:
    inside = module.removeprefix("dcfl.")
    return LEVELS["flower.deploy" if inside.startswith("flower.deploy") else inside.split(".")[0]]


def imported(path: Path, also_later: bool = True) -> set[str]:
    """The modules of ours that a file imports: at the top, or also inside functions."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if also_later else tree.body
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dcfl"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return found - {"dcfl"}


def test_imports_point_one_way() -> None:
    upwards = {
        (own, module)
        for own, path in MODULES.items()
        if own != "dcfl"  # the public names, from wherever they live
        for module in imported(path)
        if level(module) > level(own)
    }
    assert not upwards


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = {
        own: imported(path, also_later=False) for own, path in MODULES.items() if own != "dcfl"
    }
    assert tuple(TopologicalSorter(graph).static_order())  # CycleError names the detour


def test_a_class_name_means_one_thing() -> None:
    """In the whole package; what begins with an underscore is its file's own."""
    homes: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in homes.items() if len(modules) > 1}


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_dcfl_is_cheap() -> None:
    assert not {"torch", "matplotlib", "numpy"} & modules_after("import dcfl, dcfl.cli.main")


@pytest.mark.slow
def test_only_figures_for_print_need_matplotlib(tmp_path: Path) -> None:
    folder = f"Path({str(tmp_path / 'run')!r})"
    assert "matplotlib" not in modules_after(
        "import dcfl; dcfl.run; dcfl.METHODS; dcfl.Experiment\n"
        "import dcfl.analysis.analysis_page, dcfl.paper.reproduction_files\n"
        "from pathlib import Path; from dcfl.report import write_report\n"
        f"from tests.report.folders import write_run; write_run({folder}); write_report({folder})"
    )
    assert (tmp_path / "run" / "report.html").is_file()


def test_rooms_can_be_reached_by_their_dotted_name() -> None:
    assert "dcfl.losses.contrastive" in modules_after(
        "import dcfl; dcfl.losses.decoupled_contrastive; dcfl.errors.DCFLError; dcfl.evaluation.ema"
    )


def test_public_names_are_there() -> None:
    assert all(hasattr(dcfl, name) for name in dcfl.__all__)
    assert set(dcfl.__all__) <= set(dir(dcfl))
    assert dcfl.__version__.startswith(f"{version('dcfl')}+")  # and which build it is
    with pytest.raises(AttributeError, match="nonsense"):
        dcfl.nonsense  # noqa: B018


def test_a_method_owns_its_upload() -> None:
    """Nobody else asks which kind of method it is: they call its hooks."""
    for module, path in MODULES.items():
        if not module.startswith("dcfl.methods"):
            assert "PrototypeMethod" not in path.read_text(), module
            assert "dcfl.methods.prototypes" not in imported(path), module


def test_no_method_contains_a_training_loop() -> None:
    """Comparing methods compares methods: the one local loop is in local_training.py."""
    for path in (PACKAGE / "methods").rglob("*.py"):
        tree = ast.parse(path.read_text())
        calls = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not calls & {"training_batches", "step", "SGD"}, path.name
