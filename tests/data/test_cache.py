import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from dcfl.data import cache
from dcfl.data.cache import cache_folder, cached
from dcfl.data.readers.arrays import Arrays

PIXELS = 300_000  # more than is sampled


def arrays(seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return Arrays(
        train_pixels=rng.integers(0, 256, (PIXELS // 300, 10, 10, 3), dtype=np.uint8),
        train_labels=rng.integers(0, 3, PIXELS // 300),
        test_pixels=rng.integers(0, 256, (7, 10, 10, 3), dtype=np.uint8),
        test_labels=rng.integers(0, 3, 7),
        class_names=("ant", "bée", "c\udc80"),
        site_names=("bonn", "lyon"),
        site_offsets=np.array([0, 400, PIXELS // 300]),
    )


def same(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(Arrays))


def mapped(pixels: np.ndarray, entry: Path) -> bool:
    """Whether they are in memory that the system shares with the file."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return True
    here = pixels.__array_interface__["data"][0]
    return any(
        int(start, 16) <= here < int(end, 16) and name == str(entry)
        for (start, end), name in (
            (line.split()[0].split("-"), line.split(maxsplit=5)[-1])
            for line in maps.read_text().splitlines()
        )
    )


class Reader:
    """Counts how often the files had to be decoded."""

    def __init__(self, result: Callable[[], Arrays] = arrays) -> None:
        self.calls = 0
        self.result = result

    def __call__(self) -> Arrays:
        self.calls += 1
        return self.result()


class Place:
    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.files = [folder / "data" / "a.bin", folder / "data" / "deep" / "b.bin"]
        for file in self.files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"first")
        self.reader = Reader()

    def read(self, name: str = "folder", **settings: object) -> Arrays:
        return cached(name, self.files, settings, self.reader, self.cache)

    def entries(self) -> list[Path]:
        return sorted(self.cache.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Place(tmp_path)


def without_sites() -> Arrays:
    whole = arrays()
    parts = (whole.train_pixels[::2], whole.train_labels[::2], whole.test_pixels, whole.test_labels)
    return Arrays(*parts, class_names=())


@pytest.mark.parametrize("made", [arrays, without_sites])
def test_decoded_once_and_mapped_and_writes_stay_private(
    place: Place, made: Callable[[], Arrays]
) -> None:
    place.reader = Reader(made)
    for _ in range(3):
        found = place.read()
        assert same(found, made())
        assert mapped(found.train_pixels, place.entries()[0])
        assert mapped(found.test_pixels, place.entries()[0])
        assert found.train_labels.dtype == np.int64
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.from_numpy(found.train_pixels).zero_()
    assert place.reader.calls == 1
    assert len(place.entries()) == 1


def rewrite(place: Place) -> None:
    place.files[1].write_bytes(b"longer than before")


def touch(place: Place) -> None:
    os.utime(place.files[0], ns=(1, 1))


def rename(place: Place) -> None:
    place.files[0] = place.files[0].rename(place.files[0].with_name("c.bin"))


def remove(place: Place) -> None:
    place.files.pop()


def replace_keeping_size_and_time(place: Place) -> None:
    """What unpacking an archive with fixed times does."""
    file = place.files[0]
    status = file.stat()
    other = file.with_name("other")
    other.write_bytes(b"secon")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(other, file)


def dangle(place: Place) -> None:
    place.files[0].unlink()


@pytest.mark.parametrize(
    "change",
    [rewrite, touch, rename, remove, replace_keeping_size_and_time, dangle],
    ids=lambda change: change.__name__,
)
def test_changed_files_are_decoded_again(place: Place, change: Callable[[Place], None]) -> None:
    old = place.read()
    change(place)
    place.reader.result = lambda: arrays(1)
    assert same(place.read(), arrays(1))
    assert same(place.read(), arrays(1))
    assert place.reader.calls == 2
    assert same(old, arrays())  # whoever still has the old entry mapped is not disturbed


def test_what_is_stale_goes_and_what_is_not_stays(place: Place) -> None:
    place.read(size=32)
    place.read(size=64)
    place.read("sites", size=32)
    assert len(place.entries()) == 3
    rewrite(place)
    place.read(size=32)
    assert len(place.entries()) == 3
    place.read(size=32)
    assert place.reader.calls == 4


def test_other_files_and_other_settings_are_other_entries(place: Place) -> None:
    beside = place.files[0].with_name("beside.bin")
    beside.write_bytes(b"another")
    for file in (place.files[0], beside, place.files[0], beside):
        cached("npz", [file], {}, place.reader, place.cache)
    assert place.reader.calls == 2
    place.read(size=32, fit="crop")
    place.files.reverse()  # the order does not matter
    place.read(fit="crop", size=32)
    assert place.reader.calls == 3


def overwrite(path: Path, offset: int, data: bytes = b"\x55\xaa\x55") -> None:
    with path.open("r+b") as stream:
        stream.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        stream.write(data)


def change_metadata(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes().replace(b"ant", b"asp"))


def in_the_way(entry: Path) -> None:
    entry.unlink()
    (entry / "in the way").mkdir(parents=True)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "one pixel": lambda entry: overwrite(entry, 77_777, b"\x55"),
    "the last bytes": lambda entry: overwrite(entry, -16, b"\x07"),
    "truncated": lambda entry: os.truncate(entry, 200_000),
    "longer": lambda entry: entry.write_bytes(entry.read_bytes() + b"more"),
    "its length of the header": lambda entry: overwrite(entry, 0, b"\xff" * 8),
    "its header": lambda entry: overwrite(entry, 12),
    "an array by another name": lambda entry: entry.write_bytes(
        entry.read_bytes().replace(b"test_labels", b"test_labelz")
    ),
    "no bytes": lambda entry: entry.write_bytes(b""),
    "a name": change_metadata,
    "a folder": in_the_way,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_cache_is_rebuilt_without_a_word(place: Place, name: str) -> None:
    place.read()
    (entry,) = place.entries()
    DAMAGE[name](entry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = place.read()
        assert same(found, arrays())
        assert mapped(found.train_pixels, entry)
        assert same(place.read(), arrays())
    assert place.reader.calls == 2
    assert place.entries() == [entry]


def test_a_failing_reader_leaves_nothing(place: Place) -> None:
    def fail() -> Arrays:
        raise ValueError("broken")

    place.reader.result = fail
    with pytest.raises(ValueError, match="broken"):
        place.read()
    assert not place.cache.exists()


def refuse(*args: object, **kwargs: object) -> None:
    raise OSError(28, "No space left on device")


def refuse_to_save(*args: object, **kwargs: object) -> None:
    raise SafetensorError("I/O error: No space left on device")


@pytest.mark.parametrize("step", [("sync", refuse), ("save_file", refuse_to_save)])
def test_a_full_disk_costs_only_the_cache(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: tuple[str, Callable[..., None]]
) -> None:
    monkeypatch.setattr(cache, *step)
    with pytest.warns(UserWarning, match="No space left on device") as caught:
        found = place.read()
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert same(found, arrays())
    assert place.entries() == []


def test_threads_racing(place: Place) -> None:
    together = threading.Barrier(4)

    def slowly() -> Arrays:
        together.wait(timeout=20)  # all of them have found nothing
        return arrays()

    found: list[Arrays] = []
    place.reader.result = slowly
    threads = [threading.Thread(target=lambda: found.append(place.read())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(same(one, arrays()) for one in found)
    (entry,) = place.entries()
    assert mapped(place.read().train_pixels, entry)


def test_the_loser_of_a_race_over_a_damaged_entry_replaces_it(place: Place) -> None:
    place.read()
    (entry,) = place.entries()
    overwrite(entry, 77_777)

    def meanwhile() -> Arrays:
        other = Reader()
        assert same(cached("folder", place.files, {}, other, place.cache), arrays())
        return arrays()

    place.reader.result = meanwhile
    assert same(place.read(), arrays())
    assert place.entries() == [entry]


def test_what_killed_processes_left_is_swept_up(place: Place) -> None:
    old, new = place.cache / f"{cache.PARTIAL}1-a", place.cache / f"{cache.PARTIAL}2-b"
    place.cache.mkdir(mode=0o700)
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    place.read()
    assert not old.exists()
    assert new.exists()


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DCFL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / "home" / ".cache" / "dcfl"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_folder() == tmp_path / "home" / ".cache" / "dcfl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "dcfl"
    monkeypatch.setenv("DCFL_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "home" / "mine"
    monkeypatch.setenv("DCFL_CACHE", "")
    assert cache_folder() == tmp_path / "xdg" / "dcfl"


def test_without_a_home_there_is_no_cache(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What everybody knows the name of, such as /tmp/dcfl, could be anybody's."""
    for name in ("DCFL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache_folder() is None
    with pytest.warns(UserWarning, match=r"no home folder.*DCFL_CACHE"):
        assert same(cached("folder", place.files, {}, place.reader), arrays())


# Whose it is --------------------------------------------------------------------------------------


def modes(folder: Path) -> set[tuple[str, int]]:
    paths = [folder, *folder.rglob("*")]
    return {("folder" if p.is_dir() else "file", p.stat().st_mode & 0o777) for p in paths}


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_nobody_else_can_read_it(place: Place, umask: int) -> None:
    before = os.umask(umask)
    try:
        place.read()
    finally:
        os.umask(before)
    assert modes(place.cache) == {("folder", 0o700), ("file", 0o600)}
    place.cache.chmod(0o755)
    place.read()  # one that was open to others is closed
    assert place.reader.calls == 1
    assert place.cache.stat().st_mode & 0o777 == 0o700


def a_file(cache: Path) -> None:
    cache.write_text("a file")


def a_link(cache: Path) -> None:
    cache.with_name("elsewhere").mkdir()
    cache.symlink_to(cache.with_name("elsewhere"))


def with_other_things(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o755)
    (cache / "thesis.tex").write_text("mine, and for my colleagues to read")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (a_file, "not a folder of its own"),
        (a_link, "not a folder of its own"),
        (with_other_things, r"it holds thesis\.tex"),
    ],
)
def test_a_folder_that_is_not_its_own_is_left_as_it_is(
    place: Place, make: Callable[[Path], None], why: str
) -> None:
    make(place.cache)
    before = (place.cache.lstat().st_mode, sorted(place.cache.parent.rglob("*")))
    with pytest.warns(UserWarning, match=why):
        assert same(place.read(), arrays())
    assert (place.cache.lstat().st_mode, sorted(place.cache.parent.rglob("*"))) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_somebody_else_is_neither_read_nor_written(place: Place) -> None:
    place.read()
    os.chown(place.cache, 12345, 12345)
    for _ in range(2):
        with pytest.warns(UserWarning, match="belongs to somebody else"):
            assert same(place.read(), arrays())
    assert place.reader.calls == 3


def test_the_default_folder_is_used(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCFL_CACHE", str(place.cache))
    cached("CIFAR 10!", place.files, {}, place.reader)
    (entry,) = place.entries()
    assert entry.name.startswith("cifar-10-")
