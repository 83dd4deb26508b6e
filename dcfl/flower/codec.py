"""Broadcasts and replies as Flower's records, and back.

Each set of named tensors is one array record with one array of safetensors bytes: exact for every
dtype, nothing that could run code, and one object to send instead of one per layer. What comes from
a client is not trusted: whatever cannot be read is a ProtocolError. Every text that a node chose is
read by `_text`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from secrets import token_hex
from typing import Any, NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dcfl.errors import (
    CODES,
    LONGEST_REASON,
    ClientFailure,
    ProtocolError,
    ProtocolMismatch,
    RefusedBySite,
)
from dcfl.evaluation import Score
from dcfl.flower import withholding
from dcfl.flower.audit_log import HASH_DIGITS, Head
from dcfl.flower.site_failures import REFUSED
from dcfl.messages import Broadcast, ClientUpdate, Tensors, Traffic
from dcfl.scores import Scores
from dcfl.server.validation import LARGEST_METRIC, LONGEST_NAME, check_like, check_values
from dcfl.tensors import as_rows, from_rows

FORMAT = "dcfl.safetensors"
PART = "tensors"  # the one array of a record
OTHER_IMAGES = "a score of other test images than it said it has when it joined"
CHANNELS = 3  # of every picture at a site
PROTOCOL = 4  # of what server and nodes say to each other; both must speak the same


class Task(NamedTuple):
    """What a message asks a node to do, beside the tensors in it."""

    run: str  # dcfl's id; Flower's own changes when a run is resumed
    round: int
    client: int
    memory_round: int = 0  # of the client's memory to start from; 0: it has none
    oldest_round: int = 0  # of the memories that may still be asked for
    ticket: str = ""  # a secret of this one message, which its answer repeats

    def ticketed(self) -> Task:
        """The task for one message. Flower checks that a node sends a reply, not that it is the
        node that was asked; only that one has read the ticket."""
        return self._replace(ticket=token_hex(16))


class Claim(NamedTuple):
    """What a node says of itself."""

    partition: int | None  # which site it is; None: its key tells
    partitions: int | None  # how many sites it wants there to be; None: any number
    images: list[int]  # of its test set, per class; empty if it withholds scores
    withheld: frozenset[str] = frozenset()  # words of withholding.py
    broken: int = 0  # pictures that it leaves out, if it tells that
    examples: int = 1  # at most, that its replies count
    lends: bool = False  # its personal part


class SiteStatistics(NamedTuple):
    """What a site says of its training images; empty or None: it keeps that to itself."""

    images: int | None
    by_class: list[int]
    mean: list[float]  # of each channel, of pixels in 0 to 1; or of each number of feature vectors
    std: list[float]


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
        tensors = from_rows({key.partition(".")[2]: stored[key] for key in sorted(stored)})
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise ProtocolError("tensors that cannot be read") from error
    if len(tensors) != len(stored):
        raise ProtocolError("two tensors of one name")
    return tensors


def num_bytes(content: RecordDict) -> int:
    """The size of the tensors as they are sent, with their names and shapes."""
    records = content.array_records.values()
    return sum(len(array.data) for record in records for array in record.values())


def all_bytes(content: RecordDict) -> int:
    """The size of all tensors and numbers in a message."""
    numbers = [*content.config_records.values(), *content.metric_records.values()]
    return num_bytes(content) + sum(len(record.deflate()) for record in numbers)


def names_in(content: RecordDict) -> list[str]:
    """What an answer says, by name, except what it repeats of its question."""
    names = []
    for name, record in content.items():
        if name == "task":
            continue
        parts = _tensor_names(record) if isinstance(record, ArrayRecord) else list(record)
        # Those of the model are many and tell nothing.
        names += ["weights"] if name == "weights" else [f"{name}.{part}" for part in parts]
    return names


def _tensor_names(record: ArrayRecord) -> list[str]:
    data = record[PART].data
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return [key.partition(".")[2] for key in sorted(header) if key != "__metadata__"]


def message(task: Task, **records: ArrayRecord | ConfigRecord | MetricRecord) -> RecordDict:
    """A task, and what goes with it. The records of a round are made once, for all clients."""
    numbers = {name.replace("_", "-"): value for name, value in task._asdict().items()}
    return RecordDict({"task": ConfigRecord({"protocol": PROTOCOL, **numbers}), **records})


def claim_content(task: Task, claim: Claim) -> RecordDict:
    said: dict[str, Any] = {
        "partition-id": claim.partition,
        "num-partitions": claim.partitions,
        "images": claim.images,
        "withheld": withholding.in_order(claim.withheld),
        "broken": claim.broken,
        "examples": claim.examples,
        "lends": int(claim.lends),
    }
    told = {name: value for name, value in said.items() if value is not None and value != []}
    return message(task, node=ConfigRecord(told))


def read_claim(content: RecordDict, task: Task, classes: int) -> Claim:
    check_answer(content, task)
    record = _config(content, "node")
    keys = ("partition-id", "num-partitions")
    place, count = (_count(record, key) if key in record else None for key in keys)
    if place is not None and count is not None and place >= count:
        raise ProtocolError(f"its node config says partition-id={place} of {count}, counted from 0")
    words = record.get("withheld", [])
    if not isinstance(words, list) or not {*words} <= {*withholding.WORDS}:
        raise ProtocolError("it withholds something that has no name here")
    withheld = frozenset(map(str, words))
    images = [] if withholding.SCORES in withheld else _counts(record, "images", classes)
    numbers = (_count(record, key) for key in ("broken", "examples", "lends"))
    broken, examples, lends = numbers
    return Claim(place, count, images, withheld, broken, examples, bool(lends))


def statistics_content(task: Task, found: SiteStatistics) -> RecordDict:
    told = {name: value for name, value in found._asdict().items() if value not in (None, [])}
    return message(task, statistics=ConfigRecord(told))


def read_statistics(
    content: RecordDict, task: Task, classes: int, features: int = 0
) -> SiteStatistics:
    """`features`: numbers in a vector; 0: they are of pictures."""
    check_answer(content, task)
    record = _config(content, "statistics")
    total = _count(record, "images") if "images" in record else None
    counts = _counts(record, "by_class", classes) if "by_class" in record else []
    mean, std = (_reals(record, key) for key in ("mean", "std"))
    if not features and not all(0 <= value <= 1 for value in mean + std):
        raise ProtocolError("statistics that are not of pixels from 0 to 1")
    fits = len(mean) in (0, features or CHANNELS)
    if len(mean) != len(std) or not fits or (counts and sum(counts) != total):
        raise ProtocolError("statistics that do not fit together")
    return SiteStatistics(total, counts, mean, std)


def failed_place(content: RecordDict) -> int | None:
    """The partition id that a node gave with its failure, if it gave one."""
    record = content.get("failed")
    place = record.get("partition-id") if isinstance(record, ConfigRecord) else None
    return place if isinstance(place, int) and _is_count(place) else None


def read_task(content: RecordDict) -> Task:
    record = _config(content, "task")
    if record.get("protocol") != PROTOCOL:
        raise ProtocolMismatch(CODES["version"])
    counts = (_count(record, key) for key in ("round", "client", "memory-round", "oldest-round"))
    round, client, memory_round, oldest = counts
    return Task(_text(record, "run"), round, client, memory_round, oldest, _text(record, "ticket"))


def read_broadcast(content: RecordDict, task: Task) -> Broadcast:
    shared = decode(content["shared"]) if "shared" in content else {}
    return Broadcast(task.round, decode(content.get("weights")), shared)


def update_content(task: Task, update: ClientUpdate, has_memory: bool) -> RecordDict:
    """`has_memory`: the client keeps a memory of this round."""
    numbers = {"num-examples": update.num_examples, "num-steps": update.num_steps}
    return message(
        task,
        weights=encode(update.weights),
        upload=encode(update.upload),
        counts=ConfigRecord({**numbers, "kept": int(has_memory)}),
        metrics=MetricRecord(dict(update.metrics)),
    )


def failure_content(
    task: Task, failure: ClientFailure, reveal: bool = False, place: int | None = None
) -> RecordDict:
    """`reveal` what exactly went wrong: where server and client are the same person's. `place`: the
    node's partition id."""
    record = ConfigRecord({"code": failure.code})
    if place is not None:
        record["partition-id"] = place
    if reveal or failure.code == REFUSED:
        record["reason"] = failure.reason
    return message(task, failed=record)


