from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcfl.checking import TRAINING, toy_model
from dcfl.federation import federate, sample_cohort
from dcfl.messages import Broadcast, ClientUpdate
from dcfl.methods import METHODS
from dcfl.seeding import derived_seed, generator_for
from dcfl.server import Server, ServerState
from dcfl.simulation.embedded import Embedded
from dcfl.weights import sha256, snapshot
from tests import toys


@given(st.integers(1, 500), st.floats(0.001, 1), st.integers(0, 99), st.integers(1, 99))
def test_cohorts_are_distinct_sorted_and_repeatable(
    population: int, participation: float, seed: int, round: int
) -> None:
    cohort = sample_cohort(population, participation, seed, round)
    assert cohort == sorted(set(cohort))
    assert len(cohort) >= 1
    assert set(cohort) <= set(range(population))
    assert cohort == sample_cohort(population, participation, seed, round)


def test_cohort_sizes_are_rounded_not_truncated() -> None:
    assert len(sample_cohort(100, 0.29, 0, 1)) == 29
    assert len(sample_cohort(100, 0.001, 0, 1)) == 1


def test_cohorts_change_with_round_and_seed_and_reach_everybody() -> None:
    cohorts = [tuple(sample_cohort(100, 0.05, 0, round)) for round in range(1, 201)]
    assert len(set(cohorts)) == 200
    assert set().union(*cohorts) == set(range(100))
    assert sample_cohort(100, 0.05, 1, 1) != sample_cohort(100, 0.05, 0, 1)


def test_seeds_of_different_places_and_purposes_differ() -> None:
    seeds = {
        derived_seed(seed, round, client, purpose)
        for seed in range(3)
        for round in range(10)
        for client in range(10)
        for purpose in ("order", "augmentation", "second view")
    }
    assert len(seeds) == 3 * 10 * 10 * 3
    assert generator_for(1, 2, 3, "order").initial_seed() == derived_seed(1, 2, 3, "order")
    # a fixed point: if this changes, every published result changes
    assert derived_seed(0, 1, 2, "order") == 3832059042813885436


def federation(method: str = "dcfl-pw") -> tuple[Server, Embedded, ServerState]:
    model, data = toy_model(), toys.federated(clients=4)
    names = frozenset(name for name, _ in model.named_parameters())
    server = Server(METHODS[method](), 4, names, TRAINING)
    backend = toys.embedded(method, model, data)
    return server, backend, ServerState(0, snapshot(model), {}, {})


def test_rounds_follow_each_other_and_carry_prototypes_from_the_second_on() -> None:
    server, backend, state = federation()
    sent: list[Broadcast] = []

    class Listening:
        def run(self, broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[ClientUpdate]:
            sent.append(broadcast)
            return backend.run(broadcast, cohort)  # type: ignore[return-value]

        settle = backend.settle

    rounds = list(federate(server, Listening(), state, 3, 0.5, seed=0))
    assert [round.state.round for round in rounds] == [1, 2, 3]
    assert [len(round.clients) for round in rounds] == [2, 2, 2]
    assert [broadcast.round for broadcast in sent] == [1, 2, 3]
    assert [bool(broadcast.shared) for broadcast in sent] == [False, True, True]


@pytest.mark.parametrize("method", METHODS)
def test_a_federation_can_go_on_from_any_state(method: str) -> None:
    """The generator holds nothing that the state does not (client memories are the backend's)."""
    server, backend, state = federation(method)
    *_, whole = federate(server, backend, state, 4, 0.5, seed=0)
    server, backend, state = federation(method)
    *_, half = federate(server, backend, state, 2, 0.5, seed=0)
    *_, resumed = federate(server, backend, half.state, 4, 0.5, seed=0)
    assert sha256(resumed.state.weights) == sha256(whole.state.weights)


def test_what_a_client_does_depends_on_no_other_client() -> None:
    """Alone, first or last in the cohort: the same bits."""
    server, backend, state = federation()
    broadcast = server.broadcast(state)
    alone = {c: next(iter(backend.run(broadcast, [c]))) for c in (3, 1, 0)}
    together = backend.run(broadcast, [0, 1, 2, 3])
    for reply in together:
        if reply.client in alone:
            assert sha256(reply.weights) == sha256(alone[reply.client].weights)  # type: ignore[union-attr]
