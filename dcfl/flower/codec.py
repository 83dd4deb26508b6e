"""Broadcasts and replies as Flower's records, and back.

Each set of named tensors is one array record with one array of safetensors bytes: exact for every
dtype, nothing that could run code, and one object to send instead of one per layer. What comes from
a client is not trusted: whatever cannot be read is a ProtocolError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dcfl.errors import CODES, LONGEST_REASON, ClientFailure, ProtocolError
from dcfl.evaluation import Score
from dcfl.messages import Broadcast, ClientUpdate, Tensors, Traffic
from dcfl.server.validation import LARGEST_METRIC, LONGEST_NAME
from dcfl.weights import as_rows, from_rows

FORMAT = "dcfl.safetensors"
PART = "tensors"  # the one array of a record


class Task(NamedTuple):
    """What a message asks a node to do, beside the tensors in it."""

    run: str  # of ours; Flower's own changes when a run is taken up again
    round: int
    client: int
    memory_round: int = 0  # of the client's memory to start from; 0: it has none
    oldest_round: int = 0  # of the memories that may still be asked for


def encode(tensors: Tensors) -> ArrayRecord:
    # Numbered, because safetensors sorts, and sums over all tensors depend on their order.
    rows = enumerate(as_rows(tensors).items())
    data = save({f"{place:06d}.{name}": tensor for place, (name, tensor) in rows})
    return ArrayRecord({PART: Array("uint8", (len(data),), FORMAT, data)})


def decode(record: object) -> dict[str, Tensor]:
    """In the order and in the memory layout in which they were encoded."""
    if not isinstance(record, ArrayRecord) or list(record) != [PART]:
        raise ProtocolError("tensors that are not one array")
    if record[PART].stype != FORMAT:
        raise ProtocolError("tensors in an unknown format")
    try:
        stored = load(record[PART].data)
        found = from_rows({key.partition(".")[2]: stored[key] for key in sorted(stored)})
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise ProtocolError("tensors that cannot be read") from error
    if len(found) != len(stored):
        raise ProtocolError("two tensors of one name")
    return found


def num_bytes(content: RecordDict) -> int:
    """Of the tensors as they are sent, with their names and shapes."""
    records = content.array_records.values()
    return sum(len(array.data) for record in records for array in record.values())


# Down


def train_content(task: Task, weights: ArrayRecord, shared: ArrayRecord) -> RecordDict:
    """The records are made once a round and go to every client."""
    return RecordDict({"task": _task_record(task), "weights": weights, "shared": shared})


def evaluate_content(task: Task, weights: ArrayRecord) -> RecordDict:
    return RecordDict({"task": _task_record(task), "weights": weights})


def task_content(task: Task) -> RecordDict:
    return RecordDict({"task": _task_record(task)})


def node_content(task: Task, partition: int, partitions: int) -> RecordDict:
    said = ConfigRecord({"partition-id": partition, "num-partitions": partitions})
    return RecordDict({"task": _task_record(task), "node": said})


def read_node(content: RecordDict, task: Task) -> tuple[int, int]:
    """A node's partition id, and how many there are."""
    if "failed" in content:
        raise ProtocolError(CODES.get(_text(_config(content, "failed"), "code"), "it failed"))
    record = _config(content, "node")
    own, count = (_count(record, key) for key in ("partition-id", "num-partitions"))
    if own >= count:
        raise ProtocolError(f"a node is number {own} of {count}, counted from 0")
    return own, count


def read_task(content: RecordDict) -> Task:
    record = _config(content, "task")
    return Task(
        _text(record, "run"),
        *(_count(record, key) for key in ("round", "client", "memory-round", "oldest-round")),
    )


def read_broadcast(content: RecordDict, task: Task) -> Broadcast:
    shared = decode(content["shared"]) if "shared" in content else {}
    return Broadcast(task.round, decode(content.get("weights")), shared)


def _task_record(task: Task) -> ConfigRecord:
    return ConfigRecord(
        {
            "run": task.run,
            "round": task.round,
            "client": task.client,
            "memory-round": task.memory_round,
            "oldest-round": task.oldest_round,
        }
    )


# Up


