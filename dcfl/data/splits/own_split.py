"""A split of one's own: read from a file, fitted to the data set, and written.

.json   lists of image numbers, one per client; or an object with a list for each client, as
        flwr-datasets' `partition_id_to_indices` becomes in JSON; or what `dcfl partition --save`
        writes, which also says for which data
.csv    a line per image: its number and its client; without a column of numbers, the lines are
        the images in order
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dcfl.data.datasets import Dataset, Images
from dcfl.data.readers.pickles import Refused
from dcfl.data.splits.partition import MOST_CLIENTS, Partition
from dcfl.errors import ConfigError, PartitionError
from dcfl.system.storage import open_data
from dcfl.system.wording import csv_line, printable, without_apostrophe

Numbers = NDArray[np.int64]  # of images
LONGEST_NAME = 40  # characters of a client's name in a message


@dataclass(frozen=True)
class MadeFor:
    dataset: str
    images: int
    labels_sha256: str  # tells another data set, or another order of its images

    @classmethod
    def of(cls, name: str, images: Images) -> MadeFor:
        labels = images.labels.cpu().numpy().astype("<i8")
        return cls(name, len(labels), hashlib.sha256(labels.tobytes()).hexdigest())


@dataclass(frozen=True, eq=False)
class OwnSplit:
    parts: tuple[Numbers, ...]  # of the images of each client
    names: tuple[str, ...] = ()  # of the clients; none: they are numbered
    made_for: MadeFor | None = None
    path: Path = Path()

    @cached_property
    def sha256(self) -> str:
        """Depends on who owns what, and neither on the file's form nor on its name."""
        digest = hashlib.sha256()
        for numbers in (*self.parts, np.zeros(0)):  # nothing comes last: old hashes stay true
            digest.update(len(numbers).to_bytes(8, "little"))
            digest.update(np.asarray(numbers, "<i8").tobytes())
        return digest.hexdigest()

    def fitted(self, dataset: Dataset) -> Dataset:
        """The whole data set with its images numbered as the file does; refuses what does not fit
        in one line."""
        if dataset.numbered_by == self.sha256:
            return dataset
        if dataset.numbers is not None:
            raise ConfigError(
                f"data.partition = {self}: a part of the data was taken already, and its numbers "
                f"are lost; leave that to data.classes, data.holdout and data.train_images"
            )
        self._require_same_data(dataset.name, dataset.train)
        self._require_numbers(dataset.name, len(dataset.train))
        numbers = torch.arange(len(dataset.train))
        return replace(dataset, numbers=numbers, numbered_by=self.sha256)

    def over(self, dataset: Dataset, min_size: int) -> Partition:
        """The split of a data set that was `fitted` before a part of it was taken."""
        if dataset.numbered_by != self.sha256 or dataset.numbers is None:
            raise ConfigError(f"data.partition = {self}: the data set was not read for this file")
        numbers = dataset.numbers.numpy()
        last = max(int(part.max()) for part in (*self.parts, numbers) if len(part))
        rows = np.full(last + 1, -1, dtype=np.int64)
        rows[numbers] = np.arange(len(numbers))
        parts = [rows[part][rows[part] >= 0] for part in self.parts]
        for client, part in enumerate(parts):
            if len(part) < min_size:
                left = " left" if len(part) < len(self.parts[client]) else ""
                raise PartitionError(
                    f"{self.path}: {self.name(client)} has {len(part)} images{left}, and "
                    f"data.min_size is {min_size}"
                    + (": set it lower" if len(part) > 1 else ": leave the client out")
                )
        return Partition.of_parts(parts)

    def name(self, client: int) -> str:
        known = f" {printable(self.names[client], LONGEST_NAME)}" if self.names else ""
        return f"client{known or f' {client}'}"

    def __str__(self) -> str:
        return f"file:{self.path}"

    def _require_same_data(self, name: str, images: Images) -> None:
        made_for = self.made_for
        if made_for is None:
            return
        if made_for.images != len(images):
            raise PartitionError(
                f"{self.path} is for {printable(made_for.dataset)} with {made_for.images:,} "
                f"images, and {name} has {len(images):,}"
            )
        if made_for.labels_sha256 != MadeFor.of(name, images).labels_sha256:
            raise PartitionError(
                f"{self.path} is for {printable(made_for.dataset)}, and the images of {name} are "
                f"others, or in another order"
            )

    def _require_numbers(self, name: str, count: int) -> None:
        for client, numbers in enumerate(self.parts):
            who = f"{self.path}: {self.name(client)}"
            if not len(numbers):
                raise PartitionError(f"{who} has no images")
            if numbers.min() < 0:
                raise PartitionError(f"{who} has image {numbers.min()}, and numbers begin at 0")
            if numbers.max() >= count:
                raise PartitionError(
                    f"{who} has image {numbers.max()}, and {name} has {count:,} training images, "
                    f"from 0 on: is the file for another data set?"
                )
        owned = np.bincount(np.concatenate(self.parts))
        if owned.max() > 1:
            image = int(owned.argmax())
            first, second, *_ = [
                n for n, part in enumerate(self.parts) for _ in range((part == image).sum())
            ]
            what = "twice" if first == second else f"and to {self.name(second)}"
            raise PartitionError(f"{self.path}: image {image} belongs to {self.name(first)} {what}")


