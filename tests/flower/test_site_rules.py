"""A site's own limits: how often it answers, and what its answers of all runs may tell."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dcfl.config import as_tables, to_toml
from dcfl.errors import ClientFailure, DCFLError, SiteRefusal
from dcfl.flower import codec, site_rules
from dcfl.flower.audit_log import AuditEntry, AuditLog
from dcfl.flower.client_app import app
from dcfl.flower.codec import Task
from dcfl.flower.site_failures import Refusal
from dcfl.flower.site_rules import Answer, PrivacyBudget, Question, Release, SiteRules
from dcfl.models import build_model
from dcfl.privacy import PrivacySettings, epsilon_at, spent
from dcfl.report.client_sections import personal_section
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


def test_rounds_over_all_runs_and_clients_of_an_owner(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "a.jsonl")
    rules = SiteRules(rounds=2, one_owner=True, log=log)
    answered(rules, RUN)
    answered(rules, OTHER, client=7)
    for run, client in ((RUN, 0), (OTHER, 0), ("c" * 32, 9), (f" {RUN} ", 2)):
        refused(lambda r=run, c=client: answered(rules, r, c), Refusal.ENOUGH_ANSWERED)  # type: ignore[misc]
    several = SiteRules(rounds=2, log=log)
    answered(several, RUN, client=1)  # whose data is nobody else's
    answered(several, OTHER, client=1)
    refused(lambda: answered(several, RUN, client=1), Refusal.ENOUGH_ANSWERED)


@pytest.mark.parametrize("kind", [kind for kind in site_rules.COUNTED if kind != "train"])
@pytest.mark.parametrize("limit", ["rounds", "rounds_per_day"])
def test_each_kind_of_scoring_is_answered_once_more_than_training(
    kind: str, limit: str, tmp_path: Path
) -> None:
    log = AuditLog(tmp_path / "a.jsonl")
    rules = SiteRules(**{limit: 2}, one_owner=True, lends=True, log=log)
    for number in range(3):
        scored(rules, kind, f"{number}", number)
    refused(lambda: scored(rules, kind, OTHER, 4), Refusal.ENOUGH_ANSWERED)
    answered(rules)  # is another kind
    scored(rules, "query.whoami", RUN, 0)


def scored(rules: SiteRules, kind: str, run: str, client: int) -> None:
    question = Question(kind, Task(run, 1, client))
    rules.check(question)
    rules.record(question, Answer(RecordDict()))


@pytest.mark.parametrize("kind", site_rules.COUNTED)
def test_messages_at_once_do_not_all_take_the_last_round(kind: str, tmp_path: Path) -> None:
    """All are let in, and all but as many as are allowed are refused when they have computed:
    whether with an answer or a failure, which may tell of the images too."""
    rules = SiteRules(rounds=1, one_owner=True, lends=True, log=AuditLog(tmp_path / "a.jsonl"))
    questions = [Question(kind, Task(f"{number}" * 32, 1, number)) for number in range(4)]
    for question in questions:
        rules.check(question)

    def told(question: Question) -> bool:
        try:
            if question.task.client % 2:
                rules.record_failure(question, ClientFailure(1, "diverged"), RecordDict())
            else:
                rules.record(question, Answer(RecordDict(), Release(1)))
        except SiteRefusal:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(told, questions)) == (1 if kind == "train" else 2)


def test_a_record_that_was_changed_allows_nothing_more(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "a.jsonl")
    for rules in (SiteRules(rounds=9, log=log), SiteRules(rounds_per_day=9, log=log)):
        answered(rules)
    log.path.write_text("")
    refused(lambda: answered(rules), Refusal.RECORD_CHANGED)
    refused(lambda: scored(rules, "evaluate", RUN, 0), Refusal.RECORD_CHANGED)
    answered(SiteRules(log=log))  # without a limit nothing has to be counted
    assert log.read().breaks


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
    refused(lambda: answered(rules, RUN), Refusal.ENOUGH_ANSWERED)
    now += timedelta(hours=22, seconds=1)  # the first is a day old
    answered(rules, RUN)
    refused(lambda: answered(rules, RUN), Refusal.ENOUGH_ANSWERED)


def test_a_run_goes_on_without_a_site_that_has_answered_enough(
    sites: Callable[..., Sites], tmp_path: Path
) -> None:
    trial = sites(rounds=1)
    recorded = trial.train(remote_experiment(tmp_path / "out"))
    assert [(row.ok, row.failed, len(row.sites)) for row in recorded.rounds] == [
        (2, 0, 2),
        (1, 1, 2),
    ]
    (lost,) = [row for row in recorded.clients if row.outcome != "ok"]
    assert (lost.client, lost.reason) == (
        0,
        "it has answered train as often as it allows: 1 in all",
    )
    refusals = [e for e in AuditLog(tmp_path / "0.jsonl").read().entries if e.outcome == "refused"]
    assert [(entry.asked, entry.round) for entry in refusals] == [("train", 2)]


@pytest.mark.parametrize("personal", [[], ["classifier"]])
@pytest.mark.parametrize("limit", ["rounds", "rounds_per_day"])
def test_an_honest_run_needs_as_many_rounds_as_it_has(
    personal: list[str], limit: str, sites: Callable[..., Sites], tmp_path: Path
) -> None:
    """Its scores are not refused either: of every round, of the last model, of personal ones."""
    experiment = remote_experiment(tmp_path / "out", federation__personal=personal)
    recorded = sites(**{limit: 2}).train(experiment)
    assert [(row.ok, row.failed, len(row.sites)) for row in recorded.rounds] == [(2, 0, 2)] * 2
    entries = AuditLog(tmp_path / "0.jsonl").read().entries
    assert {entry.outcome for entry in entries} == {"answered"}
    kinds = Counter(entry.asked for entry in entries)
    assert (kinds["train"], kinds["evaluate.scores"]) == (2, 1)
    assert (kinds["evaluate"], kinds["evaluate.personal"]) == ((3, 1) if personal else (2, 0))


HOSTILE = [
    *(("train", run * 32, 0) for run in "bcd"),
    *(("train.default", run * 32, 0) for run in "abc"),
    ("train", RUN, 1),
    ("train", RUN, 2**39),
    ("train.default", RUN[:-1] + "A", 4),
]


def test_a_hostile_server_gets_as_many_rounds_as_the_site_allows(
    sites: Callable[..., Sites], tmp_path: Path
) -> None:
    """Whatever the type, the run and the client that it invents."""
    trial = sites(rounds=1)
    assert "weights" in told_by(trial, "train", RUN, 0)
    for kind, run, client in HOSTILE:
        answer = told_by(trial, kind, run, client)
        assert dict(answer.config_records["failed"]) == {
            "code": "refused",
            "reason": "it has answered train as often as it allows: 1 in all",
            "partition-id": 0,
        }
    scores = [told_by(trial, kind, RUN, 0) for kind in ("evaluate", "evaluate.default") * 3]
    assert ["score" in answer for answer in scores] == [True] * 2 + [False] * 4
    for strange in ("Train", "train ", "evaluate.train", "query.train", "query"):
        with pytest.raises(ValueError, match=r"Invalid message type|No \w+ function"):
            told_by(trial, strange, RUN, 0)


def test_a_failure_is_a_round_too(sites: Callable[..., Sites], tmp_path: Path) -> None:
    trial = sites(rounds=1)
    diverged = {name: tensor * 1e30 for name, tensor in initial_weights().items()}
    codes = [told_by(trial, "train", RUN, 0, diverged)["failed"]["code"] for _ in range(2)]
    assert codes == ["diverged", "refused"]


def initial_weights() -> dict[str, Tensor]:
    model = build_model(remote_experiment(Path("x")).model, 3, 8, 2, 0)
    return {**model.state_dict()}


def told_by(
    trial: Sites,
    kind: str,
    run: str,
    client: int,
    weights: dict[str, Tensor] | None = None,
    **changes: Any,
) -> RecordDict:
    """What site 0 answers to a message made by hand."""
    records = {"weights": codec.encode(weights or initial_weights()), "shared": codec.encode({})}
    content = codec.message(Task(run, 1, client).ticketed(), **records)
    experiment = remote_experiment(Path("never written"), **changes)
    config = {"experiment": to_toml(as_tables(experiment))}
    context = Context(1, 1, trial.node(0), RecordDict(), config)
    message = Message(content, dst_node_id=1, message_type="train")
    message.metadata.__dict__["_message_type"] = kind
    return app(message, context).content


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
    apart = 2 * sqrt(sum(noise**-2 for noise in noises))
    expected = epsilon_at(apart, PrivacyBudget().delta)
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
        patch.setitem(sys.modules, "dp_accounting", None)
        refused(lambda: answered(rules, noise=4.0), Refusal.NOT_ACCOUNTED)
        answered(SiteRules(log=log), noise=4.0)  # recorded all the same, with its noise
    last = log.read().entries[-1]
    assert (last.epsilon, last.noise, last.vectors) == (None, 4.0, 1)
    answered(SiteRules(log=log))  # without noise
    refused(lambda: answered(rules, noise=4.0), Refusal.BUDGET_UNPROTECTED)
    answered(SiteRules(budget=rules.budget, log=log), client=1, noise=4.0)
    log.path.write_text("\n".join(log.path.read_text().splitlines()[1:]) + "\n")
    refused(lambda: answered(rules, client=1, noise=4.0), Refusal.RECORD_CHANGED)


@pytest.mark.parametrize("rule", [{"privacy_noise": 2.0}, {"privacy_epsilon": 50.0}])
def test_scores_of_a_personal_part_are_no_way_around_the_noise(
    rule: dict[str, float], sites: Callable[..., Sites], tmp_path: Path
) -> None:
    """It learned from training images, and nothing was added to it."""
    trial = sites(**rule)
    experiment = remote_experiment(tmp_path / "out", **NOISY, federation__personal=["classifier"])
    recorded = trial.train(experiment)
    assert [row.ok for row in recorded.rounds] == [2, 2]
    logs = [AuditLog(tmp_path / f"{place}.jsonl").read().entries for place in range(2)]
    kept, told = ([e for e in log if e.asked == "evaluate.personal"] for log in logs)
    assert [(entry.outcome, entry.reason) for entry in kept] == [
        ("refused", Refusal.PERSONAL_UNPROTECTED.value)
    ]
    assert [(entry.outcome, entry.vectors, entry.noise) for entry in told] == [("answered", 1, 0)]
    north, south = recorded.personal
    assert north.on_sites == (None, None)
    assert south.on_sites == (None, south.personal_accuracy)  # its part leaves it for nobody
    section = personal_section([recorded], {recorded: ""})
    assert section is not None
    assert "lends its part of the model to no other" in section.tables[-1].note


def test_a_personal_part_does_not_leave_though_it_is_asked_for(
    sites: Callable[..., Sites], tmp_path: Path
) -> None:
    """What a message names comes back trained: it must name what the run's config says, alone."""
    experiment = remote_experiment(tmp_path / "out", federation__personal=["classifier"])
    config = {"experiment": to_toml(as_tables(experiment))}
    weights = initial_weights()
    own = {name: weights.pop(name) for name in [*weights] if name.startswith("classifier")}
    context = Context(1, 1, sites().node(0), RecordDict(), config)

    def told(kind: str, **tensors: dict[str, Tensor]) -> RecordDict:
        records = {name: codec.encode(named) for name, named in tensors.items()}
        content = codec.message(Task(RUN, 1, 0).ticketed(), **records)
        return app(Message(content, dst_node_id=1, message_type=kind), context).content

    assert "node" in told("query.whoami", unsent=own)
    for asked in ({**weights, **own}, {**weights, "classifier.bias": own["classifier.bias"]}):
        assert told("train", weights=asked)["failed"]["code"] == "error"
    assert codec.decode(told("train", weights=weights)["weights"]).keys() == weights.keys()


