"""What a site answers: by its rules, and recorded in its audit log before it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import sqrt
from typing import NamedTuple

from flwr.app import RecordDict

from dcfl.errors import ClientFailure, ConfigError
from dcfl.flower import codec
from dcfl.flower.audit_log import AuditEntry, AuditLog, History
from dcfl.flower.codec import Task
from dcfl.flower.site_failures import REFUSED, Refusal
from dcfl.flower.withholding import UPDATES, Withheld, refusal_of
from dcfl.privacy import distance, epsilon_at

DAY = timedelta(days=1)


class Release(NamedTuple):
    """What an answer tells of the training images, in the terms of privacy.py."""

    vectors: int = 0  # that depend on them
    noise: float = 0.0  # on each, as a multiple of the clip; 0: none


class Answer(NamedTuple):
    content: RecordDict
    release: Release = Release()


class Question(NamedTuple):
    kind: str  # of the message
    task: Task


class PrivacyBudget(NamedTuple):
    """What a site demands of [privacy]; 0: nothing."""

    noise: float = 0.0  # at least
    epsilon: float = 0.0  # at most, over all runs in its record
    delta: float = 1e-5


@dataclass(frozen=True)
class SiteRules:
    """None of them is the default, for nodes that are this process's own."""

    withheld: Withheld = frozenset()
    rounds_per_run: int = 0  # at most; 0: any number
    rounds_per_day: int = 0
    budget: PrivacyBudget = PrivacyBudget()
    one_owner: bool = False  # all clients of this node have the same data
    log: AuditLog | None = None

    # Before anything is computed

    def check(self, question: Question) -> None:
        refusal = refusal_of(self.withheld, question.kind)
        if refusal is not None:
            raise refusal.error()
        if question.kind == "train":
            self._check_rounds(question.task)

    def _check_rounds(self, task: Task) -> None:
        trained = [*self._releases(self._history(), task.client)]
        of_run = sum(entry.run == task.run for entry in trained)
        if self.rounds_per_run and of_run >= self.rounds_per_run:
            raise Refusal.ROUNDS_OF_RUN_ANSWERED.error(count=of_run)
        yesterday = (datetime.now(UTC) - DAY).isoformat()
        of_day = sum(entry.when > yesterday for entry in trained)
        if self.rounds_per_day and of_day >= self.rounds_per_day:
            raise Refusal.ROUNDS_OF_DAY_ANSWERED.error(count=of_day)

    def check_release(self, task: Task, release: Release) -> None:
        """Refuse an update that would tell more than the site allows."""
        if UPDATES in self.withheld:
            return
        if release.noise < self.budget.noise:
            raise Refusal.NOISE_DEMANDED.error(noise=release.noise, least=self.budget.noise)
        if self.budget.epsilon:
            self._check_budget(self._history(), task, release)

    def _check_budget(self, history: History, task: Task, release: Release) -> None:
        if not release.noise:
            raise Refusal.PRIVACY_DEMANDED.error()
        if history.breaks:
            raise Refusal.RECORD_CHANGED.error()
        before = self._releases(history, task.client)
        if not all(entry.noise for entry in before):
            raise Refusal.BUDGET_UNPROTECTED.error()
        try:
            reached = self._epsilon(history, task, release)
        except ConfigError:
            raise Refusal.NOT_ACCOUNTED.error() from None
        if reached is None or reached > self.budget.epsilon:
            raise Refusal.BUDGET_SPENT.error(
                reached="no guarantee" if reached is None else f"epsilon {reached:.2f}",
                delta=self.budget.delta,
                budget=self.budget.epsilon,
            )

    # The record

    def _history(self) -> History:
        return self.log.read() if self.log else History()

    def _releases(self, history: History, client: int) -> Iterator[AuditEntry]:
        """Answers that told of the client's training images."""
        return (
            entry
            for entry in history.entries
            if entry.outcome == "answered"
            and entry.vectors
            and (self.one_owner or entry.client == client)
        )

    def _epsilon(self, history: History, task: Task, release: Release) -> float | None:
        """What is spent with this one. Squared distances add up, whichever run an answer was
        for."""
        before = self._releases(history, task.client)
        all_of_them = [Release(entry.vectors, entry.noise) for entry in before] + [release]
        squares = (distance(one.noise, one.vectors) ** 2 for one in all_of_them)
        return epsilon_at(sqrt(sum(squares)), self.budget.delta)

    def record(self, question: Question, answer: Answer) -> None:
        """On the disk when this returns; raises if the answer must not leave."""

        def entry(history: History) -> AuditEntry:
            task, release, epsilon = question.task, answer.release, None
            if release.vectors and self.budget.epsilon:
                self._check_budget(history, task, release)  # again: others may have come between
            if release.noise:
                try:
                    epsilon = self._epsilon(history, task, release)
                except ConfigError:  # dp-accounting is not installed: noise and vectors are there
                    epsilon = None
            return _entry(question, answer, "answered", epsilon=epsilon, delta=self.budget.delta)

        self._append(entry)

    def record_failure(
        self, question: Question, failure: ClientFailure, content: RecordDict
    ) -> None:
        """`content`: all that the server gets to know of it."""
        outcome = "refused" if failure.code == REFUSED else "failed"
        self._append(
            lambda history: _entry(question, Answer(content), outcome, reason=failure.reason)
        )

    def _append(self, entry: Callable[[History], AuditEntry]) -> None:
        if self.log is not None:
            self.log.append(entry)


def _entry(
    question: Question,
    answer: Answer,
    outcome: str,
    *,
    reason: str = "",
    epsilon: float | None = None,
    delta: float | None = None,
) -> AuditEntry:
    task, release = question.task, answer.release
    return AuditEntry(
        when=datetime.now(UTC).isoformat(timespec="milliseconds"),
        run=task.run,
        round=task.round,
        client=task.client,
        asked=question.kind,
        outcome=outcome,
        reason=reason,
        sent=tuple(codec.names_in(answer.content)),
        bytes=codec.all_bytes(answer.content),
        vectors=release.vectors,
        noise=release.noise,
        epsilon=epsilon,
        delta=delta if release.noise else None,
    )
