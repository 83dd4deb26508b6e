"""What a site answers: by its rules, and recorded in its audit log before it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from flwr.app import RecordDict

from dcfl.errors import ClientFailure
from dcfl.flower import codec
from dcfl.flower.audit_log import AuditLog, Entry, History
from dcfl.flower.codec import Task
from dcfl.flower.withholding import Withheld, refusal_of


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


@dataclass(frozen=True)
class SiteRules:
    """None of them is the default, for nodes that are this process's own."""

    withheld: Withheld = frozenset()
    log: AuditLog | None = None

    def check(self, question: Question) -> None:
        """Before anything is computed."""
        refusal = refusal_of(self.withheld, question.kind)
        if refusal is not None:
            raise refusal.error()

    def record(self, question: Question, answer: Answer) -> None:
        """On the disk when this returns; raises if the answer must not leave."""
        self._append(question, "answered", answer)

    def record_failure(
        self, question: Question, failure: ClientFailure, content: RecordDict
    ) -> None:
        """`content`: all that the server gets to know of it."""
        outcome = "refused" if failure.code == codec.REFUSED else "failed"
        self._append(question, outcome, Answer(content), failure.reason)

    def _append(self, question: Question, outcome: str, answer: Answer, reason: str = "") -> None:
        if self.log is None:
            return
        task = question.task

        def entry(history: History) -> Entry:
            return Entry(
                when=datetime.now(UTC).isoformat(timespec="milliseconds"),
                run=task.run,
                round=task.round,
                client=task.client,
                asked=question.kind,
                outcome=outcome,
                reason=reason,
                sent=tuple(codec.names_in(answer.content)),
                bytes=codec.all_bytes(answer.content),
                vectors=answer.release.vectors,
                noise=answer.release.noise,
            )

        self.log.append(entry)
