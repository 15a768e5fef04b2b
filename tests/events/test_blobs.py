"""Blobs are whole or absent, private, and never larger than allowed."""

import errno
import os
import stat
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gatepost import files as durable_files
from gatepost.errors import (
    EncryptionError,
    InvalidId,
    InvalidRequest,
    PayloadTooLarge,
    StorageFailed,
    UnknownBlob,
)
from gatepost.events import blobs
from gatepost.events.blobs import Blob, BlobStore
from gatepost.events.secretstream import CHUNK_SIZE, HEADER_SIZE, encrypted_size
from tests.events.fakes import StillClock

ABSENT = "sha256:" + "0" * 64
PAYLOAD = bytes(range(256)) * 700  # two full chunks and a part of a third


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs", StillClock())


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "blobs").iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("payload", [b"", b"x", bytes(CHUNK_SIZE), bytes(CHUNK_SIZE + 1), PAYLOAD])
def test_a_payload_reads_back(store: BlobStore, payload: bytes) -> None:
    blob, key = store.store_payload([payload[:7], payload[7:]])
    assert b"".join(store.read_payload(blob.digest, key)) == payload
    assert blob.size == store.ciphertext_size(blob.digest) == encrypted_size(len(payload))


def test_the_name_is_the_digest_of_the_ciphertext(store: BlobStore, tmp_path: Path) -> None:
    blob, key = store.store_payload([PAYLOAD])
    [path] = files(tmp_path)
    assert blob.digest == "sha256:" + sha256(path.read_bytes()).hexdigest() == f"sha256:{path.name}"
    assert PAYLOAD[:256] not in path.read_bytes()
    assert key not in path.read_bytes()


def test_directory_and_files_are_private(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir(mode=0o755)
    BlobStore(tmp_path / "blobs", StillClock()).store_payload([b"x"])
    assert mode(tmp_path / "blobs") == 0o700
    assert [mode(path) for path in files(tmp_path)] == [0o600]


def test_the_payload_is_never_held_whole(store: BlobStore) -> None:
    """Never more than two chunks are taken from the source ahead of what went to disk."""
    written = 0
    append = blobs._append_piece

    def counting(file: Any, piece: bytes) -> None:
        nonlocal written
        written += len(piece)
        append(file, piece)

    def pieces() -> Iterator[bytes]:
        for n in range(20):
            assert n * CHUNK_SIZE - written <= 2 * CHUNK_SIZE
            yield bytes(CHUNK_SIZE)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blobs, "_append_piece", counting)
        store.store_payload(pieces())


def test_over_the_limit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs", StillClock(), limit=2 * CHUNK_SIZE)
    store.delete(store.store_payload([bytes(2 * CHUNK_SIZE)])[0].digest)
    with pytest.raises(PayloadTooLarge, match=str(2 * CHUNK_SIZE)):
        store.store_payload([bytes(CHUNK_SIZE), bytes(CHUNK_SIZE), b"x"])
    assert files(tmp_path) == []


def test_a_failing_source_leaves_nothing_and_its_error_stays(
    store: BlobStore, tmp_path: Path
) -> None:
    def pieces() -> Iterator[bytes]:
        yield bytes(3 * CHUNK_SIZE)
        raise ConnectionResetError("peer went away")

    with pytest.raises(ConnectionResetError):
        store.store_payload(pieces())
    assert files(tmp_path) == []


def test_a_full_disk_is_a_storage_failure_and_leaves_nothing(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFailed, match="No space left"):
        store.store_payload([PAYLOAD])
    assert files(tmp_path) == []


