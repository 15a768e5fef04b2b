"""Files that are there whole or not at all, on any filesystem."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from gatepost.archive.store import Store
from gatepost.errors import ConfigError, StorageFailed


@pytest.fixture(params=["local", "other"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A local disk, and a filesystem of which nothing is known."""
    if request.param == "local":
        return Store.open(str(tmp_path))
    return Store(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "root")


def test_what_is_written_can_be_read(store: Store) -> None:
    store.write("a/b/file", b"one")
    store.write("a/b/file", pa.py_buffer(b"two"))
    assert store.read("a/b/file") == b"two"
    assert store.files() == store.files("a") == ["a/b/file"]
    assert store.folders() == ["a"]


def test_what_is_not_there(store: Store) -> None:
    assert store.read("nothing") is None
    assert store.files() == store.folders() == []
    store.delete("nothing")


def test_delete(store: Store) -> None:
    store.write("a", b"1")
    store.delete("a")
    assert store.read("a") is None


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    store.write("file", b"old")
    with (tmp_path / "file").open("rb") as reader:
        store.write("file", b"new")
        assert reader.read() == b"old", "who reads it meanwhile sees the old one to its end"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_refuses_is_reported(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"a file where a folder should be")
    with pytest.raises(StorageFailed, match="cannot write"):
        Store.open(str(tmp_path)).write("taken/file", b"")


def test_an_impossible_address_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"set archive\.uri to a folder"):
        Store.open("nonsense://x/y")


def test_uris_and_paths_name_the_same_place(tmp_path: Path) -> None:
    Store.open(f"file://{tmp_path}/a").write("f", b"1")
    assert Store.open(str(tmp_path / "a")).read("f") == b"1"
