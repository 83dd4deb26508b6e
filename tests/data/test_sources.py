import errno
import hashlib
import io
import os
import tarfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from dcfl.cli import inspection_verbs
from dcfl.data import downloads
from dcfl.data.catalogue import PUBLIC, Archive
from dcfl.data.readers import cifar
from dcfl.errors import ConfigError, DatasetCorrupt, DCFLError, NetworkError, StorageError
from tests.data import cifar_files as files
from tests.data.web import Site, serving

ROWS = 2
Calls = list[tuple[int, int | None]]


def tar_gz(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


OFFICIAL = tar_gz(
    {f"cifar-10-batches-py/{file}": os.urandom(3_000) for file in cifar.CIFAR10_PYTHON.files}
    | {"cifar-10-batches-py/readme.html": b"<html>"}
)
TINY = zipped(
    {
        "tiny-imagenet-200/": b"",
        "tiny-imagenet-200/wnids.txt": b"n01443537\nn01629819\n",
        "tiny-imagenet-200/words.txt": b"n01443537\tgoldfish\nn01629819\tsalamander\n",
        "tiny-imagenet-200/train/n01629819/images/n01629819_0.JPEG": b"picture",
        "tiny-imagenet-200/val/images/val_0.JPEG": b"picture",
        "tiny-imagenet-200/train/n01443537/images/n01443537_0.JPEG": b"picture",
        "tiny-imagenet-200/val/val_annotations.txt": b"val_0.JPEG\tn01443537\n",
    }
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with serving(Site(OFFICIAL)) as site:
        pretend(monkeypatch, "cifar10", f"{site.url}/cifar-10-python.tar.gz", OFFICIAL)
        yield site


def archive_of(name: str) -> Archive:
    archive = PUBLIC[name].archive
    assert archive is not None
    return archive


def altered(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    archive = replace(archive_of(name), **changes)
    monkeypatch.setitem(PUBLIC, name, replace(PUBLIC[name], archive=archive))


def pretend(monkeypatch: pytest.MonkeyPatch, name: str, url: str, content: bytes) -> None:
    """Make this the official archive."""
    altered(monkeypatch, name, url=url, md5=hashlib.md5(content).hexdigest())


def get(folder: Path, name: str = "cifar10") -> tuple[str, Calls]:
    calls: Calls = []
    used = downloads.get_dataset(name, folder, lambda done, total: calls.append((done, total)))
    return used, calls


def refused(folder: Path, kind: type[DCFLError], name: str = "cifar10") -> str:
    with pytest.raises(kind) as error:
        get(folder, name)
    message = str(error.value)
    assert "\n" not in message
    return message


def contents(folder: Path) -> list[str]:
    if not folder.exists():  # nothing came to lie in it
        return []
    return sorted(path.name for path in folder.iterdir())


# Downloading --------------------------------------------------------------------------------------


def test_the_official_archive_is_fetched_checked_and_unpacked(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    used, calls = get(folder)
    assert used == "official archive"
    assert contents(folder) == ["cifar-10-batches-py"]
    assert len(cifar.cifar_files("cifar10", folder)) == 7
    assert calls[0] == (0, len(OFFICIAL))
    assert calls[-1] == (len(OFFICIAL), len(OFFICIAL))
    assert site.asked == 1
    assert all(agent.startswith("dcfl/") for agent in site.agents)


def test_what_is_there_is_left_alone(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar, "LAYOUTS", files.SMALL)
    for name, layout in (("cifar10", files.SMALL10), ("cifar100", files.SMALL100)):
        place = files.write(tmp_path, layout)
        before = {path: path.stat().st_mtime_ns for path in place.iterdir()}
        assert get(tmp_path, name) == ("already there", [])
        assert get(place, name) == ("already there", [])
        assert {path: path.stat().st_mtime_ns for path in place.iterdir()} == before
    assert site.asked == 0


@pytest.mark.parametrize("content", [b"", b"mine"])
def test_what_is_no_whole_data_set_is_in_the_way(
    site: Site, tmp_path: Path, content: bytes
) -> None:
    place = tmp_path / "cifar-10-batches-py"
    place.mkdir()
    for name in cifar.CIFAR10_PYTHON.files[: len(content) or None]:
        (place / name).write_bytes(content)
    message = refused(tmp_path, DatasetCorrupt)
    assert "in the way" in message
    assert "move it away, then run `dcfl data get cifar10`" in message
    assert (place / "data_batch_1").read_bytes() == content
    assert site.asked == 0


def test_a_zip_is_unpacked_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving(Site(TINY)) as site:
        pretend(monkeypatch, "tiny-imagenet", f"{site.url}/tiny-imagenet-200.zip", TINY)
        assert get(tmp_path / "data", "tiny-imagenet")[0] == "official archive"
        assert get(tmp_path / "data", "tiny-imagenet")[0] == "already there"
    place = tmp_path / "data" / "tiny-imagenet-200"
    assert (place / "wnids.txt").read_bytes() == b"n01443537\nn01629819\n"
    assert contents(tmp_path / "data") == ["tiny-imagenet-200"]


def test_a_broken_connection_leaves_nothing(site: Site, tmp_path: Path) -> None:
    site.breaks = [5_000]
    assert "broke at 5,000 of" in refused(tmp_path, NetworkError)
    assert contents(tmp_path) == []
    assert get(tmp_path)[0] == "official archive"


def test_the_size_may_be_unknown_and_the_content_wrong(site: Site, tmp_path: Path) -> None:
    site.length = False
    used, calls = get(tmp_path / "data")
    assert used == "official archive"
    assert calls[-1] == (len(OFFICIAL), None)
    site.content = OFFICIAL[:-1] + b"?"
    message = refused(tmp_path, DatasetCorrupt)
    assert "MD5" in message
    assert "deleted" in message
    assert contents(tmp_path) == ["data"]


def test_an_endless_download_is_cut_off(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered(monkeypatch, "cifar10", max_download=1_000)
    assert "larger" in refused(tmp_path, DatasetCorrupt)
    assert contents(tmp_path) == []


@pytest.mark.parametrize("status", [404, 503])
def test_a_site_without_the_file_is_a_network_error(
    site: Site, tmp_path: Path, status: int
) -> None:
    site.status = status
    message = refused(tmp_path, NetworkError)
    assert str(status) in message
    assert f"unpack it in {tmp_path}, as cifar-10-batches-py/" in message
    assert NetworkError.exit_code == 6
    assert contents(tmp_path) == []


def test_a_silent_server_is_given_up(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "TIMEOUT", 0.3)
    site.breaks, site.stalls = [4_000], True
    started = time.perf_counter()
    assert "timed out" in refused(tmp_path, NetworkError)
    assert time.perf_counter() - started < 60  # given up, not waited for
    assert contents(tmp_path) == []


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "tiny-imagenet"])
def test_offline_one_line_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with serving(Site(b"")) as gone:
        pass
    pretend(monkeypatch, name, f"{gone.url}/archive.tar.gz", b"")
    message = refused(tmp_path / "data", NetworkError, name)
    assert archive_of(name).folder in message
    assert str(tmp_path / "data") in message
    assert contents(tmp_path / "data") == []


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    for name in ("mnist", "digits"):
        with pytest.raises(ConfigError, match="known: cifar10, cifar100, tiny-imagenet"):
            get(tmp_path, name)
    argument = get_type_hints(inspection_verbs.get, include_extras=True)["name"].__metadata__[0]
    assert argument.metavar == "|".join(name for name in PUBLIC if PUBLIC[name].archive)


def test_a_folder_that_cannot_be_is_a_storage_error(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert str(tmp_path / "file") in refused(tmp_path / "file" / "data", StorageError)


def test_a_full_disk_while_unpacking_leaves_nothing(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(tarfile, "copyfileobj", full)
        assert "No space left" in refused(tmp_path, StorageError)
    assert contents(tmp_path) == []
    assert get(tmp_path)[0] == "official archive"


def test_an_archive_without_the_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = tar_gz({"cifar-10-batches-py/data_batch_1": b"1"})
    with serving(Site(content)) as site:
        pretend(monkeypatch, "cifar10", f"{site.url}/cifar-10-python.tar.gz", content)
        assert "data_batch_2" in refused(tmp_path, DatasetCorrupt)
    assert "cifar-10-batches-py" not in contents(tmp_path)