@pytest.mark.parametrize("rule", [{"privacy_noise": 2.0}, {"privacy_epsilon": 50.0}])
def test_a_holdout_is_no_way_around_the_noise(
    rule: dict[str, float], sites: Callable[..., Sites], tmp_path: Path
) -> None:
    """A run that makes test pictures of training pictures would hear, exactly, what they are."""
    trial, kept_back = sites(**rule), {**NOISY, "data__holdout": 0.5}
    recorded = trial.train(remote_experiment(tmp_path / "out", **kept_back))
    assert [(row.ok, row.failed, len(row.sites)) for row in recorded.rounds] == [(1, 1, 1)] * 2
    (lost,) = {row.reason for row in recorded.clients if row.client == 0}
    assert lost == Refusal.HOLDOUT_UNPROTECTED.value
    for kind in ("query.whoami", "evaluate", "evaluate.scores", "query.statistics", "train"):
        assert {*told_by(trial, kind, RUN, 0, **kept_back)} == {"task", "failed", "record"}
    entries = AuditLog(tmp_path / "0.jsonl").read().entries
    assert {entry.outcome for entry in entries} == {"refused"}


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


def test_of_noise_in_shares_a_site_counts_its_own_unless_it_relies_on_sums(
    tmp_path: Path,
) -> None:
    """Of four sites three must reply, and two shares are counted."""
    folders = [pictures(tmp_path / name, 10, 10) for name in "abcd"]
    demands = [
        {"privacy-noise": 4.0},
        {"privacy-noise": 4.0, "secure-sum": 3},
        {"privacy-epsilon": 50.0},
        {"privacy-epsilon": 50.0, "secure-sum": 3},
    ]
    rules = [{"audit": str(tmp_path / f"{at}.jsonl"), **own} for at, own in enumerate(demands)]
    shared = {**NOISY, "privacy__where": "sum", "server__secure": True, "data__clients": 4}
    run = Sites(folders, rules).train(remote_experiment(tmp_path / "out", **shared))
    assert [(row.ok, row.failed) for row in run.rounds] == [(3, 1), (3, 1)]
    (lost,) = {row.reason for row in run.clients if row.client == 0}
    assert lost.startswith('privacy.where = "sum": its own share of the noise is 2.82843, and')
    logs = [AuditLog(tmp_path / f"{at}.jsonl").read().entries for at in range(4)]
    trained = [[entry for entry in log if entry.vectors] for log in logs]
    noises = [[entry.noise for entry in log] for log in trained]
    assert noises == [[], [4.0] * 2, [pytest.approx(4 / sqrt(2))] * 2, [4.0] * 2]
    whole, own = PrivacySettings(1.0, 4.0), PrivacySettings(1.0, 4 / sqrt(2))
    assert trained[2][-1].epsilon == pytest.approx(spent(own, 2))
    assert trained[3][-1].epsilon == pytest.approx(spent(whole, 2))


