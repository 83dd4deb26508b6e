"""Clients at Flower's nodes, as an engine: messages go out, replies come back or do not.

Flower's strategies are not used: sampling, validation and aggregation are dcfl's. Every message is
accounted for by its id. Replies are asked for in client order, one at a time; the others wait at
the SuperLink, so memory does not grow with the cohort.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid

from dcfl.client import frozen
from dcfl.engines.engine import Session, SiteScoring
from dcfl.engines.memories import Index
from dcfl.errors import (
    ClientFailure,
    ClientLate,
    ClientLost,
    ClientRejected,
    ProtocolError,
)
from dcfl.evaluation import Evaluation, score_model
from dcfl.flower import codec
from dcfl.flower.codec import Task
from dcfl.flower.messenger import LostReply, Messenger, SentTask
from dcfl.flower.node_memories import NodeMemories
from dcfl.flower.nodes import Nodes
from dcfl.flower.quorum import Quorum
from dcfl.flower.roster import Roster
from dcfl.flower.secure.conductor import Conductor, Read, Records
from dcfl.flower.site_evaluation import SiteEvaluation
from dcfl.flower.site_failures import REFUSED
from dcfl.messages import Broadcast, ClientUpdate, Tensors, Traffic
from dcfl.methods.method import addressed
from dcfl.models.parts import personal_and_rest, unsent_tensors
from dcfl.privacy import BY_SIZE
from dcfl.server import ClientReport
from dcfl.server.fixed_point import FixedPoint


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


FORGET_SECONDS = 30  # for nodes to tidy up after a run


class GridEngine:
    """The Engine whose clients are at the nodes of a grid."""

    def __init__(
        self,
        session: Session,
        grid: Grid,
        roster: Roster,
        *,
        reveal: bool = False,
        alive: Callable[[], bool] = lambda: True,
        overlaps: bool = False,
        same_runner: bool = False,
    ) -> None:
        """`reveal`: the nodes are this user's own, and may say what exactly went wrong. `alive`:
        see Messenger. `overlaps`: evaluate a round while the next one trains, which hides the time
        and shows each round's result later. `same_runner`: the nodes have this session's runner,
        its weights that are in no message, and its folder of memories."""
        self._run, self._runner, self._reveal = session.run, session.runner, reveal
        self._deadline = session.experiment.federation.deadline
        self._messenger = Messenger(grid, alive)
        data = session.runner.data
        self._unsent = unsent_tensors(session.runner.model)
        self._node_memories = NodeMemories(session.memories.resolve()) if same_runner else None
        self._nodes = Nodes(
            self._messenger,
            session.run,
            roster,
            data.dataset.classes,
            codec.encode(self._unsent) if self._unsent and not same_runner else None,
        )
        self.memories = RemoteMemories(session.index, session.needed)
        self._sites = SiteEvaluation(
            self._messenger,
            self._nodes,
            run=session.run,
            clients=len(data.partition),
            deadline=self._deadline,
            judges=session.judges,
            unsent=self._unsent.keys(),
            memories=self.memories.rounds,
        )
        self._quorum = Quorum(self._nodes, session.experiment)
        self._late: set[str] = set()  # messages that no round waits for any more
        self.overlaps, self.dropped = overlaps, 0
        self._evaluated: Tensors = {}  # still to be evaluated here
        self._evaluation: Evaluation | None = None
        self._shown_notices = 0
        least = session.experiment.federation.minimum_replies
        self._nodes.require_clients(len(data.partition), least)
        if self._sites_evaluate:
            self._sites.require_judge()
            if session.experiment.server.aggregation in BY_SIZE:
                self._nodes.tell_of_majority()

    # Clients

    def run(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        self._drop_late()
        self._nodes.refresh()
        self._quorum.await_enough(cohort)
        self._sites.round = broadcast.round
        if self._runner.fixed_point is not None:
            yield from self._in_sum(self._runner.fixed_point, broadcast, cohort)
            return
        each = self._runner.method.overrides("shared_for")
        records_of = self._records_of(broadcast)
        yield from self._answers("train", broadcast.round, cohort, records_of, each)

    def _in_sum(
        self, form: FixedPoint, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        """Replies of which nobody knows more than the sum: the first has it, and the others have
        nothing. Without a sum all have failed."""
        failures: dict[int, ClientFailure] = {}

        def ask(kind: str, questions: Mapping[int, Records], read: Read) -> dict[int, Any]:
            clients, records_of = [*questions], questions.__getitem__
            replies = self._answers(kind, broadcast.round, clients, records_of, True, read)
            answers = dict(zip(clients, replies, strict=True))
            lost = {c: one for c, one in answers.items() if isinstance(one, ClientFailure)}
            failures.update(lost)
            return {client: answers[client] for client in answers if client not in lost}

        example, records_of = form.example(broadcast.weights), self._records_of(broadcast)
        try:
            conductor = Conductor(form, Task(self._run, broadcast.round, 0), ask)
            replies, total = conductor.run(cohort, records_of, example)
        except ProtocolError as error:
            replies, total = {}, {}
            failures = {c: failures.get(c, ClientFailure(c, str(error))) for c in cohort}
        for client in cohort:
            if client in replies:
                yield replace(replies[client], weights=total)
                total = {}
            else:
                yield failures[client]

    def _answers(
        self,
        kind: str,
        round: int,
        clients: Sequence[int],
        records_of: Callable[[int], Records],
        each: bool,
        read: Read | None = None,
    ) -> Iterator[Any]:
        """Ask, and yield each client's answer, or a ClientFailure. `each` gets another message;
        `read` makes something of an answer that is no ClientUpdate."""
        end = time.monotonic() + (self._deadline or inf)
        tasks = [
            (node, Task(self._run, round, client, *self.memories.wanted(client)).ticketed())
            for client in clients
            if (node := self._nodes.node_of(client)) is not None
        ]
        # All at once, unless each client gets something else.
        groups = [[task] for task in tasks] if each else [tasks] if tasks else []
        sent = {
            message.task.client: message
            for group in groups
            for message in self._messenger.send_tasks(
                kind, group, self._deadline, **records_of(group[0][1].client)
            )
        }
        if kind == "train":
            self._evaluate_here()
        for client in clients:
            if client in sent:
                answer = self._messenger.wait_for(sent[client].message, end)
                yield self._reply(sent[client], answer, read)
            else:
                reason = self._nodes.absence(client)
                yield ClientFailure(client, reason, traffic=Traffic(0, 0))

    def _drop_late(self) -> None:
        for message in list(self._late):
            reply = self._messenger.collect(message)
            if reply is not None:
                self._late.discard(message)
                self.dropped += not isinstance(reply, LostReply)

    def _records_of(self, broadcast: Broadcast) -> Callable[[int], Records]:
        """The broadcast as each client gets it."""
        weights, method = codec.encode(broadcast.weights), self._runner.method
        return lambda client: {
            "weights": weights,
            "shared": codec.encode(addressed(broadcast, method, client).shared),
        }

    def _reply(
        self, sent: SentTask, answer: RecordDict | LostReply | None, read: Read | None = None
    ) -> Any:
        client, down = sent.task.client, sent.bytes_down
        if answer is None:
            self._late.add(sent.message)
            reason = f"no reply within {self._deadline:g} s"
            return ClientLate(client, reason, traffic=Traffic(0, down))
        if isinstance(answer, LostReply):
            return ClientLost(client, answer.reason, traffic=Traffic(0, down))
        try:
            if read is not None and "failed" not in answer:
                reply = read(answer, sent.task)
            else:
                reply = codec.read_reply(answer, sent.task, self._reveal, down)
            if isinstance(reply, ClientUpdate):
                self._check_examples(reply)
                reply = replace(reply, traffic=Traffic(codec.num_bytes(answer), down))
            if isinstance(reply, ClientUpdate) and codec.has_memory(answer):
                self.memories.staged[client] = sent.task.round
        except ProtocolError as error:
            traffic = Traffic(codec.num_bytes(answer), down)
            return ClientRejected(client, str(error), traffic=traffic)
        if isinstance(reply, ClientFailure) and reply.code == REFUSED:
            self._quorum.refused.add(client)
        return reply

    def _check_examples(self, reply: ClientUpdate) -> None:
        """A client weighs no more than by the images that it has or, where these are elsewhere,
        that its site has said it has."""
        own = int(self._runner.data.sizes[reply.client])
        most = own or self._nodes.examples_of(reply.client)
        if reply.num_examples > most:
            said = "" if own else ", as it said when it joined"
            raise ProtocolError(
                f"num_examples is {reply.num_examples:,}, and it has {most:,}{said}"
            )

    def settle(self, accepted: Collection[int]) -> None:
        self.memories.settle(accepted)
        if accepted:
            self._quorum.reached()

    def asks_again(self, clients: Sequence[ClientReport]) -> bool:
        return self._quorum.asks_again(clients)

    # Evaluation

    @property
    def _sites_evaluate(self) -> bool:
        """There are no test images here: each site has its own."""
        return not len(self._runner.data.dataset.test)

    @property
    def sites(self) -> SiteScoring | None:
        return self._sites if self._sites_evaluate else None

    def begin_evaluation(self, weights: Tensors) -> None:
        if self._sites_evaluate:
            self._sites.begin(weights)
        else:
            self._evaluated = weights

    def end_evaluation(self) -> Evaluation | None:
        if self._sites_evaluate:
            return self._sites.result()
        self._evaluate_here()
        return self._evaluation

    def _evaluate_here(self) -> None:
        if self._evaluated:
            model = frozen(self._runner.model, self._runner.here(self._evaluated))
            self._evaluation = score_model(model, self._runner.data.dataset)
            self._evaluated = {}

    def personal_parts(self) -> Iterator[tuple[int, Tensors]]:
        """None where nodes are elsewhere: what is personal stays there."""
        if self._node_memories is None or not self._runner.keeps_own:
            return
        for client, round in sorted(self.memories.rounds.items()):
            memory = self._node_memories.load(Task(self._run, 0, client, memory_round=round))
            if memory:
                yield client, personal_and_rest(memory)[0]

    def site_records(self) -> dict[str, dict[str, object]]:
        return self._nodes.records()

    def take_notices(self) -> tuple[str, ...]:
        self._nodes.records()
        notices = self._nodes.notices[self._shown_notices :]
        self._shown_notices += len(notices)
        return tuple(notices)

    # The end

    def forget(self) -> None:
        """The run has ended well: nodes need not keep its clients' memories, unless these are all
        there is of a personal model."""
        kept = self.memories.rounds or self._unsent or self._runner.fixed_point
        if kept and not self._runner.keeps_own:
            task = Task(self._run, round=0, client=0)
            tasks = [(node, task.ticketed()) for node in self._nodes.online().values()]
            end = time.monotonic() + FORGET_SECONDS
            for sent in self._messenger.send_tasks("query.forget", tasks, FORGET_SECONDS):
                self._messenger.wait_for(sent.message, end)
