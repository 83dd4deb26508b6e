"""Which sites took part in fewer rounds than the others: a model says nothing of who is missing."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from dcfl.runs.folder import RecordedRun


class Participation(NamedTuple):
    """Of a site in a run."""

    name: str
    asked: int  # in how many rounds
    replied: int  # in how many of them, with a reply that was valid
    rounds: int  # of the run

    @property
    def share(self) -> float:
        return self.replied / self.asked

    @property
    def sentence(self) -> str:
        among = "rounds" if self.asked == self.rounds else "rounds in which it was asked"
        return f"{self.name} took part in {self.replied} of {self.asked} {among}"


def replies_used(run: RecordedRun) -> tuple[int, int]:
    """How many entered the model, and how many were asked for."""
    return sum(row.used for row in run.rounds), sum(row.sampled for row in run.rounds)


def seldom_there(run: RecordedRun) -> list[Participation]:
    """The sites that took part in a smaller share of their rounds than another; clients of a
    simulation, which have no names, are not told one by one."""
    if all(row.ok == row.sampled for row in run.rounds):
        return []
    rows = [row for row in run.clients if row.site or run.at_sites]
    names = {row.client: row.site or f"site {row.client}" for row in rows}
    visits = Counter(row.client for row in rows)
    replies = Counter(row.client for row in rows if row.outcome == "ok")
    found = [
        Participation(names[client], visits[client], replies[client], len(run.rounds))
        for client in sorted(names)
    ]
    most = max((one.share for one in found), default=0.0)
    return [one for one in found if one.share < most]
