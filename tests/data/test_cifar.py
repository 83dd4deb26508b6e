import hashlib
import os
import pickle
import random
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dcfl.data.readers import cifar
from dcfl.data.readers.arrays import Arrays
from dcfl.errors import DatasetCorrupt, DatasetMissing
from tests.data import cifar_files as files
from tests.data.cifar_files import SMALL10, SMALL100

REAL = os.environ.get("DCFL_DATA", "")


def real(name: str) -> Path:
    """Where the real data set lies; without it the test is skipped."""
    folder = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
    if not REAL or not (Path(REAL) / folder).is_dir():
        pytest.skip(f"DCFL_DATA names no folder with {folder}")
    return Path(REAL)


ALL_LAYOUTS = [SMALL10, SMALL100]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if not request.node.name.startswith("test_real"):
        monkeypatch.setattr(cifar, "LAYOUTS", files.SMALL)


def sound(arrays: Arrays, layout: cifar.Layout) -> bool:
    train, test = layout.train_rows * len(layout.train), layout.test_rows
    labels = np.concatenate([arrays.train_labels, arrays.test_labels])
    return (
        arrays.train_pixels.shape == (train, 32, 32, 3)
        and arrays.test_pixels.shape == (test, 32, 32, 3)
        and arrays.train_pixels.dtype == arrays.test_pixels.dtype == np.uint8
        and labels.dtype == np.int64
        and len(labels) == train + test
        and bool(((labels >= 0) & (labels < layout.classes)).all())
        and len(set(arrays.class_names)) == layout.classes
    )


# What is read -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=lambda layout: layout.folder)
def test_every_layout_is_read_from_its_parent_and_from_itself(
    tmp_path: Path, layout: cifar.Layout
) -> None:
    place = files.write(tmp_path, layout)
    for folder in (tmp_path, place):
        arrays = cifar.read_cifar(layout.dataset, folder)
        assert sound(arrays, layout)
        assert arrays.train_pixels.flags.c_contiguous
        assert arrays.class_names[3] == "class_3"
    planes, labels = files.random_batch(layout.test_rows, layout.classes, len(layout.train))
    assert arrays.test_labels.tolist() == labels.tolist()
    # row 5, column 7 of the green plane
    assert arrays.test_pixels[1, 5, 7, 1] == planes[1, 1024 + 5 * 32 + 7]


def test_the_small_files_are_what_python_would_read() -> None:
    planes, labels = files.random_batch(3, 10, seed=0)
    stored = pickle.loads(files.batch(planes, labels), encoding="bytes")
    assert np.array_equal(stored[b"data"], planes)
    assert stored[b"labels"] == labels.tolist()


def test_the_files_are_named(tmp_path: Path) -> None:
    place = files.write(tmp_path, SMALL100)
    assert cifar.cifar_files("cifar100", tmp_path) == [
        place / "train",
        place / "test",
        place / "meta",
    ]


def test_missing_files_are_named_with_the_command_that_gets_them(tmp_path: Path) -> None:
    with pytest.raises(
        DatasetMissing, match=r"cifar-10-batches-py/.*dcfl data get cifar10"
    ) as none:
        cifar.read_cifar("cifar10", tmp_path / "nowhere")
    assert "\n" not in str(none.value)
    place = files.write(tmp_path, SMALL100)
    (place / "test").unlink()
    with pytest.raises(DatasetMissing, match=f"no test in {place}.*data get cifar100"):
        cifar.cifar_files("cifar100", tmp_path)
    (place / "test").mkdir()
    with pytest.raises(DatasetMissing):
        cifar.read_cifar("cifar100", tmp_path)


# What is refused ----------------------------------------------------------------------------------

PLANES, LABELS = files.random_batch(3, 10, seed=0)
GOOD = files.batch(PLANES, LABELS)
MARK = b"\x80\x02"


def with_pixels(value: bytes) -> bytes:
    labels = files.several([b"K\x01"] * 3)
    return files.dictionary({"labels": labels, "data": value})


def with_labels(value: bytes) -> bytes:
    return files.dictionary({"labels": value, "data": files.pixels_of(PLANES)})


