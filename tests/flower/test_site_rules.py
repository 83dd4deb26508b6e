"""A site's own limits: how often it answers, and what its answers of all runs may tell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from flwr.app import RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from dcfl.errors import DCFLError, SiteRefusal
from dcfl.flower import site_rules
from dcfl.flower.audit_log import AuditEntry, AuditLog
from dcfl.flower.codec import Task
from dcfl.flower.site_failures import Refusal
from dcfl.flower.site_rules import Answer, PrivacyBudget, Question, Release, SiteRules
from dcfl.privacy import PrivacySettings, spent
from tests.flower.sites_in_process import Sites, pictures, remote_experiment

RUN, OTHER = "a" * 32, "b" * 32
NOISY = {"privacy__clip": 1.0, "privacy__noise": 4.0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    disk = tmp_path_factory.mktemp("disk")
    return [pictures(disk / "north", 10, 10), pictures(disk / "south", 10, 10)]


@pytest.fixture
def sites(folders: list[Path], tmp_path: Path) -> Callable[..., Sites]:
    def trial(**rules: Any) -> Sites:
        own = {key.replace("_", "-"): value for key, value in rules.items()}
        logs = [{"audit": str(tmp_path / f"{place}.jsonl")} for place in range(2)]
        return Sites(folders, [{**logs[0], **own}, logs[1]])

    return trial


def answered(rules: SiteRules, run: str = RUN, client: int = 0, noise: float = 0.0) -> None:
    """A round of training, as far as the rules are concerned."""
    question = Question("train", Task(run, 1, client))
    release = Release(1, noise)
    rules.check(question)
    rules.check_release(question.task, release)
    rules.record(question, Answer(RecordDict(), release))


def refused(task: Callable[[], None], refusal: Refusal) -> None:
    with pytest.raises(SiteRefusal) as caught:
        task()
    assert str(caught.value).startswith(refusal.value.split("{")[0])


# How often


def test_rounds_of_a_run(tmp_path: Path) -> None:
    rules = SiteRules(rounds_per_run=2, log=AuditLog(tmp_path / "a.jsonl"))
    for run in (RUN, OTHER):
        answered(rules, run)
        answered(rules, run)
        refused(lambda run=run: answered(rules, run), Refusal.ROUNDS_OF_RUN_ANSWERED)  # type: ignore[misc]
    answered(rules, RUN, client=1)  # whose data is another's
    shared = SiteRules(rounds_per_run=2, one_owner=True, log=rules.log)
    refused(lambda: answered(shared, RUN, client=2), Refusal.ROUNDS_OF_RUN_ANSWERED)
    rules.check(Question("evaluate", Task(RUN, 1, 0)))  # is no round


def test_rounds_of_a_day_over_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 3, 1, 23, 0, tzinfo=UTC)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return now

    monkeypatch.setattr(site_rules, "datetime", Clock)
    rules = SiteRules(rounds_per_day=2, log=AuditLog(tmp_path / "a.jsonl"))
    answered(rules, RUN)
    now += timedelta(hours=2)  # past midnight
    answered(rules, OTHER)
    refused(lambda: answered(rules, RUN), Refusal.ROUNDS_OF_DAY_ANSWERED)
    now += timedelta(hours=22, seconds=1)  # the first is a day old
    answered(rules, RUN)
    refused(lambda: answered(rules, RUN), Refusal.ROUNDS_OF_DAY_ANSWERED)


def test_a_run_goes_on_without_a_site_that_has_answered_enough(
    sites: Callable[..., Sites], tmp_path: Path
) -> None:
    trial = sites(rounds_per_run=1)
    recorded = trial.train(remote_experiment(tmp_path / "out"))
    assert [(row.ok, row.failed, len(row.sites)) for row in recorded.rounds] == [
        (2, 0, 2),
        (1, 1, 2),
    ]
    (lost,) = [row for row in recorded.clients if row.outcome != "ok"]
    assert (lost.client, lost.reason) == (
        0,
        "it has answered as many rounds of this run as it allows: 1",
    )
    refusals = [e for e in AuditLog(tmp_path / "0.jsonl").read().entries if e.outcome == "refused"]
    assert [(entry.asked, entry.round) for entry in refusals] == [("train", 2)]


# What answers may tell


@settings(max_examples=8)
@given(st.lists(st.floats(0.5, 50), min_size=1, max_size=6))
def test_answers_with_different_noise_are_one_with_less(
    tmp_path_factory: pytest.TempPathFactory, noises: list[float]
) -> None:
    """Gaussian noises compose: the sum of 1 / z^2 is that of one answer."""
    log = AuditLog(tmp_path_factory.mktemp("log") / "a.jsonl")
    rules = SiteRules(log=log)
    for number, noise in enumerate(noises):
        answered(rules, run=f"{number}", noise=noise)
    together = 1 / sqrt(sum(noise**-2 for noise in noises))
    expected = spent(PrivacySettings(clip=1.0, noise=together), 1)
    found = [entry.epsilon for entry in log.read().entries]
    assert found[-1] == (None if expected is None else pytest.approx(expected, rel=1e-6))
    known = [epsilon for epsilon in found if epsilon is not None]
    assert known == sorted(known)


def test_a_budget_is_over_all_runs_and_clients_of_an_owner(tmp_path: Path) -> None:
    settings = PrivacySettings(clip=1.0, noise=4.0)
    three = spent(settings, 3)
    assert three is not None
    budget = PrivacyBudget(epsilon=three + 0.01)
    rules = SiteRules(budget=budget, one_owner=True, log=AuditLog(tmp_path / "a.jsonl"))
    for number in range(3):
        answered(rules, run=f"{number}", client=number, noise=4.0)
    refused(lambda: answered(rules, OTHER, client=9, noise=4.0), Refusal.BUDGET_SPENT)
    refused(lambda: answered(rules, OTHER, noise=4.0), Refusal.BUDGET_SPENT)
    several = SiteRules(budget=budget, log=rules.log)
    answered(several, OTHER, client=9, noise=4.0)  # whose images are nobody else's


def test_two_answers_at_once_do_not_both_take_the_last_of_it(tmp_path: Path) -> None:
    one = spent(PrivacySettings(clip=1.0, noise=4.0), 1)
    assert one is not None
    rules = SiteRules(budget=PrivacyBudget(epsilon=one + 0.01), log=AuditLog(tmp_path / "a.jsonl"))
    question, release = Question("train", Task(RUN, 1, 0)), Release(1, 4.0)
    for _ in range(2):  # both are let in
        rules.check_release(question.task, release)
    rules.record(question, Answer(RecordDict(), release))
    refused(lambda: rules.record(question, Answer(RecordDict(), release)), Refusal.BUDGET_SPENT)


def test_what_a_budget_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path / "a.jsonl")
    rules = SiteRules(budget=PrivacyBudget(noise=2.0, epsilon=50.0), log=log)
    refused(lambda: answered(rules, noise=1.0), Refusal.NOISE_DEMANDED)
    refused(
        lambda: answered(SiteRules(budget=PrivacyBudget(epsilon=1.0))), Refusal.PRIVACY_DEMANDED
    )
    answered(rules, noise=4.0)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "dp_accounting.pld.privacy_loss_mechanism", None)
        refused(lambda: answered(rules, noise=4.0), Refusal.NOT_ACCOUNTED)
        answered(SiteRules(log=log), noise=4.0)  # recorded all the same, with its noise
    last = log.read().entries[-1]
    assert (last.epsilon, last.noise, last.vectors) == (None, 4.0, 1)
    answered(SiteRules(log=log))  # without noise
    refused(lambda: answered(rules, noise=4.0), Refusal.BUDGET_UNPROTECTED)
    answered(SiteRules(budget=rules.budget, log=log), client=1, noise=4.0)
    log.path.write_text("\n".join(log.path.read_text().splitlines()[1:]) + "\n")
    refused(lambda: answered(rules, client=1, noise=4.0), Refusal.RECORD_CHANGED)


def test_a_site_that_judges_alone_demands_nothing() -> None:
    rules = SiteRules(frozenset({"updates"}), budget=PrivacyBudget(1.0, 1.0))
    rules.check_release(Task(RUN, 0, 0), Release(1, 0.0))


def test_a_run_without_privacy_is_refused_when_the_site_joins(
    sites: Callable[..., Sites], tmp_path: Path
) -> None:
    trial = sites(privacy_epsilon=8.0)
    trial.rules = [trial.rules[0], {**trial.rules[1], "privacy-noise": 3.0}]
    with pytest.raises(DCFLError) as caught:
        trial.train(remote_experiment(tmp_path / "out"))
    assert Refusal.PRIVACY_DEMANDED.value in str(caught.value)
    assert "privacy.noise = 0: it sends nothing with less than 3" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_goes_on_without_a_site_whose_budget_is_spent(
    sites: Callable[..., Sites], tmp_path: Path
) -> None:
    one = spent(PrivacySettings(clip=1.0, noise=4.0), 1)
    assert one is not None
    trial = sites(privacy_epsilon=one + 0.1)
    recorded = trial.train(remote_experiment(tmp_path / "first", **NOISY))
    assert [(row.ok, row.failed) for row in recorded.rounds] == [(2, 0), (1, 1)]
    history = AuditLog(tmp_path / "0.jsonl").read()
    sent = [entry for entry in history.entries if entry.vectors]
    assert [entry.epsilon for entry in sent] == [pytest.approx(one)]
    # The next run hears of it when the site joins.
    again = sites(privacy_epsilon=one + 0.1).train(remote_experiment(tmp_path / "second", **NOISY))
    assert [(row.ok, row.failed) for row in again.rounds] == [(1, 1), (1, 1)]
    assert any(
        "one more answer would bring it to epsilon" in one for one in again.rounds[0].notices
    )


def test_an_entry_of_another_kind_costs_nothing(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "a.jsonl")
    entry = AuditEntry("2026-01-01T00:00:00", RUN, 1, 0, "train", "refused", vectors=1)
    log.append(lambda history: entry)
    answered(SiteRules(budget=PrivacyBudget(epsilon=50.0), log=log), noise=4.0)
