"""A data set from what a user has: arrays, tensors, pictures, tables, data sets of torch and of
Hugging Face, told apart by what they can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dcfl.data.augment import Preparation, measured
from dcfl.data.datasets import Dataset, Images
from dcfl.data.readers.arrays import (
    Pixels,
    as_given,
    inputs_of,
    labels_of,
    numbered_names,
    pixels_of,
    require_range,
)
from dcfl.data.readers.npz import MAX_FILE
from dcfl.data.splits.grouping import held_back, key_of, number_of, numbered
from dcfl.data.splits.partition import Partition
from dcfl.errors import ConfigError, DatasetCorrupt, DatasetMissing
from dcfl.system.storage import open_data
from dcfl.system.wording import install_command, printable

INPUT_COLUMNS = ("image", "img", "images", "pixel_values", "input_ids", "inputs", "features", "x")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "y")
SITE_COLUMNS = ("client", "site")
LARGEST_SIDE = 1024  # pixels, of pictures that are resized


@dataclass(frozen=True)
class Given:
    """What came with the inputs; see `Dataset.of`. Texts are the names of columns."""

    labels: Any
    sites: Any
    groups: Any
    image_size: int | None
    as_is: bool


def dataset_from(
    inputs: Any, given: Given, test: Any, class_names: Sequence[str], name: str
) -> Dataset:
    """See `Dataset.of`."""
    if isinstance(given.labels, Iterator):  # they are looked at twice
        given = replace(given, labels=list(given.labels))
    asked, (inputs, given, known) = given, _taken_apart("inputs", inputs, given)
    pixels = _pixels("inputs", inputs, given)
    names = tuple(map(str, class_names or ())) or known or _names_in(given.labels)
    if len({*names}) < len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise DatasetCorrupt(f"class_names: {printable(twice, 40)} occurs twice")
    found = _labels("labels", given.labels, names, len(pixels))
    names = names or numbered_names("labels", found)
    owners, tested = _one_each("sites", given.sites, len(pixels)), []
    together = _one_each("groups", given.groups, len(pixels))
    numbers = None
    if together is not None:
        places = zip(_site_numbers(owners, len(pixels)).tolist(), together.tolist(), strict=True)
        numbers = torch.tensor([number_of(site, key_of(group)) for site, group in places])
    whole = Images(torch.from_numpy(pixels), torch.from_numpy(found), numbers)
    if isinstance(test, float | int):
        held = _held_out(found, owners, together, float(test))
        train, tests = whole[torch.from_numpy(~held)], whole[torch.from_numpy(held)]
        if owners is not None:
            owners, tested = owners[~held], owners[held].tolist()
    else:
        train, tests = whole, _tests(test, asked, names)
    for what, part in (("labels", train), ("test", tests)):
        require_range(what, part.labels.numpy(), len(names))
    if (tests.pixels.shape[1:], tests.pixels.dtype) != (train.pixels.shape[1:], train.pixels.dtype):
        raise DatasetCorrupt(
            f"test: inputs of {list(tests.pixels.shape[1:])}, and those to train on are "
            f"{list(train.pixels.shape[1:])}, or other numbers"
        )
    preparation = measured(train.pixels.numpy(), flip=False)
    if given.as_is and train.vectors:
        count = len(preparation.mean)
        preparation = Preparation((0.0,) * count, (1.0,) * count)
    dataset = Dataset(name, train, tests, names, preparation)
    return dataset if owners is None else _with_sites(dataset, owners, tested)


def _tests(test: Any, given: Given, names: tuple[str, ...]) -> Images:
    inputs, labels = test if isinstance(test, tuple) and len(test) == 2 else (test, None)
    named = {
        role: getattr(given, role) if isinstance(getattr(given, role), str) else None
        for role in ("labels", "sites", "groups")
    }
    given = Given(**{**vars(given), **named})
    given = given if labels is None else replace(given, labels=labels)
    inputs, given, _ = _taken_apart("test", inputs, given)
    pixels = _pixels("test", inputs, given)
    found = _labels("test", given.labels, names, len(pixels))
    return Images(torch.from_numpy(pixels), torch.from_numpy(found))


# --- what was given -------------------------------------------------------------------------------


def _taken_apart(what: str, inputs: Any, given: Given) -> tuple[Any, Given, tuple[str, ...]]:
    """Inputs, and what came with them: of a table, its columns; of a torch data set, its pairs. And
    the names of the classes, where they are known."""
    if isinstance(inputs, str | Path):
        inputs = _file(Path(inputs))
    if isinstance(inputs, torch.utils.data.Dataset) and not hasattr(inputs, "column_names"):
        names = tuple(map(str, getattr(inputs, "classes", ())))
        pairs, labels = _pairs(what, inputs)
        return pairs, given if given.labels is not None else replace(given, labels=labels), names
    columns = getattr(inputs, "column_names", getattr(inputs, "columns", None))
    if columns is None:
        if given.labels is None or isinstance(given.labels, str):
            raise ConfigError(f"{what}: labels are missing, one for each")
        return inputs, given, ()
    if isinstance(columns, Mapping):  # train and test side by side
        raise ConfigError(
            f'{what}: give one part of the data set, as in data["train"], and test=data["test"]'
        )
    if not all(isinstance(name, str) for name in columns):  # pandas numbers nameless columns
        if not hasattr(inputs, "rename"):
            raise DatasetCorrupt(f"{what}: the names of its columns must be texts")
        inputs = inputs.set_axis([str(name) for name in columns], axis=1)
        columns = inputs.columns
    return _of_columns(what, inputs, list(columns), given)


def _pairs(what: str, inputs: Any) -> tuple[list[Any], list[int]]:
    """The inputs and the labels of a torch data set."""
    try:
        pairs = [inputs[row] for row in range(len(inputs))]
        return [pair[0] for pair in pairs], [int(pair[1]) for pair in pairs]
    except Exception as error:  # a data set of the user's may raise anything
        raise DatasetCorrupt(
            f"{what}: a data set of torch must have a length, and give an input and the number of "
            f"its class for each ({type(error).__name__}: {printable(error, 200)})"
        ) from error


def _of_columns(
    what: str, table: Any, columns: list[str], given: Given
) -> tuple[Any, Given, tuple[str, ...]]:
    """A data set of Hugging Face has a column of inputs; of other tables, all columns but those
    that are named are numbers of the inputs."""
    roles = {"labels": given.labels, "sites": given.sites, "groups": given.groups}
    roles = {role: str(one) if isinstance(one, int) else one for role, one in roles.items()}
    for role, usual in (("labels", LABEL_COLUMNS), ("sites", SITE_COLUMNS)):
        if roles[role] is None:
            roles[role] = next((name for name in usual if name in columns), None)
    if roles["labels"] is None:
        raise ConfigError(
            f"{what}: none of its columns ({', '.join(columns)}) is called "
            f"{' or '.join(LABEL_COLUMNS)}: give its name, labels=..."
        )
    named = [role for role in roles.values() if isinstance(role, str)]
    if what == "test":  # which may be nobody's
        roles |= {role: None for role in ("sites", "groups") if roles[role] not in columns}
        named = [name for name in named if name in (roles["labels"], *columns)]
    if missing := [name for name in named if name not in columns]:
        raise ConfigError(f"{what}: no column {missing[0]!r}; there are {', '.join(columns)}")
    by_name = isinstance(roles["labels"], str)
    feature = (getattr(table, "features", None) or {}).get(roles["labels"]) if by_name else None
    names = tuple(getattr(feature, "names", None) or ())
    values = {role: table[name] if isinstance(name, str) else name for role, name in roles.items()}
    inputs = next((name for name in INPUT_COLUMNS if name in columns), None)
    if inputs is not None:
        return list(table[inputs]), replace(given, **values), names
    others = [name for name in columns if name not in named]
    if not others:
        raise ConfigError(f"{what}: no columns beside {', '.join(named)}")
    try:
        rows = np.stack([np.asarray(table[name], np.float64) for name in others], axis=1)
    except (ValueError, TypeError, OverflowError) as error:
        raise DatasetCorrupt(
            f"{what}: numbers are needed in the columns {', '.join(others)} ({error}): name the "
            f"one of the labels, the sites or the groups, or leave it out"
        ) from error
    return rows, replace(given, **values), names


def _file(path: Path) -> Any:
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{path}: reading it needs pandas: {install_command('pandas')}"
        ) from error
    if not path.is_file():
        raise DatasetMissing(f"{path}: no such file")
    readers = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    if path.suffix not in readers:
        raise ConfigError(f"{path}: a .csv or a .parquet file is needed")
    try:
        with open_data(path, MAX_FILE) as file:
            table = readers[path.suffix](file)
    except ImportError as error:
        raise ConfigError(f"{path}: reading it needs pyarrow: pip install pyarrow") from error
    except OSError as error:
        raise DatasetCorrupt(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise DatasetCorrupt(f"{path}: {printable(error, 200)}") from error
    if path.suffix == ".csv" and not isinstance(table.index, pd.RangeIndex):
        raise DatasetCorrupt(f"{path}: its lines have more cells than the first line has names")
    return table


def _array(what: str, values: Any) -> NDArray[Any]:
    if isinstance(values, torch.Tensor):
        values = values.float() if values.dtype == torch.bfloat16 else values
        try:
            return np.asarray(values.detach().cpu().numpy())
        except (TypeError, NotImplementedError, RuntimeError) as error:
            reason = printable(error, 200)
            raise DatasetCorrupt(f"{what}: a tensor that is no plain array ({reason})") from error
    if np.ma.is_masked(values):
        raise DatasetCorrupt(f"{what}: some are masked: fill them in, or leave their rows out")
    if not hasattr(values, "__array__"):
        values = [_array(what, one) if hasattr(one, "__array__") else one for one in values]
    try:
        return np.asarray(values)
    except ValueError as error:
        rows = [np.asarray(row) for row in values]
        if all(row.ndim == 1 and (row.dtype.kind in "iu" or not row.size) for row in rows):
            padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
            for row, short in zip(padded, rows, strict=True):
                row[: len(short)] = short
            return padded
        raise DatasetCorrupt(
            f"{what}: they are not all of the same size: of pictures, image_size=64, say, makes "
            f"them so"
        ) from error


def _pixels(what: str, inputs: Any, given: Given) -> Pixels:
    size = given.image_size
    if not hasattr(inputs, "__array__") and not isinstance(inputs, torch.Tensor):
        inputs = list(inputs)
        if inputs and all(hasattr(one, "convert") for one in inputs):
            return _of_pictures(what, inputs, size)
    array = _array(what, inputs)
    if size is not None and array.shape[1:3] != (size, size):
        raise ConfigError(f"image_size is for pictures of PIL; {what} are {list(array.shape)}")
    return as_given(what, array) if given.as_is else inputs_of(what, array)


def _of_pictures(what: str, pictures: Sequence[Any], image_size: int | None) -> Pixels:
    """Takes PIL's pictures: grey where all are, else in colour."""
    if image_size is not None and not (
        isinstance(image_size, int) and 1 <= image_size <= LARGEST_SIDE
    ):
        raise ConfigError(f"image_size must be a whole number from 1 to {LARGEST_SIDE}")
    sizes = {picture.size for picture in pictures}
    if image_size is None and (len(sizes) > 1 or len({*next(iter(sizes))}) > 1):
        raise DatasetCorrupt(
            f"{what}: pictures must be square and of one size, or image_size=64, say, makes them so"
        )
    deep = next((one.mode for one in pictures if one.mode.startswith(("I", "F"))), None)
    if deep is not None:
        raise DatasetCorrupt(f"{what}: mode {deep} has more than 8 bits; scale it to 8 first")
    mode = "L" if all(one.mode in ("1", "L") for one in pictures) else "RGB"
    side = image_size or next(iter(sizes))[0]
    rows = []
    for number, one in enumerate(pictures):
        try:
            row = one.convert(mode).resize((side, side), Image.Resampling.BICUBIC)
        except (OSError, ValueError, SyntaxError) as error:
            raise DatasetCorrupt(
                f"{what}: picture {number} cannot be read ({printable(error, 200)})"
            ) from error
        rows.append(np.asarray(row))
    return pixels_of(what, np.stack(rows))


