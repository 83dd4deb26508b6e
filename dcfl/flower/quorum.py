"""Patience with sites that are away: how long a run waits until enough of a round's are there."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from dcfl.errors import TooFewClients
from dcfl.experiment import Experiment
from dcfl.flower.nodes import Nodes
from dcfl.server import ClientReport

LOOK_SECONDS = 1.0  # between two looks at who is online
# Between two attempts at a round that fails while its sites are online; each doubles the last.
SHORTEST_PAUSE, LONGEST_PAUSE = 5.0, 300.0


class Quorum:
    """Of the sites of a run; a round is sent when they are enough to change the model."""

    def __init__(self, nodes: Nodes, experiment: Experiment) -> None:
        self._nodes, self._experiment = nodes, experiment
        at_sites = experiment.engine.at_sites
        self._minutes = experiment.federation.quorum_minutes if at_sites else 0.0
        self._since: float | None = None  # when it was lost
        self._pause = SHORTEST_PAUSE
        self.refused: set[int] = set()  # clients of the last round: a decision, which stays

    def await_enough(self, cohort: Sequence[int]) -> None:
        """Before a round is sent: nobody trains for a round that cannot count."""
        while self._can_come(cohort) and not self._enough(
            sum(self._nodes.node_of(client) is not None for client in cohort)
        ):
            self._wait(cohort, LOOK_SECONDS)
            self._nodes.refresh()
        self.refused.clear()

    def asks_again(self, clients: Sequence[ClientReport]) -> bool:
        """After a round that did not change the model."""
        cohort = [client.client for client in clients]
        if not self._can_come(cohort):
            return False
        self._wait(cohort, self._pause, {one.client: one.reason for one in clients if one.reason})
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True

    def reached(self) -> None:
        """A round has changed the model."""
        if self._since is not None:
            minutes = (time.monotonic() - self._since) / 60
            self._nodes.notify(f"the run waited {minutes:.1f} min for enough sites")
        self._since, self._pause = None, SHORTEST_PAUSE

    def _enough(self, replies: int) -> bool:
        settings, population = self._experiment.server, self._experiment.data.population
        least = self._experiment.federation.minimum_replies
        return replies >= max(least, settings.replies_needed(replies, population))

    def _can_come(self, cohort: Sequence[int]) -> bool:
        """Whether waiting may help: some sites are away, instead of refusing."""
        willing = [c for c in cohort if c not in self.refused and self._nodes.may_train(c)]
        known = len(willing) - self._nodes.nameless_refusals
        return bool(self._minutes) and self._enough(max(0, known))

    def _wait(
        self, cohort: Collection[int], seconds: float, why: dict[int, str] | None = None
    ) -> None:
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        left = self._since + 60 * self._minutes - now
        if left <= 0:
            raise TooFewClients(
                f"too few sites for {self._minutes:g} minutes (federation.quorum_minutes): "
                f"{self._reasons(cohort, why or {})}; `dcfl flower run --resume` goes on later"
            )
        time.sleep(min(seconds, left))

    def _reasons(self, cohort: Collection[int], why: dict[int, str]) -> str:
        missing = [c for c in cohort if c in why or self._nodes.node_of(c) is None]
        told = {
            f"{self._nodes.title_of(c)}: {why.get(c) or self._nodes.absence(c)}" for c in missing
        }
        return "; ".join(sorted(told))
