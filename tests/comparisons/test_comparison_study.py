"""Comparisons: planned, trained here or in other processes, resumed and added to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dcfl
from dcfl.comparisons.comparison import Comparison, ComparisonPlan, plan_comparison
from dcfl.comparisons.crew import Crew, News, can_travel, files_to_send, register_sent
from dcfl.config import experiment_from
from dcfl.errors import ConfigError, Interrupted, RunFolderError, TooFewClients
from dcfl.experiment import Experiment
from dcfl.methods import METHODS
from dcfl.methods.loading import load_methods, register_methods
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import RoundRow
from dcfl.runs.run import Run
from tests.comparisons.small_sweeps import TINY

OWN = "import dcfl\nclass {name}(dcfl.Method):\n    pass\n"


def tiny(out: Path, **changes: Any) -> Experiment:
    return experiment_from(None, {**TINY, "output": {"dir": str(out)}, **changes})


def weights(compared: Comparison) -> dict[str, str]:
    runs = [run for group in compared.groups for run in group.runs]
    return {run.folder.name: run.summary.weights_sha256 for run in runs if run.summary}


def test_a_plan_has_one_run_per_method_and_seed() -> None:
    cells = plan_comparison(tiny(Path("out")), ["fedavg", "dcfl-pw"], [3, 4]).cells
    names = [cell.name for cell in cells]
    assert names == ["fedavg-seed3", "dcfl-pw-seed3", "fedavg-seed4", "dcfl-pw-seed4"]
    one = cells[2].experiment
    assert (one.method.name, one.federation.seed) == ("fedavg", 4)
    assert Path(one.output.dir) == Path("out/fedavg-seed4")
    assert len({cell.experiment.data for cell in cells}) == 1
    for methods, seeds in ((["fedavg", "fedavg"], [0]), (["fedavg"], [1, 1])):
        with pytest.raises(ConfigError, match="named once"):
            plan_comparison(Experiment(), methods, seeds)
    with pytest.raises(ConfigError, match="no method"):
        plan_comparison(Experiment(), ["fedavg", "nope"], [0])


def test_settings_belong_to_a_method() -> None:
    methods = ["fedavg", "fedprox(mu=0.01)", "fedprox(mu=1, training.lr=0.02)", "moon"]
    cells = plan_comparison(tiny(Path("out")), methods, [0], {"mu": 0.5}).cells
    found = {cell.name: cell.experiment for cell in cells}
    assert list(found) == [
        "fedavg-seed0",
        "fedprox-mu0.01-seed0",
        "fedprox-mu1-lr0.02-seed0",
        "moon-seed0",
    ]
    mus = [getattr(one.method, "mu", None) for one in found.values()]
    assert mus == [None, 0.01, 1.0, 0.5]  # a method's own comes before the common one
    rates = [one.training.lr for one in found.values()]
    assert rates == [tiny(Path("out")).training.lr] * 2 + [0.02] + rates[:1]
    objects = [METHODS["fedprox"](mu=mu) for mu in (0.1, 0.2)]  # type: ignore[call-arg]
    names = [cell.name for cell in plan_comparison(Experiment(), objects, [0]).cells]
    assert names == ["fedprox-mu0.1-seed0", "fedprox-mu0.2-seed0"]


@pytest.mark.parametrize(
    ("method", "fields", "why"),
    [
        ("fedprox(mi=1)", {}, "method.mi: did you mean mu"),
        ("fedprox(data.alpha=1)", {}, r"all methods share \[data\]"),
        ("fedprox(mu=1", {}, "is no name for a method, nor NAME"),
        ("fedprox(mu)", {}, "not of the form"),
        ("fedprox", {"temperature": 1}, "no method of this comparison has such a field"),
        ("fedprox", {"name": "moon"}, "named with --methods"),
    ],
)
def test_a_setting_that_no_method_has_is_refused(
    method: str, fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        plan_comparison(Experiment(), ["fedavg", method], [0], fields)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """In two processes."""
    out = tmp_path_factory.mktemp("compared") / "cmp"
    return dcfl.compare(tiny(out), methods=["fedavg", "fedprox"], parallel=2)


def test_the_bits_do_not_depend_on_who_trains(compared: Comparison, tmp_path: Path) -> None:
    here = dcfl.compare(tiny(tmp_path / "here"), methods=["fedavg", "fedprox"], parallel=1)
    assert weights(here) == weights(compared)
    alone = dcfl.run(tiny(tmp_path / "alone"))
    assert weights(compared)["fedprox-seed0"] == alone.summary.weights_sha256


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that are trained in this process."""
    names: list[str] = []
    rounds = Run.rounds

    def noted(run: Run) -> Iterator[RoundRow]:
        names.append(run.folder.name)
        return rounds(run)

    monkeypatch.setattr(Run, "rounds", noted)
    return names


