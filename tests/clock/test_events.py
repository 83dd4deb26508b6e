"""The event loop, against schedules worked out by hand and against the papers' equations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dcfl.clock.devices import Availability, Device, Devices
from dcfl.clock.events import Clock, federate_by_clock
from dcfl.clock.settings import ClockSettings
from dcfl.errors import ClientFailure, TooFewClients
from dcfl.federation import Round, federate
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast, ClientUpdate
from dcfl.methods import METHODS
from dcfl.server import Server, ServerState
from dcfl.server.compression import Compression, CompressionSettings

PACE = [1, 2, 3, 4, 5, 6]  # seconds of a visit, by client
ONE_STEP = LocalTraining(epochs=1)


def device(seconds: float) -> Device:
    """With one image of training, no latency and a network without limits."""
    return Device(seconds, np.inf, np.inf, 0.0, 1000.0)


ALWAYS = Availability()


def six(availability: Availability = ALWAYS, **settings: Any) -> Clock:
    """Six clients of one image each, the first the quickest."""
    server = Server(METHODS["fedavg"](), 6, frozenset({"w"}), ONE_STEP, upload={})
    share = settings.pop("share", 1.0)
    devices = Devices([device(seconds) for seconds in PACE])
    sizes = np.ones(6, dtype=np.int64)
    chosen = ClockSettings(devices="uniform", **settings)
    return Clock(server, chosen, share, 0, sizes, "uniform", devices, availability)


class Drifting:
    """Client k moves what it got by a number of its own, which depends on the round too."""

    def __init__(self) -> None:
        self.trained: list[tuple[int, int]] = []

    def run(self, broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[ClientUpdate]:
        for client in cohort:
            self.trained.append((broadcast.round, client))
            weights = {
                "w": broadcast.weights["w"] + change(broadcast.round, client),
                "running": torch.tensor([float(client)]),
            }
            yield ClientUpdate(client, weights, {}, 10, 1, {"loss": 1.0})

    def settle(self, accepted: Collection[int]) -> None: ...


def change(round: int, client: int) -> float:
    return (client + 1) / 16 + round / 4


def start() -> ServerState:
    return ServerState(0, {"w": torch.zeros(1), "running": torch.zeros(1)}, {}, {})


def steps(clock: Clock, rounds: int) -> list[Round]:
    return [*federate_by_clock(clock, Drifting(), start(), rounds)]


def visits(round: Round) -> list[tuple[int, str, float | None, float | None, int]]:
    return [(one.client, one.outcome, one.began, one.ended, one.staleness) for one in round.clients]


def clock_times(rounds: Sequence[Round]) -> list[float]:
    return [round.state.clock.now for round in rounds if round.state.clock]


def test_a_round_waits_for_the_slowest() -> None:
    assert clock_times(steps(six(), 2)) == [6, 12]


def test_a_deadline_drops_who_is_late() -> None:
    first, second = steps(six(deadline=4.0), 2)
    assert visits(first) == [
        (0, "ok", 0, 1, 0),
        (1, "ok", 0, 2, 0),
        (2, "ok", 0, 3, 0),
        (3, "ok", 0, 4, 0),
        (4, "late", 0, 4, 0),
        (5, "late", 0, 4, 0),
    ]
    assert clock_times([first, second]) == [4, 8]


def test_late_replies_can_be_kept_for_the_round_they_arrive_in() -> None:
    first, second = steps(six(deadline=4.0, late="keep"), 2)
    assert [one[0] for one in visits(first)] == [0, 1, 2, 3]
    # Clients 4 and 5 began in round 1; the others, free at 4, are done by 8, when time is over.
    assert visits(second) == [
        (0, "ok", 4, 5, 0),
        (1, "ok", 4, 6, 0),
        (2, "ok", 4, 7, 0),
        (3, "ok", 4, 8, 0),
        (4, "ok", 0, 5, 1),
        (5, "ok", 0, 6, 1),
    ]


def test_the_first_of_too_many_count() -> None:
    (only,) = steps(six(over_selection=1.5, share=4 / 6), 1)
    assert [(one.client, one.outcome) for one in only.clients] == [
        *((client, "ok") for client in range(4)),
        (4, "late"),
        (5, "late"),
    ]
    assert only.clients[4].reason == "4 others were quicker"
    assert clock_times([only]) == [4]


def test_a_schedule_of_six_clients_with_a_buffer_of_three() -> None:
    """All six are always at work. Who is done before the buffer is full begins again in the next
    step, because a client trains on a model once."""
    rounds = steps(six(mode="fedbuff", buffer=3), 4)
    assert [visits(round) for round in rounds] == [
        # The model of round 1 is sent to all at 0; at 3 three have replied.
        [(0, "ok", 0, 1, 0), (1, "ok", 0, 2, 0), (2, "ok", 0, 3, 0)],
        # 0, 1, 2 begin again at 3: 0 is back at 4, as 3 is; 4 and 1 at 5, of which 1 is the first.
        [(0, "ok", 3, 4, 0), (1, "ok", 3, 5, 0), (3, "ok", 0, 4, 1)],
        # 0, 1, 3 begin at 5. 4 was there at 5, too; at 6 come 0, 2 and 5, and 4 and 0, 2 count.
        [(0, "ok", 5, 6, 0), (2, "ok", 3, 6, 1), (4, "ok", 0, 5, 2)],
        # 0, 2, 4 begin at 6, where 5 has been since; at 7 come 0 and 1.
        [(0, "ok", 6, 7, 0), (1, "ok", 5, 7, 1), (5, "ok", 0, 6, 3)],
    ]
    assert clock_times(rounds) == [3, 5, 6, 7]


def transcribed_fedbuff(rounds: Sequence[Round], buffer: int, a: float) -> list[float]:
    """Algorithm 1: w <- w + 1/K sum s(tau) Delta, with what each client made of the model it got
    (here: plus a number that is known)."""
    w, found = 0.0, []
    for number, round in enumerate(rounds, start=1):
        total = 0.0
        for one in round.clients:
            if one.outcome == "ok":
                total += change(number - one.staleness, one.client) / (1 + one.staleness) ** a
        w += total / buffer
        found.append(w)
    return found


def transcribed_fedasync(rounds: Sequence[Round], alpha: float, a: float) -> list[float]:
    """Algorithm 1: w_t = (1 - alpha_t) w_{t-1} + alpha_t w_new, alpha_t = alpha (tau + 1)^-a."""
    models, found = [0.0], []
    for number, round in enumerate(rounds, start=1):
        (one,) = round.clients
        began_from = models[number - 1 - one.staleness]
        w_new = began_from + change(number - one.staleness, one.client)
        weight = alpha * (one.staleness + 1) ** -a
        models.append((1 - weight) * models[-1] + weight * w_new)
        found.append(models[-1])
    return found


@pytest.mark.parametrize("a", [0.0, 0.5, 2.0])
def test_fedbuff_and_fedasync_are_their_papers_equations(a: float) -> None:
    buffered = steps(six(mode="fedbuff", buffer=3, staleness=a), 9)
    assert max(one.staleness for round in buffered for one in round.clients) >= 2
    got = [float(round.state.weights["w"]) for round in buffered]
    assert got == pytest.approx(transcribed_fedbuff(buffered, 3, a), rel=1e-6)
    mixed = steps(six(mode="fedasync", mixing=0.6, staleness=a), 12)
    assert max(one.staleness for round in mixed for one in round.clients) >= 5
    got = [float(round.state.weights["w"]) for round in mixed]
    assert got == pytest.approx(transcribed_fedasync(mixed, 0.6, a), rel=1e-6)


class Packing(Drifting):
    """Packs as clients do, and notes what can be unpacked of it."""

    def __init__(self, compression: Compression) -> None:
        super().__init__()
        self.compression = compression
        self.changes: dict[tuple[int, int], torch.Tensor] = {}

    def run(self, broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[ClientUpdate]:
        base = self.compression.received(broadcast)
        spread = torch.linspace(0.5, 1.5, 40)
        for reply in super().run(base, cohort):
            exact = change(broadcast.round, reply.client) * spread
            weights = {**reply.weights, "w": base.weights["w"] + exact}
            packed, _ = self.compression.packed_update(replace(reply, weights=weights), base, {})
            again = self.compression.received_update(packed, base)
            self.changes[broadcast.round, reply.client] = again.weights["w"] - base.weights["w"]
            yield packed


@pytest.mark.parametrize("up", ["float16", "int8", "top-k", "random-k"])
@pytest.mark.parametrize("down", ["none", "bfloat16"])
def test_a_stale_reply_is_unpacked_by_the_model_that_its_client_got(up: Any, down: Any) -> None:
    compression = Compression(
        CompressionSettings(up, down, 0.25), {"w": torch.empty(40, device="meta")}, seed=3
    )
    server = replace(six().server, compression=compression)
    clock = replace(six(mode="fedbuff", buffer=3, staleness=1.0), server=server)
    backend, w = Packing(compression), torch.zeros(40)
    begin = replace(start(), weights={**start().weights, "w": w})
    rounds = [*federate_by_clock(clock, backend, begin, 9)]
    assert max(one.staleness for round in rounds for one in round.clients) >= 2
    for number, round in enumerate(rounds, start=1):
        total = torch.zeros(40)
        for one in round.clients:
            assert one.outcome == "ok"
            total += backend.changes[number - one.staleness, one.client] / (1 + one.staleness)
        w = w + total / 3
        torch.testing.assert_close(round.state.weights["w"], w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["fedbuff", "fedasync"])
def test_a_reply_of_another_form_is_rejected_however_old(mode: Any) -> None:
    class Odd(Drifting):
        def run(self, broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[ClientUpdate]:
            for reply in super().run(broadcast, cohort):
                odd = {"w": torch.zeros(2), "running": torch.zeros(1)}
                yield replace(reply, weights=odd if reply.client % 2 else {"v": torch.zeros(1)})

    rounds = [*federate_by_clock(six(mode=mode, buffer=3), Odd(), start(), 4)]
    assert {one.outcome for round in rounds for one in round.clients} == {"rejected"}


def test_running_statistics_are_never_extrapolated() -> None:
    for mode in ("fedbuff", "fedasync"):
        for round in steps(six(mode=mode, buffer=3), 9):
            assert 0 <= float(round.state.weights["running"]) <= 5


def test_only_what_counts_is_trained() -> None:
    backend = Drifting()
    [*federate_by_clock(six(deadline=4.0), backend, start(), 1)]
    assert backend.trained == [(1, client) for client in range(4)]


def test_what_is_in_flight_is_all_that_is_remembered() -> None:
    *_, last = steps(six(mode="fedbuff", buffer=3), 9)
    assert last.state.clock is not None
    assert {*last.state.clock.sent} == {one.round for one in last.state.clock.flights}
    assert last.state.clock.known == {}


def test_who_goes_away_gives_no_reply_and_nobody_is_asked_at_night() -> None:
    day = Availability([[(0.0, 4.0)]], 602.0)
    first, second = steps(six(day), 2)
    assert [one.outcome for one in first.clients] == ["ok"] * 4 + ["failed"] * 2
    assert {one.ended for one in first.clients[4:]} == {4.0}
    # At 4 all are away. The server looks again at 604, two seconds after they have come back.
    assert {one.began for one in second.clients} == {604.0}
    assert [one.outcome for one in second.clients] == ["ok"] * 2 + ["failed"] * 4
    assert clock_times([first, second]) == [4, 606]


def test_a_federation_where_nobody_ever_comes_ends_with_a_line() -> None:
    never = Availability([[(1.0, 2.0)]], 600.0)
    with pytest.raises(TooFewClients, match="nobody can be asked for 7 virtual days"):
        steps(six(never), 1)


def test_drop_outs_are_about_as_frequent_as_asked_and_repeat() -> None:
    def lost() -> list[tuple[int, float | None]]:
        rounds = steps(six(drop_out=0.3), 100)
        failed = [one for round in rounds for one in round.clients if one.outcome == "failed"]
        assert all("dropped out" in one.reason for one in failed)
        return [(one.client, one.ended) for one in failed]

    first = lost()
    assert first == lost()
    assert 0.25 < len(first) / 600 < 0.35


def test_a_visits_time_is_that_of_its_messages_and_its_work() -> None:
    """1,000 bytes each way, two epochs of 10 images; MOON's step is three forwards and a backward,
    five thirds of FedAvg's."""
    training = LocalTraining(epochs=2)
    server = Server(METHODS["moon"](), 6, frozenset({"w"}), training, upload={})
    devices = Devices([Device(0.5, 0.008, 0.016, 0.25, 1000.0)])
    settings = ClockSettings(devices="uniform")
    clock = Clock(server, settings, 1.0, 0, np.full(6, 10), "uniform", devices)
    broadcast = Broadcast(1, {"w": torch.zeros(250)}, {})
    visit = clock.visit(3, broadcast, now=100.0)
    assert visit.ended - visit.began == pytest.approx(
        (0.25 + 0.5) + 0.5 * 2 * 10 * 5 / 3 + (0.25 + 1.0)
    )


