"""Settings that exclude each other are refused in one line, whichever rooms they belong to."""

import pytest

from dcfl.config import experiment_from
from dcfl.errors import ConfigError

SECURE = {"server": {"secure": True}}
BUFFERED = {"clock": {"devices": "phones", "mode": "fedbuff", "buffer": 2}}
COINS = {"federation": {"sampling": "poisson"}}
PACKED = {"compression": {"up": "int8"}}
CENTRAL = {
    "privacy": {"where": "server", "clip": 1.0, "noise": 1.0},
    "model": {"norm": "group"},
}


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (SECURE, BUFFERED, "single replies"),
        (SECURE, {"federation": {"selection": "oort"}}, "single replies"),
        (SECURE, COINS, "as many clients in every round"),
        (SECURE, {"federation": {"sampling": "in-turn"}}, "drawn by"),
        (SECURE, PACKED, "fixed point"),
        (SECURE, CENTRAL, "does not see it"),
        ({"clock": {"devices": "phones"}}, COINS, "says itself who is asked"),
    ],
)
def test_they_are_refused(one: dict[str, object], other: dict[str, object], said: str) -> None:
    fedavg = {"method": {"name": "fedavg"}}
    for alone in (one, other):
        experiment_from(None, {**fedavg, **alone})
    with pytest.raises(ConfigError, match=said) as refused:
        experiment_from(None, {**fedavg, **one, **other})
    assert "\n" not in str(refused.value)