def own_split_of(
    partition: Partition, dataset: Dataset, whole: Dataset, path: Path, read: OwnSplit | None
) -> OwnSplit:
    """What would be written for this split of a data set, of which `whole` has all images. `read`:
    the file that it came from."""
    numbers = np.arange(len(dataset.train)) if dataset.numbers is None else dataset.numbers.numpy()
    return OwnSplit(
        tuple(numbers[partition.of(client)] for client in range(len(partition))),
        dataset.site_names or (read.names if read else ()),
        MadeFor.of(dataset.name, whole.train),
        path,
    )


FORMAT = "dcfl-split-1"
LARGEST_FILE = 100_000_000  # bytes
IMAGE_COLUMNS = ("image", "index", "idx", "image_id", "sample", "sample_id")
CLIENT_COLUMNS = ("client", "client_id", "cid", "partition_id", "partition", "site", "user")


def read_own_split(file: str) -> OwnSplit:
    path = Path(os.path.abspath(os.path.expanduser(file)))
    if path.suffix.lower() not in READERS:
        raise ConfigError(f"data.partition: {path}: the name must end in {' or '.join(READERS)}")
    if not path.is_file():
        what = "not a file" if path.exists() else "no such file"
        raise ConfigError(f"data.partition: {path}: {what}")
    with _refusing(path), open_data(path, LARGEST_FILE) as stream:
        found = READERS[path.suffix.lower()](stream.read())
        if not found.parts:
            raise Refused("it has no clients")
        return replace(found, path=path)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """A hostile file may raise anything on the way; the user sees one kind of error, one line."""
    try:
        yield
    except OSError as error:
        raise PartitionError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (Refused, UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise PartitionError(f"{path}: not a split: {error}") from error
    except (Exception, RecursionError) as error:
        raise PartitionError(f"{path}: not a split: damaged, or of another form") from error


def _read_json(content: bytes) -> OwnSplit:
    value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_each_key_once)
    if isinstance(value, list):
        return OwnSplit(_parts(value))
    if not isinstance(value, dict):
        raise Refused("neither lists of image numbers nor an object with such")
    if "format" in value:
        return _from_ours(value)
    return _from_named(value)


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Refused(f"{printable(key, 40)!r} occurs twice")
        found[key] = value
    return found


def _from_ours(value: Mapping[str, Any]) -> OwnSplit:
    if value["format"] != FORMAT:
        raise Refused(f"the format {printable(value['format'], 40)!r} is not known here")
    if "test" in value:
        raise Refused("it names test images, which splits no longer do")
    clients, made_for = value.get("clients"), value.get("made_for")
    if not isinstance(clients, list | dict):
        raise Refused("no lists of image numbers under 'clients'")
    kinds = {"dataset": str, "images": int, "labels_sha256": str}
    if not isinstance(made_for, dict) or {k: type(v) for k, v in made_for.items()} != kinds:
        raise Refused("no data set under 'made_for'")
    names = tuple(clients) if isinstance(clients, dict) else ()
    lists = [*clients.values()] if isinstance(clients, dict) else clients
    return OwnSplit(_parts(lists, names), names, MadeFor(**made_for))