def _for_each(what: str, values: Any) -> NDArray[Any]:
    """Labels, or names of sites or groups. Where one is missing, all without one would be one class
    or one patient."""
    array = _array(what, values)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "backslashreplace")
    missing = next((row for row, one in enumerate(array.tolist()) if _is_missing(one)), None)
    if missing is not None:
        raise DatasetCorrupt(
            f"{what}: row {missing}, counted from 0, has none: give one for each, or leave the row "
            f"out (pandas reads NA, null and empty cells of a file as none)"
        )
    return array


def _is_missing(one: Any) -> bool:
    if isinstance(one, float | np.floating):
        return bool(np.isnan(one))
    return one is None or type(one).__name__ in ("NAType", "NaTType")  # of pandas


def _names_in(labels: Any) -> tuple[str, ...]:
    array = _for_each("labels", labels)
    return tuple(sorted({*map(str, array.tolist())})) if array.dtype.kind in "UO" else ()


def _labels(what: str, labels: Any, names: Sequence[str], images: int) -> NDArray[np.int64]:
    array = _for_each(what, labels)
    if array.dtype.kind in "UO":
        words = [str(one) for one in array.tolist()]
        unknown = next((word for word in words if word not in names), None)
        if unknown is not None:
            raise DatasetCorrupt(f"{what}: {printable(unknown, 40)} is none of the class names")
        found = np.array([names.index(word) for word in words], dtype=np.int64)
    else:
        found = labels_of(what, array)
    _require_same(what, len(found), images)
    return found