def score_content(task: Task, score: Score, totals: list[int]) -> RecordDict:
    record = ConfigRecord({"right": score.right, "totals": totals, "losses": score.losses})
    return message(task, score=record)


def with_record(content: RecordDict, head: Head | None) -> RecordDict:
    """An answer, and how far the site's record goes with it: the server keeps that too."""
    if head is not None:
        content["record"] = ConfigRecord({"lines": head.lines, "last": head.last})
    return content


def read_record(content: RecordDict) -> tuple[int, str] | None:
    """The number of lines and the hash of the last; None if they are not told as they should."""
    record = content.get("record")
    if not isinstance(record, ConfigRecord):
        return None
    lines, last = record.get("lines"), record.get("last")
    fits = isinstance(last, str) and re.fullmatch(f"[0-9a-f]{{{HASH_DIGITS}}}", last)
    return (int(lines), str(last)) if _is_count(lines) and fits else None  # type: ignore[arg-type]


def table(rows: Mapping[int, bytes]) -> ConfigRecord:
    """Bytes of several clients."""
    return ConfigRecord({"clients": [*rows], "bytes": [*rows.values()]})


def read_table(content: RecordDict, name: str, length: int) -> dict[int, bytes]:
    """Of each client so many bytes."""
    record = _config(content, name)
    clients, rows = record.get("clients"), record.get("bytes")
    if not isinstance(clients, list) or not isinstance(rows, list):
        raise ProtocolError(f"{name} is no table")
    fits = all(map(_is_count, clients)) and len({*clients}) == len(clients) == len(rows)
    if not fits or not all(isinstance(row, bytes) and len(row) == length for row in rows):
        raise ProtocolError(f"{name} is not {length} bytes for each of some clients")
    return dict(zip(clients, rows, strict=True))  # type: ignore[arg-type]