def update_content(task: Task, update: ClientUpdate, kept: bool) -> RecordDict:
    """`kept`: the client has a memory of this round."""
    counts = ConfigRecord(
        {
            "num-examples": update.num_examples,
            "num-steps": update.num_steps,
            "kept": int(kept),
        }
    )
    return RecordDict(
        {
            "task": _task_record(task),
            "weights": encode(update.weights),
            "upload": encode(update.upload),
            "counts": counts,
            "metrics": MetricRecord(dict(update.metrics)),
        }
    )


def failure_content(task: Task, failure: ClientFailure, reveal: bool = False) -> RecordDict:
    """`reveal` what exactly went wrong: where server and client are the same person's."""
    said = ConfigRecord({"code": failure.code})
    if reveal:
        said["reason"] = failure.reason
    return RecordDict({"task": _task_record(task), "failed": said})


def score_content(task: Task, score: Score, totals: list[int]) -> RecordDict:
    said = ConfigRecord({"right": score.right, "totals": totals, "losses": score.losses})
    return RecordDict({"task": _task_record(task), "score": said})


def has_kept(content: RecordDict) -> bool:
    return bool(_count(_config(content, "counts"), "kept"))


def read_reply(
    content: RecordDict, task: Task, reveal: bool = False, down: int = 0
) -> ClientUpdate | ClientFailure:
    """The answer to a task; `down`: the bytes that were sent with it."""
    _check_task(content, task)
    traffic = Traffic(num_bytes(content), down)
    if "failed" in content:
        said = _config(content, "failed")
        code = _text(said, "code")
        if code not in CODES:
            raise ProtocolError("a failure with an unknown code")
        reason = _text(said, "reason", LONGEST_REASON) if reveal else CODES[code]
        return ClientFailure(task.client, reason, code, traffic)
    counts = _config(content, "counts")
    return ClientUpdate(
        client=task.client,
        weights=decode(content.get("weights")),
        upload=decode(content.get("upload")),
        num_examples=_count(counts, "num-examples"),
        num_steps=_count(counts, "num-steps"),
        metrics=_metrics(content),
        traffic=traffic,
    )


def read_score(content: RecordDict, task: Task, classes: int) -> tuple[Score, list[int]]:
    """Of a site's own test images: the score, and how many images it has of each class."""
    _check_task(content, task)
    record = _config(content, "score")
    right, totals = (_counts(record, key, classes) for key in ("right", "totals"))
    if any(hits > total for hits, total in zip(right, totals, strict=True)):
        raise ProtocolError("a score of more right answers than images")
    losses = record.get("losses")
    if not isinstance(losses, list) or not all(map(_is_reasonable, losses)):
        raise ProtocolError("a score whose losses are not numbers within reason")
    return Score(right, [float(loss) for loss in losses]), totals


def _counts(record: ConfigRecord, key: str, length: int) -> list[int]:
    values = record.get(key)
    if not isinstance(values, list) or len(values) != length or not all(map(_is_count, values)):
        raise ProtocolError(f"{key} is not a count for each class")
    return [int(value) for value in values]


def _check_task(content: RecordDict, task: Task) -> None:
    said = read_task(content)
    if (said.run, said.round, said.client) != (task.run, task.round, task.client):
        raise ProtocolError(
            f"an answer to round {said.round} for client {said.client}, where round {task.round} "
            f"was asked of client {task.client}"
        )


def _config(content: RecordDict, key: str) -> ConfigRecord:
    record = content.get(key)
    if not isinstance(record, ConfigRecord):
        raise ProtocolError(f"a message without its {key}")
    return record


def _text(record: ConfigRecord, key: str, longest: int = LONGEST_NAME) -> str:
    value = record.get(key)
    if not isinstance(value, str) or len(value) > longest:
        raise ProtocolError(f"{key} is not a short text")
    return value


def _count(record: ConfigRecord, key: str) -> int:
    value = record.get(key)
    if not _is_count(value):
        raise ProtocolError(f"{key} is not a count")
    return int(value)  # type: ignore[arg-type]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40


def _is_reasonable(value: object) -> bool:
    return isinstance(value, float) and abs(value) <= LARGEST_METRIC


def _metrics(content: RecordDict) -> Mapping[str, float]:
    """Whether there are too many of them is looked at where all replies are."""
    record = content.get("metrics")
    if not isinstance(record, MetricRecord) or not all(map(_is_reasonable, record.values())):
        raise ProtocolError("a reply without metrics, or with some that are not numbers")
    return {name: float(value) for name, value in record.items()}  # type: ignore[arg-type]
