import random
import warnings
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from dcfl.data.readers import arrays as plain_arrays
from dcfl.data.readers import npz
from dcfl.data.readers.arrays import Arrays
from dcfl.data.readers.npz import read_npz
from dcfl.errors import DatasetCorrupt, DatasetMissing

RNG = np.random.default_rng(0)
TRAIN = RNG.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
TEST = RNG.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
GOOD: dict[str, object] = {
    "train_images": TRAIN,
    "train_labels": np.arange(12) % 3,
    "test_images": TEST,
    "test_labels": np.arange(6) % 3,
}


def read(folder: Path, **changes: object) -> Arrays:
    """The good file with some keys replaced, or removed by None."""
    arrays = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    np.savez_compressed(folder / "x.npz", **arrays)  # type: ignore[arg-type]
    return read_npz(folder / "x.npz")


def refusal(folder: Path, **changes: object) -> str:
    with pytest.raises(DatasetCorrupt) as caught:
        read(folder, **changes)
    line = str(caught.value)
    assert line.startswith(str(folder / "x.npz"))
    assert "\n" not in line
    return line


def test_images_as_they_are(tmp_path: Path) -> None:
    arrays = read(tmp_path, unrelated=np.zeros(3))
    assert np.array_equal(arrays.train_pixels, TRAIN)
    assert np.array_equal(arrays.test_pixels, TEST)
    assert arrays.train_labels.dtype == np.int64
    assert arrays.test_labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert arrays.class_names == ("0", "1", "2")
    assert arrays.site_names == ()


def test_the_other_spelling(tmp_path: Path) -> None:
    path = tmp_path / "keras.npz"
    labels = (np.arange(12) % 3)[:, None]  # as Keras stores CIFAR's
    np.savez(path, x_train=TRAIN, y_train=labels, x_test=TEST, y_test=labels[:6].astype(np.uint8))
    assert np.array_equal(read_npz(path).train_pixels, TRAIN)
    assert read_npz(path).train_labels.shape == (12,)


def test_layouts(tmp_path: Path) -> None:
    grey = read(tmp_path, train_images=TRAIN[..., 0], test_images=TEST[..., :1])
    assert np.array_equal(grey.train_pixels, TRAIN[..., :1])
    first = read(tmp_path, train_images=TRAIN.transpose(0, 3, 1, 2))
    assert np.array_equal(first.train_pixels, TRAIN)
    assert first.train_pixels.flags.c_contiguous
    # 3x3 pixels of 3 channels could be either: taken as they stand
    unclear = read(tmp_path, train_images=TRAIN[:, :3, :3], test_images=TEST[:, :3, :3])
    assert np.array_equal(unclear.train_pixels, TRAIN[:, :3, :3])
    fortran = read(tmp_path, train_images=np.asfortranarray(TRAIN))
    assert np.array_equal(fortran.train_pixels, TRAIN)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_floats_between_0_and_1(tmp_path: Path, dtype: object, monkeypatch) -> None:
    monkeypatch.setattr(plain_arrays, "BLOCK", 5)
    arrays = read(tmp_path, train_images=(TRAIN / 255).astype(dtype))
    assert np.array_equal(arrays.train_pixels, TRAIN)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint64, ">i4"])
def test_labels_of_any_integer_type(tmp_path: Path, dtype: object) -> None:
    labels = (np.arange(12) % 3).astype(dtype)
    assert read(tmp_path, train_labels=labels).train_labels.tolist() == labels.tolist()


def test_class_names(tmp_path: Path) -> None:
    named = read(tmp_path, class_names=np.array(["ant", "bée", "cat", "dog"]))
    assert named.class_names == ("ant", "bée", "cat", "dog")
    named = read(tmp_path, class_names=np.array(["ant", "bee", "cat"], dtype="S"))
    assert named.class_names == ("ant", "bee", "cat")


