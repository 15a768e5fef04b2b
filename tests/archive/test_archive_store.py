"""Files that are there whole or not at all, on any filesystem."""

import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from gatepost.archive.archive_store import ArchiveStore
from gatepost.errors import ConfigError, StorageFailed


@pytest.fixture(params=["local", "other"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveStore:
    """A local disk, and a filesystem of which nothing is known."""
    if request.param == "local":
        return ArchiveStore.open(str(tmp_path))
    return ArchiveStore(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "root")


def test_what_is_written_can_be_read(store: ArchiveStore) -> None:
    store.write_file("a/b/file", b"one")
    store.write_file("a/b/file", pa.py_buffer(b"two"))
    assert store.read_file("a/b/file") == b"two"
    assert store.list_files() == store.list_files("a") == ["a/b/file"]
    assert store.list_folders() == ["a"]


def test_a_local_archive_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ArchiveStore.open(str(tmp_path / "archive")).write_file("node/day/segment", b"reasons")
    finally:
        os.umask(before)
    for path in (tmp_path / "archive").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "archive").stat().st_mode) == 0o700


def test_what_is_not_there(store: ArchiveStore) -> None:
    assert store.read_file("nothing") is None
    assert store.list_files() == store.list_folders() == []
    store.delete_file("nothing")


def test_delete(store: ArchiveStore) -> None:
    store.write_file("a", b"1")
    store.delete_file("a")
    assert store.read_file("a") is None


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    store = ArchiveStore.open(str(tmp_path))
    store.write_file("file", b"old")
    with (tmp_path / "file").open("rb") as reader:
        store.write_file("file", b"new")
        assert reader.read() == b"old", "who reads it meanwhile sees the old one to its end"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_refuses_is_reported(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"a file where a folder should be")
    with pytest.raises(StorageFailed, match="cannot write"):
        ArchiveStore.open(str(tmp_path)).write_file("taken/file", b"")


def test_an_impossible_address_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"set archive\.uri to a folder"):
        ArchiveStore.open("nonsense://x/y")


def test_uris_and_paths_name_the_same_place(tmp_path: Path) -> None:
    ArchiveStore.open(f"file://{tmp_path}/a").write_file("f", b"1")
    assert ArchiveStore.open(str(tmp_path / "a")).read_file("f") == b"1"
