"""What a site answers: by its rules, and recorded in its audit log before it leaves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import sqrt
from typing import NamedTuple

from flwr.app import RecordDict

from dcfl.errors import ClientFailure, ConfigError
from dcfl.experiment import Experiment
from dcfl.flower import codec
from dcfl.flower.audit_log import AuditEntry, AuditLog, Head, History, Wanted
from dcfl.flower.codec import Task
from dcfl.flower.site_failures import REFUSED, Refusal
from dcfl.flower.withholding import CLASS_COUNTS, SIZES, UPDATES, Withheld, refusal_of
from dcfl.privacy import BY_SIZE, distance, epsilon_at

DAY = timedelta(days=1)
PERSONAL = "evaluate.personal"
LENDS, LENT = "query.personal", "evaluate.lent"  # a site's personal part, and scores of another's
ASKS_STATISTICS = "query.statistics"
# They tell of images.
COUNTED = ("train", "evaluate", "evaluate.scores", PERSONAL, LENDS, LENT, ASKS_STATISTICS)
_UNPROTECTED = {
    PERSONAL: Refusal.PERSONAL_UNPROTECTED,
    ASKS_STATISTICS: Refusal.STATISTICS_UNPROTECTED,
}


class Release(NamedTuple):
    """What an answer tells of the training images, in the terms of privacy.py."""

    vectors: int = 0  # that depend on them
    noise: float = 0.0  # that the site counts on in each, as a multiple of the clip; 0: none
    summed: int = 1  # answers, of which at least so many are seen as a sum alone
    share: bool = False  # the noise is the site's own share of that in a sum


class Answer(NamedTuple):
    content: RecordDict
    release: Release = Release()


class Question(NamedTuple):
    kind: str  # the name of what answers it here: the message's own type may have several forms
    task: Task


class PrivacyBudget(NamedTuple):
    """What a site demands of [privacy]; 0: nothing."""

    noise: float = 0.0  # at least
    epsilon: float = 0.0  # at most, over all runs in its record
    delta: float = 1e-5

    @property
    def demands_noise(self) -> bool:
        return bool(self.noise or self.epsilon)


@dataclass(frozen=True)
class SiteRules:
    """None of them is the default, for nodes that are this process's own."""

    withheld: Withheld = frozenset()
    rounds: int = 0  # that it trains in, over all runs in its record; 0: any number
    rounds_per_day: int = 0
    budget: PrivacyBudget = PrivacyBudget()
    least_sum: int = 0  # replies, its own among them, of which alone the server sees the sum
    one_owner: bool = False  # all clients of this node have the same data
    lends: bool = False  # its personal part, for the other sites to score
    log: AuditLog | None = None
    # For the record: which app asks, for which run.
    app: str = ""
    about: str = ""

    # Before anything is computed

    def check_run(self, experiment: Experiment) -> None:
        """Refuse a run that cannot work without what is withheld, or whose scores would tell of
        training images without noise."""
        method, aggregation = experiment.method, experiment.server.aggregation
        if self.budget.demands_noise and experiment.data.holdout:
            raise Refusal.HOLDOUT_UNPROTECTED.error()
        if UPDATES in self.withheld:
            return
        if CLASS_COUNTS in self.withheld and method.overrides("upload"):
            raise Refusal.METHOD_TELLS_CLASSES.error(method=method.name)
        if SIZES in self.withheld and aggregation in BY_SIZE:
            raise Refusal.SIZES_WEIGHED.error(aggregation=aggregation)

    def check(self, question: Question) -> None:
        if refusal := refusal_of(self.withheld, question.kind):
            raise refusal.error()
        if question.kind == LENDS and not self.lends:
            raise Refusal.NOT_LENT.error()
        if question.kind in _UNPROTECTED and self.budget.demands_noise:
            raise _UNPROTECTED[question.kind].error()
        if question.kind == ASKS_STATISTICS and self.least_sum > 1:
            raise Refusal.STATISTICS_NO_SUM.error(least=self.least_sum)
        if self._is_limited(question):
            self._check_rounds(self._history(question.task), question)

    def _is_limited(self, question: Question) -> bool:
        return question.kind in COUNTED and bool(self.rounds or self.rounds_per_day)

    def _check_rounds(self, history: History, question: Question) -> None:
        """A run's id, its rounds and its clients are the operator's to invent: what counts is how
        often the site's images were used. A failure counts too, because it may tell of them.
        Each kind of scoring may be asked once more than training: for the model at the end."""
        if not self._is_limited(question):
            return
        if history.breaks:
            raise Refusal.RECORD_CHANGED.error()
        times = [entry.when for entry in history.entries if entry.asked == question.kind]
        yesterday = (datetime.now(UTC) - DAY).isoformat()
        limits = (self.rounds, "", "in all"), (self.rounds_per_day, yesterday, "within a day")
        for most, since, span in limits:
            count = sum(when > since for when in times)
            if most and count >= most + (question.kind != "train"):
                raise Refusal.ENOUGH_ANSWERED.error(kind=question.kind, span=span, count=count)

    def check_release(self, task: Task, release: Release) -> None:
        """Refuse an update that would tell more than the site allows."""
        if UPDATES in self.withheld:
            return
        if release.summed < self.least_sum:
            raise Refusal.SUM_DEMANDED.error(least=self.least_sum)
        if release.noise < self.budget.noise:
            refusal = Refusal.SHARE_DEMANDED if release.share else Refusal.NOISE_DEMANDED
            raise refusal.error(noise=release.noise, least=self.budget.noise)
        if self.budget.epsilon:
            self._check_budget(self._history(task), release)

    def _check_budget(self, history: History, release: Release) -> None:
        if not release.noise:
            raise Refusal.PRIVACY_DEMANDED.error()
        if history.breaks:
            raise Refusal.RECORD_CHANGED.error()
        if any(entry.vectors and not entry.noise for entry in history.entries):
            raise Refusal.BUDGET_UNPROTECTED.error()
        try:
            reached = self._epsilon(history, release)
        except ConfigError:
            raise Refusal.NOT_ACCOUNTED.error() from None
        if reached is None or reached > self.budget.epsilon:
            raise Refusal.BUDGET_SPENT.error(
                reached="no guarantee" if reached is None else f"epsilon {reached:.2f}",
                delta=self.budget.delta,
                budget=self.budget.epsilon,
            )

    # The record

    def _history(self, task: Task) -> History:
        return self.log.read(self._of_images(task)) if self.log else History()

    def _of_images(self, task: Task) -> Wanted:
        """Lines of messages for which the client's images were used."""
        return lambda entry: (
            entry.asked in COUNTED
            and entry.outcome != REFUSED
            and (self.one_owner or entry.client == task.client)
        )

    def _epsilon(self, history: History, release: Release) -> float | None:
        """What is spent with this one. Squared distances add up, whichever run an answer was
        for."""
        before = [Release(one.vectors, one.noise) for one in history.entries if one.vectors]
        squares = (distance(one.noise, one.vectors) ** 2 for one in [*before, release])
        return epsilon_at(sqrt(sum(squares)), self.budget.delta)

    def record(self, question: Question, answer: Answer) -> Head | None:
        """On the disk when this returns; raises if the answer must not leave. Returns how far the
        record goes now."""

        def entry(history: History) -> AuditEntry:
            release, epsilon = answer.release, None
            self._check_rounds(history, question)  # again: others may have come between
            if release.vectors and self.budget.epsilon:
                self._check_budget(history, release)
            if release.noise:
                with suppress(ConfigError):  # no dp-accounting here: noise and vectors are told
                    epsilon = self._epsilon(history, release)
            delta = self.budget.delta
            return self._entry(question, answer, "answered", epsilon=epsilon, delta=delta)

        counts = self._is_limited(question) or answer.release.noise > 0
        return self._append(question.task, entry, counts)

    def record_failure(
        self, question: Question, failure: ClientFailure, content: RecordDict
    ) -> Head | None:
        """`content`: all that the server gets to know of it. Raises if it must not: that training
        failed may tell of the images."""
        outcome = REFUSED if failure.code == REFUSED else "failed"
        counts = outcome != REFUSED and self._is_limited(question)

        def entry(history: History) -> AuditEntry:
            if counts:
                self._check_rounds(history, question)
            return self._entry(question, Answer(content), outcome, reason=failure.reason)

        return self._append(question.task, entry, counts)

    def _append(
        self, task: Task, entry: Callable[[History], AuditEntry], counts: bool
    ) -> Head | None:
        """`counts`: the entry depends on those before it, which may be many."""
        if self.log is None:
            return None
        return self.log.append(entry, self._of_images(task) if counts else None)

    def _entry(
        self,
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
            app=self.app,
            about=self.about,
        )