def test_a_device_without_memory_for_the_model_cannot_take_part() -> None:
    tiny = Devices([Device(1.0, 1.0, 1.0, 0.0, 0.001)])
    server = Server(METHODS["fedavg"](), 6, frozenset({"w"}), ONE_STEP, upload={})
    clock = Clock(server, ClockSettings(devices="uniform"), 1.0, 0, np.ones(6), "uniform", tiny)
    visit = clock.visit(0, Broadcast(1, {"w": torch.zeros(10**6)}, {}), 0.0)
    assert visit.lost == "it needs 16 MB, and its device has 0.001"


def test_without_devices_the_loop_is_the_plain_one() -> None:
    clock = six()
    plain = Clock(clock.server, ClockSettings(), 0.5, 0, clock.sizes)
    got = [*federate_by_clock(plain, Drifting(), start(), 3)]
    wanted = [*federate(clock.server, Drifting(), start(), 3, 0.5, 0)]
    assert [one.clients for one in got] == [one.clients for one in wanted]
    assert [float(one.state.weights["w"]) for one in got] == [
        float(one.state.weights["w"]) for one in wanted
    ]


class Failing(Drifting):
    """Client 0 never manages to train."""

    def run(  # type: ignore[override]
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        for reply in super().run(broadcast, cohort):
            yield ClientFailure(0, "an error") if reply.client == 0 else reply


def test_a_client_that_fails_takes_its_place_in_the_buffer() -> None:
    first, *_ = federate_by_clock(six(mode="fedbuff", buffer=3), Failing(), start(), 1)
    assert [one.outcome for one in first.clients] == ["failed", "ok", "ok"]
    assert float(first.state.weights["w"]) == pytest.approx((change(1, 1) + change(1, 2)) / 2)