def test_methods_and_seeds_may_be_added(tmp_path: Path, trained: list[str]) -> None:
    first = dcfl.compare(tiny(tmp_path), methods=["fedavg"], parallel=1)
    assert [group.label for group in first.groups] == ["fedavg"]
    trained.clear()
    more = dcfl.compare(tiny(tmp_path), methods=["fedavg", "moon"], seeds=(0, 1), parallel=1)
    assert trained == ["moon-seed0", "fedavg-seed1", "moon-seed1"]
    assert [(group.label, group.seeds) for group in more.groups] == [("fedavg", 2), ("moon", 2)]
    # What was there before belongs to the comparison, though it was not asked for this time.
    trained.clear()
    again = dcfl.compare(tiny(tmp_path), methods=["moon"], parallel=1)
    assert not trained
    assert [(group.label, group.seeds) for group in again.groups] == [("moon", 2), ("fedavg", 2)]
    assert "fedavg" in again.report.read_text()


def test_another_experiment_in_the_folder_is_refused(compared: Comparison, tmp_path: Path) -> None:
    other = {"federation": {"rounds": 3, "participation": 0.5}}
    with pytest.raises(RunFolderError, match=r"another comparison.*rounds was 2 and would be 3"):
        dcfl.compare(tiny(compared.folder, **other), methods=["moon"])
    with pytest.raises(RunFolderError, match=r"another run: method\.mu was"):
        dcfl.compare(
            tiny(compared.folder, method={"name": "fedprox", "mu": 7.0}), methods=["fedprox"]
        )
    (tmp_path / "fedavg-seed0").mkdir()  # what a kill may leave
    plan_comparison(tiny(tmp_path), ["fedavg"], ()).check()
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunFolderError, match="not empty"):
        dcfl.compare(tiny(tmp_path), methods=["fedavg"])
    assert not (compared.folder / "moon-seed0").exists()


def stopped_in(planned: ComparisonPlan, name: str) -> None:
    """Carry it out, until this run has had a round."""
    crews: list[Crew] = []

    def guard(crew: Crew) -> AbstractContextManager[None]:
        crews.append(crew)
        return nullcontext()

    def show(news: News) -> None:
        if (news.name, news.round) == (name, 1):
            crews[0].stop()

    planned.carry_out(1, show, guard)


def test_stopped_it_goes_on(compared: Comparison, tmp_path: Path) -> None:
    planned = plan_comparison(tiny(tmp_path), ["fedavg", "fedprox"], ())
    with pytest.raises(Interrupted, match=f"--out {tmp_path} continues"):
        stopped_in(planned, "fedprox-seed0")
    assert not RecordedRun.open(tmp_path / "fedprox-seed0").finished
    again = dcfl.compare(tiny(tmp_path), methods=["fedavg", "fedprox"], parallel=1)
    assert weights(again) == weights(compared)


def test_lost_clients_cost_one_method(tmp_path: Path, trained: list[str]) -> None:
    wrecked = tiny(
        tmp_path,
        method={"name": "dcfl-sw", "mu": 1e37},
        federation={"rounds": 4},
        training={"epochs": 1, "batch_size": 16, "max_grad_norm": 0.0},
    )
    found = dcfl.compare(wrecked, methods=["dcfl-sw", "fedavg"], parallel=1)
    assert list(found.failures) == ["dcfl-sw-seed0"]
    assert isinstance(found.failures["dcfl-sw-seed0"], TooFewClients)
    trained.clear()
    again = dcfl.compare(wrecked, methods=["dcfl-sw", "fedavg"], parallel=1)
    assert not trained
    assert str(again.failures["dcfl-sw-seed0"]) == str(found.failures["dcfl-sw-seed0"])


@dataclass(frozen=True)
class Mine(dcfl.Method):
    """Of this file: no other process could know it."""

    name = "mine"
    mu: float = 0.5


@pytest.mark.slow
def test_objects_that_cannot_travel_train_here(tmp_path: Path) -> None:
    assert not can_travel(tiny(tmp_path).__class__(method=Mine()))
    found = dcfl.compare(tiny(tmp_path), methods=["fedavg", Mine(), "fedprox"], parallel=2)
    assert [group.label for group in found.groups] == ["fedavg", "mine", "fedprox"]
    assert weights(found)["mine-seed0"] == weights(found)["fedavg-seed0"]
    assert "mine" not in METHODS


def test_an_own_method_goes_on_too(tmp_path: Path) -> None:
    planned = plan_comparison(tiny(tmp_path), [Mine()], ())
    with pytest.raises(Interrupted):
        stopped_in(planned, "mine-seed0")
    found = dcfl.compare(tiny(tmp_path), methods=[Mine()])
    assert weights(found)


@pytest.mark.slow
def test_files_travel_unless_they_were_edited(tmp_path: Path) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(OWN.format(name="Theirs"))
    (theirs,) = load_methods(file).values()
    assert not can_travel(Experiment(method=theirs()))  # no name stands for it
    register_methods(file)
    assert can_travel(Experiment(method=theirs()))
    found = dcfl.compare(tiny(tmp_path / "a"), methods=["fedavg", "theirs"], parallel=2)
    assert weights(found)["theirs-seed0"] == weights(found)["fedavg-seed0"]
    sent = files_to_send(Experiment(method=theirs()))
    register_sent(sent)
    file.write_text(OWN.format(name="Theirs") + "# edited\n")
    with pytest.raises(ConfigError, match="edited since"):
        register_sent(sent)