def read_rows(
    content: RecordDict, task: Task, name: str, length: int, clients: Collection[int]
) -> dict[int, bytes]:
    """The answer to a task: a table of these clients."""
    check_answer(content, task)
    rows = read_table(content, name, length)
    if rows.keys() != {*clients}:
        raise ProtocolError(f"{name} of other clients than was asked")
    return rows


def has_memory(content: RecordDict) -> bool:
    return bool(_count(_config(content, "counts"), "kept"))


def read_reply(
    content: RecordDict, task: Task, reveal: bool = False, down: int = 0
) -> ClientUpdate | ClientFailure:
    """The answer to a task; `down`: the bytes that were sent with it."""
    _check_task(content, task)
    traffic = Traffic(num_bytes(content), down)
    if "failed" in content:
        code, reason = _read_failure(_config(content, "failed"), reveal)
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


def _read_failure(record: ConfigRecord, reveal: bool = False) -> tuple[str, str]:
    """The code, and our reason for it, or the node's where it may give one."""
    code = _text(record, "code")
    if code not in CODES:
        raise ProtocolError("a failure with an unknown code")
    if reveal or code == REFUSED:
        return code, _text(record, "reason", LONGEST_REASON)
    return code, CODES[code]


def read_score(content: RecordDict, task: Task, images: list[int]) -> Score:
    """On a site's own test images; `images`: how many it declared of each class."""
    check_answer(content, task)
    record = _config(content, "score")
    right, totals = (_counts(record, key, len(images)) for key in ("right", "totals"))
    if totals != images:
        raise ProtocolError(OTHER_IMAGES)
    if any(hits > total for hits, total in zip(right, totals, strict=True)):
        raise ProtocolError("a score of more right answers than images")
    losses = record.get("losses")
    if not isinstance(losses, list) or not all(map(_is_reasonable, losses)):
        raise ProtocolError("a score whose losses are not numbers within reason")
    found = [float(loss) for loss in losses]
    if any(loss < 0 for loss in found) or len(found) > sum(images):  # one of each batch
        raise ProtocolError("a score whose losses are not those of its images")
    return Score(right, found)


def read_scores(content: RecordDict, task: Task, images: list[int]) -> Scores:
    """On a site's own test images; `images`: how many it declared of each class."""
    check_answer(content, task)
    try:
        scores = Scores.of_tensors(decode(content.get("scores")), len(images))
    except ValueError as error:
        raise ProtocolError(str(error)) from error
    if scores.images_by_class.tolist() != images:
        raise ProtocolError(OTHER_IMAGES)
    return scores


def read_part(content: RecordDict, task: Task, model: Tensors) -> dict[str, Tensor]:
    """A site's personal part; `model`: tensors as it may have them."""
    check_answer(content, task)
    part = decode(content.get("part"))
    check_like(part, {name: model[name] for name in part if name in model}, "a personal part")
    for name, tensor in part.items():
        check_values(name, tensor)
    return part


def _counts(record: ConfigRecord, key: str, length: int) -> list[int]:
    values = record.get(key)
    if not isinstance(values, list) or len(values) != length or not all(map(_is_count, values)):
        raise ProtocolError(f"{key} is not a count for each class")
    return [int(value) for value in values]


def check_answer(content: RecordDict, task: Task) -> None:
    """Where an answer is one or none, and why not is all that matters. One who cannot read a task
    cannot repeat it: the version comes first, then the failure."""
    read_task(content)
    if "failed" in content:
        code, reason = _read_failure(_config(content, "failed"))
        raise (RefusedBySite if code == REFUSED else ProtocolError)(reason)
    _check_task(content, task)


def _check_task(content: RecordDict, task: Task) -> None:
    answered = read_task(content)
    if (answered.run, answered.round, answered.client) != (task.run, task.round, task.client):
        raise ProtocolError(
            f"an answer to round {answered.round} for client {answered.client}, "
            f"where round {task.round} was asked of client {task.client}"
        )
    if answered.ticket != task.ticket:
        raise ProtocolError("an answer from somebody who has not read the question")


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


def _reals(record: ConfigRecord, key: str) -> list[float]:
    values = record.get(key, [])
    if not isinstance(values, list) or not all(map(_is_reasonable, values)):
        raise ProtocolError(f"{key} is not a number for each channel")
    return [float(value) for value in values]


def _is_reasonable(value: object) -> bool:
    return isinstance(value, float) and abs(value) <= LARGEST_METRIC


def _metrics(content: RecordDict) -> Mapping[str, float]:
    """Validation of all replies checks that there are not too many."""
    record = content.get("metrics")
    if not isinstance(record, MetricRecord) or not all(map(_is_reasonable, record.values())):
        raise ProtocolError("a reply without metrics, or with some that are not numbers")
    return {name: float(value) for name, value in record.items()}  # type: ignore[arg-type]