def _one_each(what: str, values: Any, count: int) -> NDArray[np.str_] | None:
    if values is None:
        return None
    array = _for_each(what, values)
    if array.ndim != 1:
        raise DatasetCorrupt(f"{what}: one name for each, not {list(array.shape)}")
    names = np.array([str(one) for one in array.tolist()])
    _require_same(what, len(names), count)
    return names


def _require_same(what: str, found: int, images: int) -> None:
    if found != images:
        raise DatasetCorrupt(f"{what}: {found:,} for {images:,} inputs; give one for each")


# --- what becomes of it ---------------------------------------------------------------------------


def _held_out(
    labels: NDArray[np.int64],
    sites: NDArray[np.str_] | None,
    groups: NDArray[np.str_] | None,
    share: float,
) -> NDArray[np.bool_]:
    """Which are for testing, evenly over the images of each class: a share of each class, or of
    each site; in whole groups where there are some. One of each class remains to train on."""
    if not 0 < share < 1:
        raise ConfigError(
            f"test = {share:g}: a share of the images between 0 and 1, or (images, labels)"
        )
    held = np.zeros(len(labels), dtype=bool)
    owners = _site_numbers(sites, len(labels))
    for owner in range(int(owners.max(initial=-1)) + 1):
        rows = np.flatnonzero(owners == owner)
        if groups is not None:
            keys = [key_of(group) for group in groups[rows].tolist()]
            held[rows] = np.isin(keys, [*held_back(keys, labels[rows].tolist(), share)])
            continue
        by_class = [rows[labels[rows] == label] for label in np.unique(labels[rows])]
        if sites is None:
            for own in by_class:
                count = min(max(round(share * len(own)), 1), len(own) - 1)  # one remains
                held[_evenly(own, count)] = True
        else:  # small classes of a site would not add up to its share
            spare = np.concatenate([own[1:] for own in by_class])
            held[_evenly(spare, min(max(round(share * len(rows)), 1), len(spare)))] = True
    if not held.any():
        raise DatasetCorrupt("no image is left for testing; some class needs two or more")
    return held


def _site_numbers(sites: NDArray[np.str_] | None, count: int) -> NDArray[np.int64]:
    return np.zeros(count, np.int64) if sites is None else numbered(sites.tolist())


def _evenly(rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return rows[((np.arange(count) + 1) * len(rows)) // max(count, 1) - 1]


def _with_sites(dataset: Dataset, owners: NDArray[np.str_], tested: Sequence[str]) -> Dataset:
    """`tested`: the owners of the test images; empty if they are nobody's."""
    names = list(dict.fromkeys(owners.tolist()))
    parts = [np.flatnonzero(owners == name) for name in names]
    poor = next((name for name, part in zip(names, parts, strict=True) if len(part) < 2), None)
    if poor is not None or len(names) < 2:
        one = f"sites: all images are of {printable(names[0], 40)}; leave sites out"
        few = f"sites: {printable(poor, 40)} needs at least 2 images to train on"
        raise DatasetCorrupt(one if poor is None else few)
    site_names = tuple(printable(name) for name in names)
    if tested:
        of_tests = torch.tensor([names.index(name) for name in tested])
        dataset = replace(dataset, test=replace(dataset.test, owners=of_tests))
    return replace(dataset, partition=Partition.of_parts(parts), site_names=site_names).by_site()
