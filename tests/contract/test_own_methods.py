"""Methods as users write them, each in a file of its own: on every engine, and after a resume, they
have the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

import dcfl
from dcfl.local_training import LocalTraining
from dcfl.methods import METHODS, Method
from dcfl.methods.loading import load_methods
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run
from dcfl.system.tensor_files import read_tensors
from dcfl.tensors import sha256
from dcfl.testing.contract import check_against, check_method
from dcfl.testing.toys import MIXED, toy_client, toy_model, visit
from tests.engines.runs import bits, federation, made_ready, trained
from tests.flower.in_process import in_process
from tests.parity.test_flower import without_bytes
from tests.toys import PERSONAL

FILES = sorted((Path(__file__).parent / "own_methods").glob("*.py"))
OWN = {path.stem: next(iter(load_methods(path).values())) for path in FILES}
# Ours with a model of every client's own, or a part, keep the same promises.
ALL = {**OWN, **{f"built-in {name}": METHODS[name] for name in PERSONAL}}
TWO_EPOCHS = LocalTraining(epochs=2, batch_size=8, lr=0.05)
SETTINGS = {
    "rounds": 4,
    "participation": 0.7,
    "dataset": federation((3, 10, 5, 8)),
    "training": TWO_EPOCHS,
}


# A model beside the shared one, a part, and a start of its own; the others of ours are for CI.
OFTEN = {*OWN, "built-in ditto", "built-in fedrep", "built-in fedala"}


@pytest.fixture(
    params=[pytest.param(n, marks=() if n in OFTEN else pytest.mark.slow) for n in ALL],
    name="method",
)
def own_method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Method:
    """Known by name, as `--method-file` makes it."""
    monkeypatch.setitem(METHODS, ALL[request.param].name, ALL[request.param])
    return ALL[request.param]()


@pytest.mark.parametrize("name", OWN)
def test_all_promises_are_kept(name: str) -> None:
    assert [verdict for verdict in check_method(OWN[name]) if not verdict.holds] == []


@pytest.mark.parametrize("name", ["fedntd", "fedlc"])
def test_it_computes_what_ours_does(name: str) -> None:
    path = next(path for path in FILES if path.stem == name)
    for verdicts in check_against(name, path).values():
        assert [verdict for verdict in verdicts if not verdict.holds] == []


def test_fedbabu_leaves_the_classifier_as_it_was() -> None:
    before, after = toy_model().state_dict(), visit(OWN["fedbabu"](), toy_client(MIXED)).update
    moved = {name for name, tensor in after.weights.items() if not tensor.equal(before[name])}
    assert not any(name.startswith("classifier") for name in moved)
    assert any(name.startswith("convolutions") for name in moved)


def personal(run: Run) -> dict[str, str]:
    """The clients' own models, and how they are scored."""
    files = sorted((run.folder / "personal").glob("*"))
    rows = [row.to_json() for row in RecordedRun.open(run.folder).personal]
    return {
        **{path.name: sha256(read_tensors(path)[0]) for path in files},
        **({"rows": rows} if rows else {}),
    }


def finish(run: Run, stop_after: int = 0) -> None:
    for row in run.rounds():
        if row.round == stop_after:
            run.stop()


def test_every_engine_has_the_bits_of_one_process(method: Method, tmp_path: Path) -> None:
    alone = trained(tmp_path / "alone", method, 1, **SETTINGS)
    pooled = trained(tmp_path / "pool", method, 2, **SETTINGS)
    assert bits(pooled) == bits(alone)
    assert personal(pooled) == personal(alone)
    flower = trained(
        tmp_path / "flower", method, 1, connect=in_process(2, same_runner=True), **SETTINGS
    )
    assert without_bytes(flower) == without_bytes(alone)
    assert personal(flower) == personal(alone)
    assert bool(personal(alone)) == bool(method.personal or method.has_own_model)


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(method: Method, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", method, 1, **SETTINGS)
    run = made_ready(tmp_path / "parts", method, 1, **SETTINGS)
    with pytest.raises(dcfl.errors.Interrupted):
        finish(run, stop_after=2)
    resumed = Run.resume(run.folder, SETTINGS["dataset"], None)
    finish(resumed)
    assert bits(resumed) == bits(whole)
    assert personal(resumed) == personal(whole)
