"""Devices and availability by seed and from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dcfl.clock.devices import AVAILABILITIES, HOUR, MIXES, Device
from dcfl.clock.settings import ClockSettings
from dcfl.errors import ConfigError

HEADER = "seconds_per_sample,up,down,latency,memory"


def from_file(path: Path, text: str, **more: str) -> ClockSettings:
    path.write_text(text)
    return ClockSettings(**{"devices": f"file:{path}", **more})  # type: ignore[arg-type]


def test_a_client_has_the_same_device_whoever_asks_and_others_with_another_seed() -> None:
    for mix in MIXES.values():
        assert [mix.of(client, 7) for client in range(5)] == [mix.of(c, 7) for c in range(5)]
    phones = MIXES["phones"]
    assert phones.of(3, 0) != phones.of(3, 1) != phones.of(4, 1)
    assert len({MIXES["uniform"].of(client, 0) for client in range(20)}) == 1


def test_the_kinds_of_a_mix_are_as_frequent_as_it_says() -> None:
    phones = MIXES["phones"]
    memories = [phones.of(client, 0).memory for client in range(2000)]
    for kind, share in zip(phones.kinds, phones.shares, strict=True):
        assert memories.count(kind.memory) / 2000 == pytest.approx(share, abs=0.03)
    paces = [phones.of(client, 0) for client in range(2000)]
    first = [np.log(one.seconds_per_sample / 0.002) for one in paces if one.memory == 6000]
    assert np.std(first) == pytest.approx(phones.spread, rel=0.15)


def test_a_file_has_a_row_per_client_and_begins_again(tmp_path: Path) -> None:
    mix = from_file(tmp_path / "d.csv", f"{HEADER}\n1,2,3,4,5\n6,7,8,9,10\n").device_mix()
    assert mix.of(0, 0) == mix.of(2, 9) == Device(1, 2, 3, 4, 5)
    assert mix.of(1, 0) == Device(6, 7, 8, 9, 10)


def test_nights_are_twelve_hours_somewhere(tmp_path: Path) -> None:
    nights = AVAILABILITIES["day-night"]
    there = [[nights.until(c, h * HOUR, 0) is not None for h in range(48)] for c in range(200)]
    assert {sum(one) for one in there} == {24}
    assert 0.4 < np.mean([one[0] for one in there]) < 0.6
    client = next(c for c, one in enumerate(there) if one[0] and not one[1])
    assert nights.until(client, 0.0, 0) == HOUR
    assert nights.until(client, 24 * HOUR + 60, 0) == 25 * HOUR


def test_a_trace_is_followed_and_begins_again(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("client,start,end\n5,0,10\n5,20,30\n9,5,40\n")
    availability = ClockSettings("uniform", f"file:{trace}").availabilities()
    assert [availability.until(0, now, 0) for now in (0, 9.5, 10, 25, 30, 40, 49)] == [
        10,
        10,
        None,
        30,
        None,
        50,
        50,
    ]
    assert availability.until(1, 46, 0) == 80
    assert availability.until(3, 4, 0) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "its first line must name the columns seconds_per_sample"),
        ("up,down\n1,2\n", "it lacks seconds_per_sample, latency, memory"),
        (HEADER + "\n", "it has no line below the names"),
        (
            HEADER + "\n1,2,3,4,5\n1,fast,3,4,5\n",
            "line 3: up must be a number from 0 to 1e.30, not",
        ),
        (HEADER + "\n1,-2,3,4,5\n", "line 2: up must be a number from 0 to 1e.30, not '-2'"),
        (HEADER + "\n1,2,3,4\n", "line 2: memory must be a number from 0 to 1e.30, not ''"),
        (HEADER + "\n0,002,20,80,0.05,6000\n", "line 2: it has more cells than the first line"),
        (HEADER.replace("latency", "latency,up") + "\n1,2,3,4,5,6\n", "names up twice"),
        (HEADER + "\n1_0,2,3,4,5\n", "seconds_per_sample must be a number from 0"),
        (HEADER + "\n1,2,3,4,٥\n", "memory must be a number from 0"),
        (HEADER + "\n1e308,2,3,4,5\n", "seconds_per_sample must be a number from 0"),
        (HEADER + "\n1,5e-324,3,4,5\n", "up and down must be above 0, and at least 1e-09"),
        (HEADER + "\n1,0,3,4,5\n", "line 2: up and down must be above 0"),
        (HEADER + "\nnan,2,3,4,5\n", "line 2: seconds_per_sample must be a number"),
        ("\0\0", "its first line must name the columns"),
    ],
)
def test_bad_device_files_get_a_line(text: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        from_file(tmp_path / "d.csv", text).device_mix()
    assert "\n" not in str(caught.value)


def test_bad_traces_get_a_line(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("client,start,end\n1,5,5\n")
    with pytest.raises(ConfigError, match="line 2: end must be after start"):
        ClockSettings("uniform", f"file:{trace}").availabilities()
    with pytest.raises(ConfigError, match=r"clock.devices: .*gone.csv: cannot be read"):
        ClockSettings(f"file:{tmp_path / 'gone.csv'}").device_mix()