def hostile(command: str) -> dict[str, bytes]:
    """Files that run `command`, or take all of the memory or time, where they are trusted."""
    shell = files.text(command)
    code = files.text(f"__import__('os').system({command!r})")
    shape = files.integer(3) + files.integer(3072) + b"\x86"
    pixels, content = files.pixels_of(PLANES), PLANES.tobytes()
    doubled = b"]q\x00" + b"(h\x00h\x00e" * 3000
    nested = b"K\x01\x85" + b"q\x00h\x00\x86" * 40  # its hash takes 2^40 steps
    return {
        "os.system": MARK + b"cos\nsystem\n" + shell + b"\x85R.",
        "eval": MARK + b"cbuiltins\neval\n" + code + b"\x85R.",
        "within the data": with_pixels(b"cos\nsystem\n" + shell + b"\x85R"),
        "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + shell + b"\x85R.",
        "inst": MARK + b"(" + shell + b"ios\nsystem\n.",
        "obj": MARK + b"(cos\nsystem\n" + shell + b"o.",
        "newobj": MARK + b"cos\nsystem\n" + shell + b"\x85\x81.",
        "newobj_ex": b"\x80\x04cos\nsystem\n" + shell + b"\x85}\x92.",
        "extension": MARK + b"\x82\x01.",
        "persistent id": b"Pos.system\n.",
        "other numpy name": MARK + b"cnumpy\nload\n" + shell + b"\x85R.",
        "dotted name": MARK + b"cnumpy\nndarray.tofile\n" + shell + b"\x85R.",
        "build on a name": MARK + b"cnumpy\nndarray\n}" + shell + b"K\x01sb.",
        "build on a list": MARK + b"]}b.",
        "call of a string": MARK + shell + b")R.",
        "too many arguments": with_pixels(b"cnumpy\ndtype\n" + shell + b"R"),
        "many lists": MARK + b"]" * 15_000 + b".",
        "huge memo": b"\x80\x02Nr\xff\xff\xff\x7f.",
        "huge string": MARK + b"T\xff\xff\xff\x7fabc.",
        "negative string": MARK + b"T\xff\xff\xff\xffabc.",
        "huge long": b"\x80\x02\x8b\xff\xff\xff\x7f.",
        "huge frame": b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f.",
        "deep tuples": MARK + b")" + b"\x85" * 15_000 + b".",
        "doubling list": with_labels(doubled),
        "hash bomb": MARK + b"}" + nested + b"K\x01s.",
        "hash bomb inside": files.dictionary({"labels": b"}" + nested + b"K\x01s"}),
        "unbalanced": MARK + b"}(u" + b"\x87" * 5 + b".",
        "object array": with_pixels(files.array(content, shape, dtype="O8")),
        "float array": with_pixels(files.array(content, shape, dtype="f8")),
        "list as array": with_pixels(files.several([b"K\x01"] * 3)),
        "array not built": with_pixels(pixels[: pixels.index(b"q\x09(K\x01")]),
    }