def objects() -> np.ndarray:
    return np.array([{"a": 1}, None], dtype=object)


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "no key": ({"test_labels": None}, "no test_labels; needed are train_images"),
    "object images": ({"train_images": objects()}, "train_images: an array of Python objects"),
    "object names": ({"class_names": objects()}, "class_names: an array of Python objects"),
    "complex": ({"train_images": np.zeros((2, 8, 8), complex)}, "train_images: complex128"),
    "structured": ({"train_labels": np.zeros(3, "i4,f4")}, "train_labels: "),
    "int images": ({"train_images": TRAIN.astype(int)}, "must be uint8 or floats"),
    "bool images": ({"test_images": TEST > 9}, "test_images: images must be uint8"),
    "float images to 255": ({"train_images": TRAIN.astype("f4")}, "must lie in [0, 1], found 0 to"),
    "NaN": ({"train_images": np.full(TRAIN.shape, np.nan)}, "found nan to nan"),
    "infinite": ({"train_images": np.full(TRAIN.shape, np.inf)}, "found inf to inf"),
    "negative": ({"train_images": TRAIN / 255 - 0.5}, "must lie in [0, 1]"),
    "not square": ({"train_images": TRAIN[:, :6] / 255}, "square unless"),
    "four channels": ({"train_images": np.zeros((12, 8, 8, 4), np.uint8)}, "1 or 3]"),
    "flat": ({"train_images": TRAIN.reshape(12, -1)}, "not [12, 192]"),
    "scalar": ({"train_images": np.uint8(3)}, "not []"),
    "none": ({"test_images": TEST[:0], "test_labels": np.zeros(0, int)}, "no images in [0, 8"),
    "other size": ({"test_images": TEST[:, :4, :4]}, "are [8, 8, 3] and test_images [4, 4, 3]"),
    "other channels": ({"test_images": TEST[..., 0]}, "are [8, 8, 3] and test_images [8, 8, 1]"),
    "lengths": ({"train_labels": np.arange(11) % 3}, "12 images and train_labels 11 labels"),
    "float labels": ({"train_labels": np.zeros(12)}, "train_labels: labels must be integers"),
    "one-hot": ({"train_labels": np.eye(12, dtype=int)}, "labels must be [n], not [12, 12]"),
    "negative labels": ({"train_labels": np.arange(12) - 1}, "labels from -1 to 10"),
    "huge labels": ({"train_labels": np.full(12, 2**64 - 1, np.uint64)}, "labels from 1844"),
    "gap": ({"train_labels": np.arange(12) % 3 * 2}, "go up to 4 and 1 is not among them"),
    "from 1": ({"train_labels": np.arange(12) % 3 + 1}, "go up to 3 and 0 is not among them"),
    "one class": ({"train_labels": np.zeros(12, int)}, "a classifier needs two"),
    "unseen class": ({"test_labels": np.arange(6)}, "test_labels: label 5 with 3 classes"),
    "few names": ({"class_names": np.array(["a", "b"])}, "train_labels: label 2 with 2 classes"),
    "one name": ({"class_names": np.array(["a"])}, "class_names: 1 name"),
    "same names": ({"class_names": np.array(["a", "b", "a"])}, "class_names: two names"),
    "empty name": ({"class_names": np.array(["a", "b", ""])}, "class_names: two names"),
    "numbered names": ({"class_names": np.arange(3)}, "class_names: must be a list of text"),
    "odd names": ({"class_names": np.array([b"\xff", b"a", b"b"])}, "class_names: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_mistakes_are_named(tmp_path: Path, name: str) -> None:
    changes, said = REFUSED[name]
    assert said in refusal(tmp_path, **changes)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DatasetMissing, match="no such file"):
        read_npz(tmp_path / "x.npz")
    with pytest.raises(DatasetMissing, match="not a file"):
        read_npz(tmp_path)


@pytest.mark.parametrize("data", [b"", b"PK", b"text", b"\x93NUMPY\x01\0v\0{}"])
def test_other_files(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(data)
    with pytest.raises(DatasetCorrupt, match="not a sound"):
        read_npz(path)


def test_truncated_and_mutated_files_raise_nothing_else(tmp_path: Path) -> None:
    read(tmp_path, class_names=np.array(["a", "b", "c"]))
    path, rng = tmp_path / "x.npz", random.Random(0)
    whole = path.read_bytes()
    for _ in range(600):
        data = bytearray(whole)
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.randint(0, 4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zipfile about the names of members
            try:
                arrays = read_npz(path)
            except DatasetCorrupt as error:
                lines = str(error).splitlines()
            else:  # the checksums leave nothing else to pass
                lines = [""]
                assert np.array_equal(arrays.train_pixels, TRAIN)
        assert len(lines) == 1


def with_member(folder: Path, key: str, data: bytes) -> Path:
    """The good file with one member's bytes replaced."""
    path = folder / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in GOOD.items():
            stream = BytesIO()
            np.save(stream, array)
            archive.writestr(f"{name}.npy", data if name == key else stream.getvalue())
    return path


@pytest.mark.parametrize(
    "shape", ["(1000000000000, 8, 8, 3)", "(12, 8, 8)", "(-12, 8, 8, 3)", "(12, 8, -8, -3)"]
)
def test_headers_that_lie(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    data = b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + TRAIN.tobytes()
    with pytest.raises(DatasetCorrupt, match=r"train_images: .* does not fit"):
        read_npz(with_member(tmp_path, "train_images", data))


def test_pickles_are_not_run(tmp_path: Path) -> None:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n"
    data = b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header
    data += b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR."
    with pytest.raises(DatasetCorrupt, match="Python objects"):
        read_npz(with_member(tmp_path, "train_labels", data))
    assert not (tmp_path / "ran").exists()


def test_a_key_twice(tmp_path: Path) -> None:
    read(tmp_path)
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        archive.writestr("train_labels", b"")
    with pytest.raises(DatasetCorrupt, match="'train_labels' is there twice"):
        read_npz(tmp_path / "x.npz")


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = np.zeros((400, 64, 64, 3), np.uint8)
    labels = np.arange(400) % 3
    monkeypatch.setattr(npz, "RATIO_MATTERS_FROM", 2**20)
    assert "train_images would grow" in refusal(tmp_path, train_images=zeros, train_labels=labels)
    monkeypatch.setattr(npz, "MAX_BYTES", 2**20)
    assert "GiB when unpacked" in refusal(tmp_path, train_images=zeros, train_labels=labels)
