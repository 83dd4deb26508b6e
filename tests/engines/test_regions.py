"""Shared memory gives back what was put into it, in every process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dcfl.engines.regions import ALIGNMENT, Region
from dcfl.messages import Tensors

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
)
SHAPES = st.lists(st.integers(0, 4), max_size=5).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Tensor]:
    """Any bits, NaN of any kind among them; some 4-dimensional ones with the channels last."""
    made = {}
    for name in draw(st.lists(st.text(max_size=5), max_size=5, unique=True)):
        shape, dtype = draw(SHAPES), draw(st.sampled_from(DTYPES))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
        size = torch.empty(shape, dtype=dtype).nbytes
        high = 2 if dtype is torch.bool else 256
        raw = torch.randint(0, high, (size,), generator=generator, dtype=torch.uint8)
        tensor = raw.view(dtype).view(shape)
        if tensor.dim() == 4 and draw(st.booleans()):
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        made[name] = tensor
    return made


def raw(tensor: Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def described(tensors: Tensors) -> dict[str, object]:
    return {n: [str(t.dtype), list(t.shape), raw(t)] for n, t in tensors.items()}


def layout(tensor: Tensor) -> list[int]:
    """The strides that the canonical layout has; an empty tensor's say nothing."""
    if not tensor.numel():
        return []
    last = torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
    return list(torch.empty(tensor.shape, memory_format=last).stride())


def in_another_process(look: Callable[[object], object], question: object) -> object:
    """What `look` answers in a process that is forked before the question is asked."""
    asked, answered = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(asked[1])
            with os.fdopen(asked[0], "rb") as stream:
                answer = look(json.loads(stream.read()))
            os.write(answered[1], json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(asked[0])
    os.close(answered[1])
    with os.fdopen(asked[1], "wb") as stream:
        stream.write(json.dumps(question).encode())
    with os.fdopen(answered[0], "rb") as stream:
        answer = stream.read()
    os.waitpid(pid, 0)
    return json.loads(answer) if answer else None


@given(st.lists(tensors(), min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_what_is_put_is_got_whatever_was_there_before(contents: list[dict[str, Tensor]]) -> None:
    region = Region()
    try:
        for each in contents:
            got = region.get(region.put(each))
            assert list(got) == list(each)
            assert described(got) == described(each)
    finally:
        region.close()


@given(tensors(), tensors())
@settings(deadline=None, max_examples=15)
def test_another_process_sees_the_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    region = Region()
    try:
        region.put(first)

        def look(places: object) -> object:
            got = region.get(places)  # type: ignore[arg-type]
            aligned = all(t.data_ptr() % ALIGNMENT == 0 for t in got.values() if t.numel())
            strides = {n: list(t.stride()) if t.numel() else [] for n, t in got.items()}
            return [described(got), strides, aligned]

        seen = in_another_process(look, region.put(second))
        assert seen == [described(second), {n: layout(t) for n, t in second.items()}, True]
    finally:
        region.close()


def test_got_tensors_change_with_the_next_put_and_outlive_the_region() -> None:
    region = Region()
    got = region.get(region.put({"a": torch.ones(3)}))["a"]
    region.put({"a": torch.full((3,), 2.0)})
    region.close()
    assert got.tolist() == [2.0, 2.0, 2.0]


def test_growing_keeps_what_was_got_before_readable() -> None:
    region = Region()
    small = region.get(region.put({"a": torch.ones(3)}))["a"]
    large = region.get(region.put({"a": torch.full((10_000,), 3.0)}))["a"]
    assert small.tolist() == [3.0, 3.0, 3.0]
    assert bool((large == 3).all())
    region.close()


def test_a_closed_region_leaves_no_open_file() -> None:
    before = len(os.listdir("/proc/self/fd"))
    region = Region()
    region.put({"a": torch.ones(5000)})
    region.close()
    del region
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_small_put_of_one_process_does_not_cut_off_anothers_large_one() -> None:
    """What it still maps must not end in SIGBUS."""
    region, large = Region(), {"a": torch.ones(10_000)}
    asked, answered = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        region.put(large)
        os.write(answered[1], b"1")
        os.read(asked[0], 1)
        region.put(large)
        os._exit(0)
    os.read(answered[0], 1)
    region.put({"a": torch.zeros(10)})
    os.write(asked[1], b"1")
    _, status = os.waitpid(pid, 0)
    for end in (*asked, *answered):
        os.close(end)
    region.close()
    assert os.waitstatus_to_exitcode(status) == 0
