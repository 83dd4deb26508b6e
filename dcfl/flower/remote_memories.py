"""Which round's memory each client has, on the disk of its node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dcfl.engines.memories import Index


class RemoteMemories:
    def __init__(self, rounds: Mapping[int, int], needed: Sequence[Index] = ()) -> None:
        """`needed`: the memories of each checkpoint."""
        self.rounds: Index = dict(rounds)
        self.staged: Index = {}  # of this round, until the server has used the replies
        self._needed = list(needed)

    def wanted(self, client: int) -> tuple[int, int]:
        """The round to continue from, and the oldest that may still be asked for."""
        current = self.rounds.get(client, 0)
        return current, min([current, *(index.get(client, 0) for index in self._needed)])

    def settle(self, accepted: Collection[int]) -> None:
        staged = self.staged.items()
        self.rounds |= {client: round for client, round in staged if client in accepted}
        self.staged.clear()

    def save(self) -> Index:
        self._needed.append(dict(self.rounds))
        return dict(self.rounds)

    def saved(self) -> None:
        """A node writes its memory before it replies."""

    def keep_only(self, indexes: Collection[Index]) -> None:
        self._needed = list(indexes)
