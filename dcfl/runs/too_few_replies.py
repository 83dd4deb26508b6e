"""Ends runs that get too few usable replies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dcfl.errors import TooFewClients
from dcfl.runs.rounds_so_far import RoundsSoFar
from dcfl.server import ClientReport, Server

EMPTY_ROUNDS = 3  # this many in a row end the run


def require_usable_rounds(
    rounds: RoundsSoFar, clients: Sequence[ClientReport], server: Server, folder: Path
) -> None:
    """End a run whose last rounds did not change the model. `clients`: those of the last round."""
    if rounds.unchanged < EMPTY_ROUNDS:
        return
    wanted = server.wanted(sum(client.outcome == "ok" for client in clients))
    lost = next(client for client in reversed(clients) if client.outcome != "ok")
    few = "no client has" if wanted == 1 else f"fewer than {wanted} clients have"
    raise TooFewClients(
        f"{few} given a usable reply for {EMPTY_ROUNDS} rounds "
        f"(client {lost.client}: {lost.reason}); the rounds so far are in {folder}"
    )


def require_some_replies(rounds: RoundsSoFar, folder: Path) -> None:
    """Refuse to finish a run whose model never changed: it has no result."""
    if not rounds.used:
        raise TooFewClients(f"no round had enough usable replies; the rounds are in {folder}")