def malformed() -> dict[str, bytes]:
    content = PLANES.tobytes()
    shapes = {
        "one row less": files.pixels_of(PLANES[:2]),
        "short rows": files.pixels_of(PLANES[:, :3071].copy()),
        "flat": files.array(content, files.integer(9216) + b"\x85"),
        "less content than shape": files.array(content[:-1], b"K\x03M\x00\x0c\x86"),
        "shape of strings": files.array(content, files.text("3") * 2 + b"\x86"),
        "shape of negatives": files.array(content, files.integer(-3) + b"M\x00\x0c\x86"),
    }
    labels = {
        "label 10": files.several([b"K\x0a"] * 3),
        "label -1": files.several([files.integer(-1)] * 3),
        "label of text": files.several([files.text("1")] * 3),
        "label false": files.several([b"\x89"] * 3),
        "label none": files.several([b"N"] * 3),
        "too few labels": files.several([b"K\x01"] * 2),
        "too many labels": files.several([b"K\x01"] * 4),
        "labels in a tuple": b"K\x01K\x01K\x01\x87",
    }
    return {
        "empty": b"",
        "text": b"hello",
        "a number": b"K\x01.",
        "truncated": GOOD[: len(GOOD) // 2],
        "something after it": GOOD + b"more",
        "too large": GOOD + bytes(50_000),
        "no labels": files.dictionary({"data": files.pixels_of(PLANES)}),
        "no data": files.dictionary({"labels": files.several([b"K\x01"] * 3)}),
        **{f"pixels: {name}": with_pixels(value) for name, value in shapes.items()},
        **{f"labels: {name}": with_labels(value) for name, value in labels.items()},
    }


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return files.write(tmp_path, SMALL10)


@pytest.mark.parametrize("kind", [*hostile("true"), *malformed()])
def test_a_hostile_or_broken_batch_is_refused_in_one_line(place: Path, kind: str) -> None:
    sentinel = place / "executed"
    (place / "data_batch_2").write_bytes({**hostile(f"touch {sentinel}"), **malformed()}[kind])
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(DatasetCorrupt) as refusal:
            cifar.read_cifar("cifar10", place)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - started < 30  # a bomb would take for ever
    assert peak < 20e6
    message = str(refusal.value)
    assert message.startswith(str(place / "data_batch_2"))
    assert "\n" not in message
    assert len(message) < 400
    assert not sentinel.exists()


def test_the_hostile_files_would_run_where_they_are_trusted(tmp_path: Path) -> None:
    for kind in ("os.system", "eval", "stack global", "inst", "obj", "within the data"):
        sentinel = tmp_path / kind.replace(" ", "-")
        pickle.loads(hostile(f"touch {sentinel}")[kind])
        assert sentinel.exists(), kind


@pytest.mark.parametrize(
    "content",
    [
        hostile("true")["os.system"],
        files.dictionary({"label_names": files.several([files.text("cat")] * 10)}),
        files.dictionary({"label_names": files.several([files.text("cat")])}),
        files.dictionary({"label_names": files.several([b"K\x01"] * 10)}),
        files.dictionary({"label_names": files.several([b"]"] * 10)}),
        files.dictionary({"label_names": files.text("abcdefghij")}),
        files.dictionary(
            {"label_names": files.several([files.text(f"a\n{label}") for label in range(10)])}
        ),
        bytes(60_000),
    ],
)
def test_class_names_are_checked(place: Path, content: bytes) -> None:
    (place / "batches.meta").write_bytes(content)
    with pytest.raises(DatasetCorrupt, match=r"batches\.meta"):
        cifar.read_cifar("cifar10", place)


def test_other_keys_and_the_names_of_numpy_2_are_fine(place: Path) -> None:
    renamed = GOOD.replace(b"numpy.core.", b"numpy._core.")
    (place / "data_batch_2").write_bytes(renamed)
    other = files.batch(PLANES, LABELS, extra=b"]", more=files.text("kept by nobody"), none=b"N")
    (place / "data_batch_3").write_bytes(other)
    arrays = cifar.read_cifar("cifar10", place)
    assert arrays.train_labels[3:6].tolist() == arrays.train_labels[6:9].tolist() == LABELS.tolist()


def mutated(generator: random.Random, data: bytes) -> bytes:
    """One to four changes; most of them outside the pixels, where they matter."""
    changed = bytearray(data)
    content = data.index(b"T\x00") + 5
    for _ in range(generator.randint(1, 4)):
        position = generator.randrange(len(changed))
        if content <= position < content + PLANES.nbytes and generator.random() < 0.95:
            position = generator.randrange(content)
        kind = generator.randrange(6)
        if kind == 0:
            changed[position] ^= 1 << generator.randrange(8)
        elif kind == 1:
            changed[position] = generator.randrange(256)
        elif kind == 2:
            changed[position] = generator.choice(b"()]}.0123RbtueasqrhjTUKMJNcioP\x81\x85\x93")
        elif kind == 3:
            del changed[position : position + generator.randint(1, 8)]
        elif kind == 4:
            changed[position:position] = generator.randbytes(generator.randint(1, 4))
        else:
            start = generator.randrange(content)
            changed[position:position] = changed[start : start + generator.randint(1, 30)]
    return bytes(changed)


def test_mutated_files_are_refused_or_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 of them, in a few seconds, without any other exception."""
    generator = random.Random(4)
    refusals = []
    started = time.perf_counter()
    for _ in range(5_000):
        data = mutated(generator, GOOD)
        monkeypatch.setattr(cifar, "_bytes", lambda path, limit, data=data: data)
        try:
            planes, labels = cifar._batch(tmp_path / "data_batch_1", SMALL10, rows=3)
        except DatasetCorrupt as error:
            refusals.append(str(error))
        else:
            assert planes.shape == (3, 3072)
            assert planes.dtype == np.uint8
            assert len(labels) == 3
            assert set(labels.tolist()) <= set(range(10))
    assert not any("\n" in refusal for refusal in refusals)
    assert 1_000 < len(refusals) < 4_999  # both happen, so that the test bites
    assert time.perf_counter() - started < 20


# Checksums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=lambda layout: layout.folder)
def test_an_unknown_checksum_is_a_warning_and_a_broken_file_an_error(
    tmp_path: Path, layout: cifar.Layout
) -> None:
    place = files.write(tmp_path, layout)
    (warning,) = cifar.verify_cifar(layout.dataset, tmp_path)
    assert layout.train[0] in warning
    assert "sound" in warning
    assert "\n" not in warning
    (place / layout.train[0]).write_bytes(b"\x80\x02Nr\xff\xff\xff\x7f.")
    with pytest.raises(DatasetCorrupt, match=layout.train[0]):
        cifar.verify_cifar(layout.dataset, tmp_path)


def test_known_checksums_need_no_warning(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = [hashlib.md5((place / file).read_bytes()).hexdigest() for file in SMALL10.files]
    known = replace(SMALL10, checksums=tuple(sums))
    monkeypatch.setitem(files.SMALL, "cifar10", known)
    assert cifar.verify_cifar("cifar10", place) == []


# The real ones ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "per_class", "mean", "ends"),
    [
        ("cifar10", (5_000, 1_000), (0.4914, 0.4822, 0.4465), ("airplane", "truck")),
        ("cifar100", (500, 100), (0.5071, 0.4865, 0.4409), ("apple", "worm")),
    ],
)
def test_real_counts_balance_and_channel_means(
    name: str, per_class: tuple[int, int], mean: tuple[float, ...], ends: tuple[str, str]
) -> None:
    arrays = cifar.read_cifar(name, real(name))
    assert (arrays.class_names[0], arrays.class_names[-1]) == ends
    assert len(cifar.verify_cifar(name, real(name))) <= 1
    assert arrays.train_pixels.shape == (50_000, 32, 32, 3)
    assert arrays.test_pixels.shape == (10_000, 32, 32, 3)
    for labels, count in zip((arrays.train_labels, arrays.test_labels), per_class, strict=True):
        assert np.bincount(labels).tolist() == [count] * len(arrays.class_names)
    means = arrays.train_pixels.reshape(-1, 3).mean(axis=0) / 255
    np.testing.assert_allclose(means, mean, atol=1e-3)