def _from_named(clients: Mapping[str, Any]) -> OwnSplit:
    """Clients that are numbered come in the order of their numbers, others as in the file."""
    names = list(clients)
    if all(name.isascii() and name.isdecimal() for name in names):
        names.sort(key=int)
    parts = _parts([clients[name] for name in names], names)
    numbered = names == [str(number) for number in range(len(names))]
    return OwnSplit(parts, () if numbered else tuple(names))


def _parts(clients: Sequence[Any], names: Sequence[str] = ()) -> tuple[Numbers, ...]:
    if len(clients) > MOST_CLIENTS:
        raise Refused(f"more than {MOST_CLIENTS:,} clients")
    return tuple(
        _numbers(part, f"client {printable(names[number], 40) if names else number}")
        for number, part in enumerate(clients)
    )


def _numbers(values: Any, who: str) -> Numbers:
    if not isinstance(values, list):
        raise Refused(f"{who} has no list of image numbers")
    wrong = next((value for value in values if type(value) is not int), None)
    if wrong is not None or None in values:
        raise Refused(f"{who} has {printable(repr(wrong), 40)} among its image numbers")
    huge = next((value for value in values if abs(value) >= 2**31), None)
    if huge is not None:
        raise Refused(f"{who} has image {printable(huge, 40)}, which no data set has")
    return np.array(values, dtype=np.int64)


def _read_csv(content: bytes) -> OwnSplit:
    rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
    first = [cell.strip() for cell in next(rows, [])]
    lines: Iterable[tuple[int, list[str]]] = enumerate(rows, 2)
    columns = [cell.lower() for cell in first]
    image = next((columns.index(name) for name in IMAGE_COLUMNS if name in columns), None)
    client = next((columns.index(name) for name in CLIENT_COLUMNS if name in columns), None)
    if client is None:
        if len(first) != 2 or not _is_number(first[0]):
            raise Refused("the first line must name its columns: image,client")
        image, client, lines = 0, 1, [(1, first), *lines]
    clients: dict[str, Any] = {}
    for order, (line, row) in enumerate((line, row) for line, row in lines if row):
        if max(image or 0, client) >= len(row):
            raise Refused(f"line {line} has {len(row)} cells")
        number = f"{order}" if image is None else row[image].strip()
        if not _is_number(number):
            raise Refused(f"line {line} has {printable(number, 40)!r} instead of an image's number")
        owner = without_apostrophe(row[client].strip())
        if not owner:  # all images without one would belong to one client
            raise Refused(f"line {line} names no client: leave out the images that nobody owns")
        clients.setdefault(owner, []).append(int(number))
    return _from_named(clients)


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) < 20


READERS: dict[str, Callable[[bytes], OwnSplit]] = {".json": _read_json, ".csv": _read_csv}


def split_text(split: OwnSplit) -> str:
    writers = {".json": _json_text, ".csv": _csv_text}
    if split.path.suffix.lower() not in writers:
        raise ConfigError(f"{split.path}: the name must end in {' or '.join(writers)}")
    return writers[split.path.suffix.lower()](split)


def _json_text(split: OwnSplit) -> str:
    rows = [json.dumps(part.tolist()) for part in split.parts]
    if split.names:
        rows = [f"{json.dumps(n)}: {row}" for n, row in zip(split.names, rows, strict=True)]
    begin, end = "{}" if split.names else "[]"
    head = {"format": FORMAT, **({"made_for": vars(split.made_for)} if split.made_for else {})}
    entries = [f'"{key}": {json.dumps(value)}' for key, value in head.items()]
    entries.append(f'"clients": {begin}\n' + ",\n".join(rows) + f"\n{end}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _csv_text(split: OwnSplit) -> str:
    names: Sequence[object] = split.names or range(len(split.parts))
    parts = zip(names, split.parts, strict=True)
    owners = ((number, name) for name, part in parts for number in part.tolist())
    return "".join(map(csv_line, [("image", "client"), *owners]))
