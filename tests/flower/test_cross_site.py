"""Every model on every site's test pictures, where sites lend each other their personal parts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

import dcfl
from dcfl.config import as_tables, to_toml
from dcfl.errors import SiteRefusal
from dcfl.flower import codec
from dcfl.flower.client_app import app
from dcfl.flower.codec import Task
from dcfl.flower.node_config import NodeConfig
from dcfl.flower.site_failures import Refusal
from dcfl.report.client_sections import personal_section
from dcfl.runs.folder import RecordedRun
from tests.flower.sites_in_process import Sites, remote_experiment
from tests.trained.test_client_numbers import SETTINGS, SITES, scans

__all__ = ["scans"]  # a fixture

AGREED: dict[str, Any] = {
    **SETTINGS,
    "data.mean": [0.5, 0.5, 0.5],
    "data.std": [0.25, 0.25, 0.25],
    "federation.personal": ["norms"],
    "federation.rounds": 3,
    "model.norm": "batch",
}
LENDS = {"lend": "personal"}


@pytest.fixture(scope="module")
def together(scans: Path, tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    """All pictures in one place."""
    out = tmp_path_factory.mktemp("together") / "run"
    data = {"data.dataset": f"sites:{scans}"}
    return RecordedRun.open(dcfl.run(method="fedavg", out=out, **AGREED, **data).folder)


def at_sites(scans: Path, tmp_path: Path, *rules: dict[str, Any]) -> tuple[Sites, RecordedRun]:
    folders = [scans / site for site in SITES]
    kept = [{"memories": str(tmp_path / f"kept-{site}")} for site in SITES]
    trial = Sites(folders, [{**own, **rule} for own, rule in zip(kept, rules, strict=True)])
    changes = {"data.class_names": ["healthy", "lesion"], "data.clients": 3, **AGREED}
    return trial, trial.train(remote_experiment(tmp_path / "out", **changes))


def crossed(run: RecordedRun) -> list[list[str]]:
    section = personal_section([run], {run: ""})
    assert section is not None
    assert section.pictures[-1].chart is not None
    return [[*row] for row in section.tables[-1].rows]


def test_sites_that_lend_have_the_matrix_of_a_simulation(
    together: RecordedRun, scans: Path, tmp_path: Path
) -> None:
    trial, run = at_sites(scans, tmp_path, LENDS, LENDS, LENDS)
    assert run.summary is not None
    assert together.summary is not None
    assert run.summary.weights_sha256 == together.summary.weights_sha256
    assert [row.on_sites for row in run.personal] == [row.on_sites for row in together.personal]
    assert any(min(row.on_sites) < max(row.on_sites) for row in run.personal)  # scanners differ
    shown, wanted = crossed(run), crossed(together)
    assert [row[1:] for row in shown] == [row[1:] for row in wanted]
    asked = Counter(entry.asked for entry in trial.history(0).entries)
    assert (asked["query.personal"], asked["evaluate.lent"]) == (1, 2)
    assert not (run.folder / "personal").exists()  # lent for scoring, and not kept


def test_what_is_not_lent_stays_and_is_shown_as_withheld(scans: Path, tmp_path: Path) -> None:
    trial, run = at_sites(scans, tmp_path, LENDS, {}, {"withhold": "scores"})
    east, north, west = run.personal
    assert (east.withheld, north.withheld) == ((), ("personal",))
    assert west.withheld == ("personal", "scores")
    assert all(one is not None for one in east.on_sites[:2])
    assert north.on_sites == (None, north.personal_accuracy, None)
    assert crossed(run)[2:] == [
        ["client 1", "withheld", f"{north.personal_accuracy:.2f}", "withheld"],
        ["client 2", "withheld", "withheld", "withheld"],
    ]
    assert "evaluate.lent" in {entry.asked for entry in trial.history(1).entries}
    for place in (1, 2):
        assert "query.personal" not in {entry.asked for entry in trial.history(place).entries}


def test_limits_of_a_site_hold_for_scores_of_others_too(scans: Path, tmp_path: Path) -> None:
    rules = {**LENDS, "rounds": 1, "memories": str(tmp_path / "kept")}
    trial, run = at_sites(scans, tmp_path, rules, LENDS, LENDS)
    asked = [e.outcome for e in trial.history(0).entries if e.asked == "evaluate.lent"]
    assert asked == ["answered", "answered"]  # once more than training: a third would be refused
    assert run.personal[1].on_sites[0] is not None


@pytest.mark.parametrize(
    ("rule", "refusal"),
    [
        ({}, Refusal.NOT_LENT),
        ({**LENDS, "privacy-noise": 1.0}, Refusal.NOISE_DEMANDED),
        ({**LENDS, "privacy-epsilon": 8.0}, Refusal.PRIVACY_DEMANDED),
        ({**LENDS, "secure-sum": 3}, Refusal.SUM_DEMANDED),
    ],
)
def test_a_part_does_not_leave_against_the_rules(
    rule: dict[str, Any], refusal: Refusal, scans: Path, tmp_path: Path
) -> None:
    """Also not for an operator who asks for it all the same."""
    node = {
        "data": f"folder:{scans / 'east'}",
        "memories": str(tmp_path),
        "partition-id": 0,
        **rule,
    }
    changes = {"data.class_names": ["healthy", "lesion"], "data.clients": 3, **AGREED}
    experiment = to_toml(as_tables(remote_experiment(tmp_path / "out", **changes)))
    context = Context(1, 1, node, RecordDict(), {"experiment": experiment})
    asked = codec.message(Task("a" * 32, 3, 0, memory_round=3).ticketed())
    told = app(Message(asked, dst_node_id=1, message_type="query.personal"), context).content
    assert {*told} == {"task", "failed", "record"}
    assert told["failed"]["reason"].startswith(refusal.value.split("{")[0])


def test_a_node_config_lends_its_part_or_nothing() -> None:
    assert NodeConfig.read({"lend": "personal"}).rules.lends
    assert not NodeConfig.read({}).rules.lends
    with pytest.raises(SiteRefusal, match='lend in its node config is not "personal"'):
        NodeConfig.read({"lend": "weights"})
