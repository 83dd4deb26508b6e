"""What is sent arrives bit for bit, and what no honest client sends is turned away."""

from __future__ import annotations

import json
import pickle
import random
import struct
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Encoded
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dcfl.errors import CODES, ClientFailure, ProtocolError, ProtocolMismatch
from dcfl.evaluation import Score
from dcfl.flower import codec
from dcfl.flower.codec import Claim, Task
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast, ClientUpdate
from dcfl.methods import METHODS
from dcfl.server.validation import Schema, check_update
from dcfl.tensors import canonical
from tests.flower.in_process import over_the_wire
from tests.reliability.victims import SLOW

MEGABYTE = "x" * 10**6
TASK = Task("0123456789abcdef" * 2, 3, 1)
WEIGHTS = {
    "kernel": torch.arange(24.0).reshape(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
    "bias": torch.tensor([0.5, -0.0]),
    "steps": torch.tensor(7),
}
UPLOAD = {"sums": torch.ones(4, 2), "counts": torch.tensor([1, 0, 2, 0])}
SENT = Broadcast(TASK.round, {name: tensor + 1 for name, tensor in WEIGHTS.items()}, {})
UPDATE = ClientUpdate(TASK.client, WEIGHTS, UPLOAD, 12, 5, {"loss": 0.7, "seconds": 0.1})


def delivered(content: RecordDict) -> RecordDict:
    return over_the_wire(Message(content, dst_node_id=1, message_type="train")).content


def bits(tensor: Tensor) -> bytes:
    """Value by value, whatever the memory layout."""
    flat = tensor.clone(memory_format=torch.contiguous_format).reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if len(flat) else b""


def all_bits(tensors: Mapping[str, Tensor]) -> list[tuple[str, torch.dtype, list[int], bytes]]:
    return [
        (name, tensor.dtype, list(tensor.shape), bits(tensor)) for name, tensor in tensors.items()
    ]


# There and back

DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def as_channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def as_transposed(tensor: Tensor) -> Tensor:
    return tensor.transpose(0, -1) if tensor.dim() else tensor


def as_every_other(tensor: Tensor) -> Tensor:
    return tensor[::2] if tensor.dim() else tensor


LAYOUTS = [torch.Tensor.contiguous, as_channels_last, as_transposed, as_every_other]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Of random bits: NaN with any payload, infinities and -0.0 are among them."""
    dtype = draw(st.sampled_from(DTYPES))
    any_shape = st.lists(st.integers(0, 4), max_size=5)
    images = st.tuples(*[st.integers(1, 4)] * 4).map(list)
    shape = draw(st.one_of(any_shape, images))
    size = int(np.prod(shape)) * dtype.itemsize
    data = np.random.default_rng(draw(st.integers(0, 2**32))).bytes(size)
    if dtype == torch.bool:
        data = bytes(byte % 2 for byte in data)
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if size else torch.empty(0, dtype=dtype)
    return draw(st.sampled_from(LAYOUTS))(flat.reshape(shape))


NAMES = st.one_of(
    st.sampled_from(["", ".", "a.b.c", "000001.a", "größe", "重み", "a b\n", "\0"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
SPECIAL = {
    "z": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0]),
    "payload": torch.tensor([0x7FC12345, -0x3EDCBB], dtype=torch.int32).view(torch.float32),
    "": torch.tensor(3),
    "a": torch.empty(0, 3, dtype=torch.bfloat16),
}


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(NAMES, tensors(), max_size=8))
@example(SPECIAL)
def test_any_named_tensors_arrive_as_they_were_sent(sent: dict[str, Tensor]) -> None:
    content = delivered(RecordDict({"weights": codec.encode(sent)}))
    found = codec.decode(content["weights"])
    assert all_bits(found) == all_bits(sent)
    for name, tensor in canonical(sent).items():
        last = torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
        assert found[name].is_contiguous(memory_format=last) or not tensor.numel()
        assert found[name].data_ptr() % 64 == 0


def test_what_was_sent_is_not_changed_by_it() -> None:
    image = torch.arange(16.0).reshape(1, 2, 2, 4)
    before = image.stride(), bits(image)
    codec.encode({"image": image, "same": image})
    assert (image.stride(), bits(image)) == before


def test_a_broadcast_and_an_update_survive() -> None:
    shared = {"prototypes": torch.randn(4, 2), "known": torch.tensor([True, False, True, True])}
    records = codec.encode(WEIGHTS), codec.encode(shared)
    sent = codec.message(TASK, weights=records[0], shared=records[1])
    task = codec.read_task(delivered(sent))
    assert task == TASK
    broadcast = codec.read_broadcast(delivered(sent), task)
    assert broadcast.round == TASK.round
    assert all_bits(broadcast.weights) == all_bits(WEIGHTS)
    assert all_bits(broadcast.shared) == all_bits(shared)
    assert all_bits(accepted(honest()).upload) == all_bits(UPLOAD)
    assert is_the_honest_one(accepted(honest()))


@pytest.mark.parametrize("code", CODES)
def test_a_failure_says_its_code_and_no_more(code: str) -> None:
    failure = ClientFailure(TASK.client, "at /home/alice/scans", code)
    content = delivered(codec.failure_content(TASK, failure))
    found = codec.read_reply(content, TASK)
    assert isinstance(found, ClientFailure)
    reason = failure.reason if code == "refused" else CODES[code]  # see SiteRefusal
    assert (found.client, found.code, found.reason) == (TASK.client, code, reason)


# Hostile replies


def honest() -> RecordDict:
    return codec.update_content(TASK, UPDATE, has_memory=True)


def accepted(content: RecordDict, sent: Broadcast = SENT, task: Task = TASK) -> ClientUpdate:
    """As a server reads and checks a reply; an honest failure is not an update either."""
    content = delivered(content)
    reply = codec.read_reply(content, task)
    if isinstance(reply, ClientFailure):
        raise ProtocolError(reply.reason)
    codec.has_memory(content)
    check_update(reply, sent, Schema(METHODS["fedavg"](), LocalTraining()))
    return reply


def is_the_honest_one(update: ClientUpdate) -> bool:
    return (
        all_bits(update.weights) == all_bits(WEIGHTS)
        and all_bits(update.upload) == all_bits(UPLOAD)
        and (update.client, update.num_examples, update.num_steps, update.metrics)
        == (UPDATE.client, UPDATE.num_examples, UPDATE.num_steps, UPDATE.metrics)
    )


Change = Callable[[RecordDict], None]


def record(key: str, value: ArrayRecord | ConfigRecord | MetricRecord | None) -> Change:
    def change(content: RecordDict) -> None:
        content.pop(key, None)
        if value is not None:
            content[key] = value

    return change


def entry(key: str, name: str, value: Any) -> Change:
    """Of a config or metric record; None: it is missing."""

    def change(content: RecordDict) -> None:
        values: dict[str, Any] = {**content[key], name: value}
        if value is None:
            del values[name]
        content[key] = type(content[key])(values)

    return change


def other_tensors(change: Callable[[dict[str, Tensor]], Any], key: str = "weights") -> Change:
    """Well-formed, of other names or values."""

    def change_record(content: RecordDict) -> None:
        changed = codec.decode(content[key])
        change(changed)
        content[key] = codec.encode(changed)

    return change_record


def first(change: Callable[[Tensor], Tensor], key: str = "weights") -> Change:
    """Another value for the first tensor."""

    def put(found: dict[str, Tensor]) -> None:
        name = next(iter(found))
        found[name] = change(found[name])

    return other_tensors(put, key)


def filled(value: float) -> Change:
    return first(lambda tensor: torch.full_like(tensor, value))


def renamed(name: str) -> Change:
    return other_tensors(lambda found: found.update({name: found.pop(next(iter(found)))}))


def array(data: bytes, stype: str = codec.FORMAT, dtype: str = "uint8") -> Array:
    return Array(dtype, (len(data),), stype, data)


def raw(change: Callable[[bytes], bytes]) -> Change:
    """Other bytes where the weights' safetensors are."""

    def change_record(content: RecordDict) -> None:
        content["weights"] = ArrayRecord(
            {codec.PART: array(change(content["weights"]["tensors"].data))}
        )

    return change_record


def header(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Another header in front of the same bytes."""

    def rewrite(data: bytes) -> bytes:
        (length,) = struct.unpack("<Q", data[:8])
        said = json.loads(data[8 : 8 + length])
        text = json.dumps(change(said) or said).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    return raw(rewrite)


def each_entry(**values: Any) -> Change:
    return header(lambda said: [tensor.update(values) for tensor in said.values()] and None)


def first_entry(**values: Any) -> Change:
    return header(lambda said: said[min(said)].update(values))


def overlap(said: dict[str, Any]) -> None:
    for tensor in said.values():
        start, end = tensor["data_offsets"]
        tensor["data_offsets"] = [0, end - start]


def shift(said: dict[str, Any]) -> None:
    for tensor in said.values():
        tensor["data_offsets"] = [offset + 4 for offset in tensor["data_offsets"]]


def twice_in_json(data: bytes) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    text = data[8 : 8 + length].strip()
    text = text[:-1] + b"," + text[1:]
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def npy(value: Any) -> bytes:
    stream = BytesIO()
    np.save(stream, value, allow_pickle=True)
    return stream.getvalue()


def arrays(**found: Array) -> Change:
    return record("weights", ArrayRecord(found))


def failing(**said: Any) -> Change:
    def change(content: RecordDict) -> None:
        content["failed"] = ConfigRecord(said)

    return change


RECORDS = ("task", "weights", "upload", "counts", "metrics")
COUNTS = [("task", name) for name in ("round", "client", "memory-round")] + [
    ("counts", name) for name in ("num-examples", "num-steps", "kept")
]
NO_COUNTS = {
    "missing": None,
    "negative": -1,
    "a bool": True,
    "a float": 1.0,
    "a text": "1",
    "bytes": b"1",
    "a list": [1],
    "2**62": 2**62,
    "2**63": 2**63,
}
VALID = codec.encode(WEIGHTS)[codec.PART].data
OBJECTS = npy(np.array([{"a": 1}], dtype=object))

HOSTILE: dict[str, Change] = {
    **{f"no {key}": record(key, None) for key in RECORDS},
    **{
        f"{key} is a {type(value).__name__}": record(key, value)
        for key in RECORDS
        for value in (ArrayRecord(), ConfigRecord(), MetricRecord())
        if key != "metrics" or not isinstance(value, MetricRecord)  # to have none is no crime
    },
    **{
        f"{name} is {what}": entry(key, name, value)
        for key, name in COUNTS
        for what, value in NO_COUNTS.items()
    },
    "run is missing": entry("task", "run", None),
    "run is a count": entry("task", "run", 3),
    "run is a megabyte": entry("task", "run", MEGABYTE),
    "another run": entry("task", "run", "f" * 32),
    "a stale round": entry("task", "round", 0),
    "a future round": entry("task", "round", 1000),
    "another client": entry("task", "client", 0),
    "no examples": entry("counts", "num-examples", 0),
    "NaN metric": entry("metrics", "loss", float("nan")),
    "infinite metric": entry("metrics", "loss", float("-inf")),
    "a count as metric": entry("metrics", "loss", 2**62),
    "a list as metric": entry("metrics", "loss", [0.5, 0.5]),
    "a metric's name is a megabyte": entry("metrics", MEGABYTE, 0.5),
    "a thousand metrics": record("metrics", MetricRecord({f"m{i}": 0.5 for i in range(1000)})),
    "no array": arrays(),
    "two arrays": arrays(tensors=array(VALID), more=array(VALID)),
    "an array by another name": arrays(weights=array(VALID)),
    "Flower's own arrays": arrays(kernel=Array(np.zeros((2, 3, 2, 2), dtype=np.float32))),
    "numpy's format": arrays(tensors=Array(np.zeros(3, dtype=np.float32))),
    "a format without a name": arrays(tensors=array(VALID, "")),
    "an object array": arrays(tensors=array(OBJECTS, "numpy.ndarray", "object")),
    "an object array in our format": arrays(tensors=array(OBJECTS, dtype="object")),
    "a pickle in our format": arrays(tensors=array(pickle.dumps(WEIGHTS))),
    "no bytes": raw(lambda data: b""),
    "half a header": raw(lambda data: data[:20]),
    "nothing but a length": raw(lambda data: data[:8]),
    "a header of 2**63 bytes": raw(lambda data: struct.pack("<Q", 2**63) + data[8:]),
    "a header without end": raw(lambda data: struct.pack("<Q", len(data) + 1) + data[8:]),
    "an empty header": raw(lambda data: bytes(8) + data[8:]),
    "a nested header": raw(lambda data: struct.pack("<Q", 10**5) + b"[" * 10**5),
    "a header that is not text": raw(lambda data: data[:8] + b"\xff" * (len(data) - 8)),
    "truncated data": raw(lambda data: data[:-1]),
    "no data": raw(lambda data: data[: -sum(tensor.nbytes for tensor in WEIGHTS.values())]),
    "more data than said": raw(lambda data: data + b"more"),
    "overlapping tensors": header(overlap),
    "a hole": header(shift),
    "reversed offsets": first_entry(data_offsets=[96, 0]),
    "negative offsets": first_entry(data_offsets=[-96, 0]),
    "offsets far away": first_entry(data_offsets=[2**62, 2**62 + 96]),
    "one offset": first_entry(data_offsets=[0]),
    "unknown dtype": each_entry(dtype="F9000"),
    "dtype without torch's like": each_entry(dtype="F4"),
    "dtype is a number": first_entry(dtype=32),
    "lying dtype": first_entry(dtype="F64"),
    "equally wide dtype": first_entry(dtype="I32"),
    "lying shape": first_entry(shape=[10**6, 10**6]),
    "overflowing shape": first_entry(shape=[2**62, 2**62, 2**62]),
    "negative shape": first_entry(shape=[-24]),
    "flat shape": first_entry(shape=[24]),
    "a shape of a thousand axes": first_entry(shape=[1] * 10**5 + [24]),
    "entries without keys": header(lambda said: {key: {} for key in said}),
    "entries that are lists": header(lambda said: {key: [1, 2] for key in said}),
    "a name twice": header(
        lambda said: {f"00000{place}.same": said[key] for place, key in enumerate(sorted(said))}
    ),
    "names without their numbers": header(
        lambda said: {key.partition(".")[2]: value for key, value in said.items()}
    ),
    "no tensors": other_tensors(dict.clear),
    "a missing tensor": other_tensors(dict.popitem),
    "a tensor too many": other_tensors(lambda found: found.update(extra=torch.zeros(1))),
    "another name": renamed("kernel "),
    "a name of a megabyte": renamed(MEGABYTE),
    "a name without letters": renamed(""),
    "NaN": filled(float("nan")),
    "infinity": filled(float("inf")),
    "minus infinity": filled(float("-inf")),
    "one NaN among zeros": first(
        lambda tensor: torch.zeros_like(tensor).index_fill_(0, torch.tensor(0), torch.nan)
    ),
    "doubles": first(Tensor.double),
    "halves": first(Tensor.half),
    "integers": first(Tensor.long),
    "bools": first(Tensor.bool),
    "complex numbers": first(lambda tensor: tensor * 1j),
    "float8": first(lambda tensor: tensor.to(torch.float8_e4m3fn)),
    "a scalar that broadcasts": first(lambda tensor: tensor.sum()),
    "a row that broadcasts": first(lambda tensor: tensor[:1]),
    "one axis more": first(lambda tensor: tensor[None]),
    "permuted axes": first(lambda tensor: tensor.flatten(1).T),
    "no elements": first(lambda tensor: tensor[:0]),
    "a thousand times too many": first(lambda tensor: tensor.repeat(1000, *[1] * tensor[0].dim())),
    "NaN in the upload": other_tensors(
        lambda found: found.update(a=torch.tensor(torch.nan)), "upload"
    ),
    "an infinite upload": other_tensors(
        lambda found: found.update(a=torch.tensor(torch.inf, dtype=torch.bfloat16)), "upload"
    ),
    "a failure without a code": failing(),
    "a failure of an unknown code": failing(code="because"),
    "a failure whose code is a megabyte": failing(code=MEGABYTE),
    "a failure whose code is a number": failing(code=2),
    "a failure as metrics": record("failed", MetricRecord({"code": 1.0})),
    "a failure as arrays": record("failed", ArrayRecord()),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_reply_is_turned_away_with_a_short_reason(case: str) -> None:
    content = honest()
    HOSTILE[case](content)
    with pytest.raises(ProtocolError) as caught:
        accepted(content)
    assert 0 < len(str(caught.value)) <= codec.LONGEST_REASON


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.uint16], ids=str)
def test_an_upload_of_any_dtype_is_accepted_or_turned_away(dtype: torch.dtype) -> None:
    values = torch.tensor([1j, 3] if dtype.is_complex else [1, 3]).to(dtype)
    content = honest()
    other_tensors(lambda found: found.update(sums=values), "upload")(content)
    try:
        found = accepted(content)
    except ProtocolError:
        return
    assert bits(found.upload["sums"]) == bits(values)


@pytest.mark.parametrize(
    "extra",
    [
        record("more", ConfigRecord({"a": MEGABYTE})),
        record("more", codec.encode(WEIGHTS)),
        record("", MetricRecord({"a": 1.0})),
        entry("task", "more", MEGABYTE),
        entry("counts", "more", [1.0, 2.0]),
        raw(twice_in_json),
    ],
)
def test_what_nobody_asked_for_changes_nothing(extra: Change) -> None:
    content = honest()
    extra(content)
    assert is_the_honest_one(accepted(content))


@pytest.mark.parametrize("reason", [None, 3, b"why", ["why"], MEGABYTE])
def test_a_revealed_reason_must_be_a_text_that_is_not_too_long(reason: Any) -> None:
    said = {"code": "error"} | ({} if reason is None else {"reason": reason})
    content = codec.message(TASK)
    failing(**said)(content)
    with pytest.raises(ProtocolError):
        codec.read_reply(delivered(content), TASK, reveal=True)
    hidden = codec.read_reply(delivered(content), TASK, reveal=False)
    assert isinstance(hidden, ClientFailure)
    assert hidden.reason == CODES["error"]


def test_a_long_story_is_cut_before_it_is_sent() -> None:
    failure = ClientFailure(TASK.client, MEGABYTE)
    content = delivered(codec.failure_content(TASK, failure, reveal=True))
    found = codec.read_reply(content, TASK, reveal=True)
    assert isinstance(found, ClientFailure)
    assert len(found.reason) == codec.LONGEST_REASON
    assert found.reason == failure.reason


# Fuzz

DOSE = 1_000 if SLOW else 100  # of each of eight seeds


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One to four accidents: bytes changed, lost, doubled or put in."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place, length = rng.randrange(len(found) + 1), rng.choice([1, 1, 2, 8, 100])
        piece = found[place : place + length]
        found[place : place + length] = rng.choice(
            [b"", piece * 2, rng.randbytes(len(piece)), rng.randbytes(length) + piece, piece[::-1]]
        )
    return bytes(found)


def judge(content: RecordDict) -> str:
    try:
        update = accepted(content)
    except ProtocolError:
        return "rejected"
    shapes = {name: (tensor.dtype, tensor.shape) for name, tensor in update.weights.items()}
    assert shapes == {name: (tensor.dtype, tensor.shape) for name, tensor in WEIGHTS.items()}
    assert all(tensor.isfinite().all() for tensor in update.weights.values())
    assert update.client == TASK.client
    assert update.num_examples > 0 <= update.num_steps
    assert np.isfinite(list(update.metrics.values())).all()
    return "the same" if is_the_honest_one(update) else "other numbers"


@pytest.mark.parametrize("seed", range(4))
def test_fuzzed_messages_are_read_or_turned_away(seed: int) -> None:
    """What Flower itself cannot read is a matter of the grid."""
    rng = random.Random(seed)
    whole = message_to_proto(Message(honest(), dst_node_id=1, message_type="train"))
    data, verdicts = whole.SerializeToString(), set()
    for _ in range(DOSE):
        try:
            message = message_from_proto(Encoded.FromString(mutated(data, rng)))
            content = message.content
        except (DecodeError, ValueError, TypeError, AttributeError):
            continue
        verdicts.add(judge(content))
    assert "rejected" in verdicts


@pytest.mark.parametrize("seed", range(4))
def test_fuzzed_tensors_are_read_or_turned_away(seed: int) -> None:
    rng = random.Random(seed)
    verdicts = set()
    for _ in range(DOSE):
        content = honest()
        raw(lambda data: mutated(data, rng))(content)
        verdicts.add(judge(content))
    assert "rejected" in verdicts


# Nodes and scores


@pytest.mark.parametrize(
    "said",
    [
        {"partition-id": -1, "num-partitions": 2},
        {"partition-id": 2, "num-partitions": 2},
        {"partition-id": 0, "num-partitions": 0},
        {"partition-id": "0", "num-partitions": 2},
        {"partition-id": 0.0, "num-partitions": 2},
        {"partition-id": False, "num-partitions": 2},
        {"partition-id": [0], "num-partitions": 2},
        {"partition-id": 0, "num-partitions": 2**62},
    ],
)
def test_a_node_must_say_a_number_among_its_count(said: dict[str, Any]) -> None:
    for claim in (Claim(1, 2, [4, 0]), Claim(1, None, [4, 0]), Claim(None, None, [4, 0])):
        content = codec.claim_content(TASK, claim)
        assert codec.read_claim(delivered(content), TASK, 2) == claim
    content["node"] = ConfigRecord({"images": [4, 0], **said})
    with pytest.raises(ProtocolError):
        codec.read_claim(delivered(content), TASK, 2)


@pytest.mark.parametrize("examples", [None, -1, 2**40, 1.0, [1], "1"])
def test_a_node_must_say_how_many_images_its_replies_count(examples: Any) -> None:
    content = codec.claim_content(TASK, Claim(1, 2, [4, 0], examples=7))
    assert codec.read_claim(delivered(content), TASK, 2).examples == 7
    entry("node", "examples", examples)(content)
    with pytest.raises(ProtocolError, match="examples"):
        codec.read_claim(delivered(content), TASK, 2)


@pytest.mark.parametrize("images", [None, [4], [4, 0, 1], [4, -1], [4, 2**62], [4.0, 0.0], 4])
def test_a_node_must_say_how_many_test_images_it_has(images: Any) -> None:
    content = codec.claim_content(TASK, Claim(1, 2, [4, 0]))
    entry("node", "images", images)(content)
    with pytest.raises(ProtocolError, match="images"):
        codec.read_claim(delivered(content), TASK, 2)


# Whose answer, and in which language


def test_nobody_answers_a_question_that_it_has_not_read() -> None:
    """Flower checks which node sends, and not in whose name it does."""
    asked = TASK.ticketed()
    assert len({TASK.ticketed().ticket for _ in range(100)}) == 100
    answer = codec.read_reply(delivered(codec.update_content(asked, UPDATE, True)), asked)
    assert isinstance(answer, ClientUpdate)
    for answered in (TASK, TASK.ticketed()):
        with pytest.raises(ProtocolError, match="not read the question"):
            codec.read_reply(delivered(codec.update_content(answered, UPDATE, True)), asked)
        claim = delivered(codec.claim_content(answered, Claim(0, 1, [1])))
        with pytest.raises(ProtocolError, match="not read the question"):
            codec.read_claim(claim, asked, 1)


@pytest.mark.parametrize("protocol", [None, 1, 3, 5, "4", 4.5])
def test_another_version_of_the_protocol_is_refused_by_name(protocol: Any) -> None:
    for content in (
        codec.claim_content(TASK, Claim(0, 1, [1])),
        codec.failure_content(TASK, ClientFailure(0, "", "data")),
    ):
        entry("task", "protocol", protocol)(content)
        for read in (
            lambda content: codec.read_task(content),
            lambda content: codec.read_claim(content, TASK, 1),
            lambda content: codec.read_reply(content, TASK),
        ):
            with pytest.raises(ProtocolMismatch, match="another version"):
                read(delivered(content))


def test_a_score_survives() -> None:
    score = Score([3, 0], [0.25, 1.5])
    content = delivered(codec.score_content(TASK, score, [4, 0]))
    assert codec.read_score(content, TASK, [4, 0]) == score


SCORES: dict[str, Change] = {
    "a stale round": entry("task", "round", 2),
    "no score": record("score", None),
    "another record": record("score", MetricRecord()),
    **{
        f"right is {value}": entry("score", "right", value)
        for value in (None, [5, 0], [-1, 0], [3], [3, 0, 0], [3.0, 0.0], [True, False])
    },
    **{
        f"totals are {value}": entry("score", "totals", value)
        for value in ([2**62, 0], [5, 0], [3, 0], [4, 1], 4, None)
    },
    **{
        f"losses are {value}": entry("score", "losses", value)
        for value in (None, 0.5, [1, 2], ["1"], [np.nan], [np.inf], [1e308, 1e308], [-0.5])
    },
    "more losses than images": entry("score", "losses", [0.1] * 5),
}


@pytest.mark.parametrize("case", SCORES)
def test_a_score_that_cannot_be_is_turned_away(case: str) -> None:
    content = codec.score_content(TASK, Score([3, 0], [0.25]), [4, 0])
    SCORES[case](content)
    with pytest.raises(ProtocolError):
        codec.read_score(delivered(content), TASK, [4, 0])
