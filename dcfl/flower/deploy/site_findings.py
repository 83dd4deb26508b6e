"""What a look at a site has found: lines that say ok, or what is wrong and what helps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    subject: str
    ok: bool
    text: str
    remedy: str = ""  # of a problem

    @property
    def problem(self) -> str:
        return f"{self.subject}: {self.text}" + (f"; {self.remedy}" if self.remedy else "")


def fine(subject: str, text: str) -> Finding:
    return Finding(subject, True, text)


def wrong(subject: str, text: str, remedy: str) -> Finding:
    return Finding(subject, False, text, remedy)


def problems(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.ok]