def test_an_entry_of_another_kind_costs_nothing(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "a.jsonl")
    entry = AuditEntry("2026-01-01T00:00:00", RUN, 1, 0, "train", "refused", vectors=1)
    log.append(lambda history: entry)
    answered(SiteRules(budget=PrivacyBudget(epsilon=50.0), log=log), noise=4.0)


def test_statistics_are_no_sum(sites: Callable[..., Sites]) -> None:
    failed = told_by(sites(secure_sum=2), "query.statistics", RUN, 0)["failed"]
    assert "statistics of its images are no sum" in failed["reason"]
    assert "statistics" in told_by(sites(secure_sum=1), "query.statistics", RUN, 0)


@pytest.mark.parametrize(
    ("kind", "rules", "changes"),
    [
        ("query.statistics", {"withhold": "statistics"}, {}),  # counts are told all the same
        ("evaluate", {}, {"data__holdout": 0.3}),
        ("evaluate.scores", {}, {"data__holdout": 0.3}),
    ],
)
def test_no_budget_holds_after_training_images_were_told_of_without_noise(
    kind: str, rules: dict[str, Any], changes: dict[str, Any], sites: Callable[..., Sites]
) -> None:
    assert "failed" not in told_by(sites(**rules), kind, RUN, 0, **changes)
    failed = told_by(sites(privacy_epsilon=50.0), "train", OTHER, 0, **NOISY)["failed"]
    assert failed["reason"] == Refusal.BUDGET_UNPROTECTED.value


def test_scores_of_test_images_and_withheld_counts_cost_no_budget(
    sites: Callable[..., Sites],
) -> None:
    assert "score" in told_by(sites(), "evaluate", RUN, 0)
    told_by(sites(withhold="sizes,statistics"), "query.statistics", RUN, 0)
    assert "weights" in told_by(sites(privacy_epsilon=50.0), "train", OTHER, 0, **NOISY)