def test_the_file_is_synced_before_its_name_and_the_name_after(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    rename, fsync = Path.replace, os.fsync

    def recording_fsync(descriptor: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        steps.append(f"sync {kind}")
        fsync(descriptor)

    def recording_rename(path: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(Path, "replace", recording_rename)
    store.store_payload([PAYLOAD])
    assert steps == ["sync file", "rename", "sync directory"]


def write_until_line(directory: Path, line: int) -> bool:
    """Write PAYLOAD in a child that dies at the n-th line of the store; whether it got through."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal line
        if frame.f_code.co_filename not in (blobs.__file__, durable_files.__file__):
            return None
        line -= event == "line"
        return os._exit(1) if line < 0 else trace

    if child := os.fork():
        return os.waitpid(child, 0)[1] == 0
    store = BlobStore(directory, StillClock())
    sys.settrace(trace)
    store.store_payload([PAYLOAD])
    os._exit(0)


def test_a_crash_at_any_line_leaves_all_or_nothing(tmp_path: Path) -> None:
    reference, key = BlobStore(tmp_path / "reference", StillClock()).store_payload([PAYLOAD])
    outcomes, line, done = set(), 0, False
    while not done:
        directory = tmp_path / str(line)
        done = write_until_line(directory, line)
        store = BlobStore(directory, StillClock())
        outcomes.add(present := reference.digest in store)
        assert [path.name for path in directory.iterdir()] == [reference.digest[7:]] * present
        assert not present or b"".join(store.read_payload(reference.digest, key)) == PAYLOAD
        line += 1
    assert outcomes == {True, False}
    assert line > 30


def test_opening_sweeps_what_a_crash_left(store: BlobStore, tmp_path: Path) -> None:
    blob, _ = store.store_payload([b"kept"])
    (tmp_path / "blobs" / "tmp-dead").write_bytes(b"half")
    again = BlobStore(tmp_path / "blobs", StillClock())
    assert [path.name for path in files(tmp_path)] == [blob.digest[7:]]
    assert again.delete_leftovers() == 0


def test_truncation_at_any_length_is_noticed(store: BlobStore, tmp_path: Path) -> None:
    blob, key = store.store_payload([b"small"])
    [path] = files(tmp_path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(EncryptionError):
            list(store.read_payload(blob.digest, key))


def test_truncation_between_chunks_is_noticed(store: BlobStore, tmp_path: Path) -> None:
    blob, key = store.store_payload([PAYLOAD])
    [path] = files(tmp_path)
    os.truncate(path, encrypted_size(CHUNK_SIZE))
    with pytest.raises(EncryptionError, match="cut off"):
        list(store.read_payload(blob.digest, key))


def test_tampering_with_any_byte_is_noticed(store: BlobStore, tmp_path: Path) -> None:
    blob, key = store.store_payload([b"small"])
    [path] = files(tmp_path)
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0x80]) + whole[i + 1 :])
        with pytest.raises(EncryptionError):
            list(store.read_payload(blob.digest, key))


def test_bytes_after_the_end_are_noticed(store: BlobStore, tmp_path: Path) -> None:
    blob, key = store.store_payload([bytes(CHUNK_SIZE)])
    with files(tmp_path)[0].open("ab") as file:
        file.write(b"more")
    with pytest.raises(EncryptionError, match="goes on after its end"):
        list(store.read_payload(blob.digest, key))


def test_a_genuine_stream_under_another_name_is_noticed(store: BlobStore, tmp_path: Path) -> None:
    blob, key = store.store_payload([b"one"])
    files(tmp_path)[0].rename(tmp_path / "blobs" / ABSENT[7:])
    with pytest.raises(EncryptionError, match="does not match its digest"):
        list(store.read_payload(ABSENT, key))
    assert blob.digest not in store


def test_ranges_of_the_ciphertext(store: BlobStore, tmp_path: Path) -> None:
    blob, _ = store.store_payload([PAYLOAD])
    whole = files(tmp_path)[0].read_bytes()
    for start, length in [
        (0, None),
        (0, 0),
        (5, 10),
        (HEADER_SIZE, CHUNK_SIZE),
        (CHUNK_SIZE - 3, 3 * CHUNK_SIZE),
    ]:
        end = None if length is None else start + length
        assert b"".join(store.read_ciphertext(blob.digest, start, length)) == whole[start:end]
    assert list(store.read_ciphertext(blob.digest, len(whole))) == []
    assert list(store.read_ciphertext(blob.digest, len(whole) + 9, 9)) == []
    for start, length in [(-1, None), (0, -1)]:
        with pytest.raises(InvalidRequest):
            store.read_ciphertext(blob.digest, start, length)


def test_a_deleted_blob_is_unknown(store: BlobStore) -> None:
    blob, key = store.store_payload([b"x"])
    started = store.read_payload(blob.digest, key)
    store.delete(blob.digest)
    store.delete(blob.digest)
    assert blob.digest not in store
    for use in (
        store.ciphertext_size,
        store.read_ciphertext,
        lambda digest: store.read_payload(digest, key),
    ):
        with pytest.raises(UnknownBlob, match=blob.digest):
            use(blob.digest)
    with pytest.raises(UnknownBlob):
        next(started)


@pytest.mark.parametrize(
    "digest",
    [
        "",
        "x",
        "../../etc/passwd",
        "sha256:../" + "a" * 61,
        ABSENT + "\n",
        ABSENT.upper(),
        ABSENT[7:],
    ],
)
def test_only_digests_name_blobs(store: BlobStore, digest: str) -> None:
    for use in (store.ciphertext_size, store.delete, store.__contains__, store.read_ciphertext):
        with pytest.raises(InvalidId):
            use(digest)
    with pytest.raises(InvalidId):
        store.read_payload(digest, bytes(32))
    with pytest.raises(InvalidId):
        store.write_piece(digest, 0, b"x")


def test_a_blob_put_together_from_pieces_is_kept_if_it_is_the_right_one(
    store: BlobStore, tmp_path: Path
) -> None:
    blob, key = store.store_payload([PAYLOAD])
    ciphertext = b"".join(store.read_ciphertext(blob.digest))
    other = BlobStore(tmp_path / "other", StillClock())
    middle = len(ciphertext) // 2
    other.write_piece(blob.digest, middle, ciphertext[middle:])
    assert blob.digest not in other
    other.write_piece(blob.digest, 0, ciphertext[:middle])
    assert other.complete_fetch(blob.digest) == Blob(blob.digest, blob.size)
    assert b"".join(other.read_payload(blob.digest, key)) == PAYLOAD


def test_pieces_that_make_another_blob_go(store: BlobStore, tmp_path: Path) -> None:
    store.write_piece(ABSENT, 0, b"something else")
    with pytest.raises(EncryptionError, match="not sha256:0000"):
        store.complete_fetch(ABSENT)
    assert files(tmp_path) == []
    with pytest.raises(UnknownBlob):
        store.complete_fetch(ABSENT)


def test_pieces_that_are_given_up_or_left_by_a_crash_go(store: BlobStore, tmp_path: Path) -> None:
    store.write_piece(ABSENT, 7, b"x")
    store.abandon_fetch(ABSENT)
    store.abandon_fetch(ABSENT)
    assert files(tmp_path) == []
    store.write_piece(ABSENT, 7, b"x")
    assert store.delete_leftovers() == 1
