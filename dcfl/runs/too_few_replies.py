"""Ends runs that get too few usable replies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dcfl.errors import TooFewClients
from dcfl.runs.rows import RoundRow
from dcfl.server import ClientReport, Server

EMPTY_ROUNDS = 3  # this many in a row end the run


def require_usable_rounds(
    rows: Sequence[RoundRow], clients: Sequence[ClientReport], server: Server, folder: Path
) -> None:
    """End a run whose last rounds did not change the model. `clients`: those of the last round."""
    last = rows[-EMPTY_ROUNDS:]
    if len(last) < EMPTY_ROUNDS or any(row.used for row in last):
        return
    wanted = server.wanted(last[-1].ok)
    lost = next(client for client in reversed(clients) if client.outcome != "ok")
    few = "no client has" if wanted == 1 else f"fewer than {wanted} clients have"
    raise TooFewClients(
        f"{few} given a usable reply for {EMPTY_ROUNDS} rounds "
        f"(client {lost.client}: {lost.reason}); the rounds so far are in {folder}"
    )


def require_some_replies(rows: Sequence[RoundRow], folder: Path) -> None:
    """Refuse to finish a run whose model never changed: it has no result."""
    if not any(row.used for row in rows):
        raise TooFewClients(f"no round had enough usable replies; the rounds are in {folder}")
