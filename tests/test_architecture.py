"""The rules of the house that a reader cannot see at a glance."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dcfl

PACKAGE = Path(dcfl.__file__).parent

# Each room may import from the rooms before it.
ORDER = [
    "printable", "errors", "processes", "streams", "storage", "seeding", "messages", "weights",
    "tensor_files", "losses", "data", "models", "client", "methods", "local_training",
    "evaluation", "server", "federation", "privacy", "simulation", "experiment", "config",
    "identity", "assembly", "flower", "engines", "checkpoints", "resuming", "formats", "recording",
    "comparison", "report", "running", "checking", "scaffolding", "terminal", "words",
    "deployment", "bench", "doctor", "theory", "analysis", "recipes", "cli", "__main__",
]  # fmt: skip


# The part of the Flower room that has a whole run in it, and what comes after.
DEPLOYMENT = {f"flower.{name}" for name in ("server_app", "submission", "commands")}


def room(module: str) -> str:
    _, _, inside = module.partition(".")
    return "deployment" if inside in DEPLOYMENT else inside.split(".")[0]


def imported_rooms(path: Path) -> set[str]:
    """The rooms that a file imports, at the top or inside functions."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dcfl"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            inner = node.module in ("dcfl", "dcfl.flower")
            rooms |= {room(name) for name in names} if inner else {room(node.module)}
    return rooms - {""}


# The peers' scripts run in environments of their own.
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent.name != "peers")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    if path == PACKAGE / "__init__.py":
        return
    own = room(".".join(("dcfl", *path.relative_to(PACKAGE).with_suffix("").parts)))
    allowed = ORDER[: ORDER.index(own) + 1]
    assert imported_rooms(path) <= set(allowed)


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_dcfl_is_cheap() -> None:
    assert not {"torch", "matplotlib", "numpy"} & modules_after("import dcfl, dcfl.cli")


def test_training_needs_no_plots() -> None:
    assert "matplotlib" not in modules_after("import dcfl; dcfl.run; dcfl.METHODS; dcfl.Experiment")


def test_rooms_can_be_reached_by_their_dotted_name() -> None:
    assert "dcfl.losses.contrastive" in modules_after(
        "import dcfl; dcfl.losses.decoupled_contrastive; dcfl.errors.DCFLError; dcfl.evaluation.ema"
    )


def test_public_names_are_there() -> None:
    assert all(hasattr(dcfl, name) for name in dcfl.__all__)
    assert set(dcfl.__all__) <= set(dir(dcfl))
    with pytest.raises(AttributeError, match="nonsense"):
        dcfl.nonsense  # noqa: B018


@pytest.mark.parametrize("path", sorted((PACKAGE / "methods").glob("*.py")), ids=lambda p: p.name)
def test_no_method_contains_a_training_loop(path: Path) -> None:
    """Comparing methods compares methods: the one local loop is in local_training.py."""
    tree = ast.parse(path.read_text())
    calls = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not calls & {"training_batches", "step", "SGD"}
