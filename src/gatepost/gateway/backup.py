"""Backup and restore of a state directory: journal, node key and blobs in one file.

A backup is a tar file. The journal in it is as it was at one moment, though the gateway runs; the
blobs are those that journal names. A restored journal begins a new incarnation (see
delivery/restore.py) before it replaces the journal there, which is moved aside, not removed.
"""

import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import IO, TypeVar

import apsw
import msgspec
from msgspec import Struct

from gatepost.clock import Clock
from gatepost.config import Settings
from gatepost.delivery import LocalNode, build_core
from gatepost.delivery.restore import begin_incarnation, count_quarantined, quarantine
from gatepost.errors import BackupError, GatepostError
from gatepost.events import NodeKey
from gatepost.gateway.core import mailbox_policy, retry_policy
from gatepost.gateway.state import StateDir, sync_folder, write_private
from gatepost.journal import Database, Tx, Writer
from gatepost.journal.database import lock

T = TypeVar("T")

_VERSION = 1
_MANIFEST, _JOURNAL, _KEY, _BLOBS = "manifest.json", "journal.db", "node.key", "blobs/"
_DIGITS = 64
_BATCH = 1000
# Far more versions than anybody signs between a backup and its restore, and some at random, so
# that one backup restored twice does not say two things in the same version.
_LEAP = 1 << 32
_LARGEST_MANIFEST = 64 * 1024

_FACTS = "SELECT (SELECT value FROM fact WHERE name = ?), (SELECT value FROM fact WHERE name = ?)"
_LAST = "SELECT coalesce(max(last_seq), 0) FROM head"


class Manifest(Struct, frozen=True):
    """What a backup is of. `missing` blobs were forgotten by the gateway while it was made."""

    version: int
    node_id: str
    incarnation: str
    last_seq: int
    made_at: int
    journal_bytes: int
    journal_sha256: str
    blobs: int
    missing: int


class Restored(Struct, frozen=True):
    """`kept_in` is where the journal that was here is now."""

    node_id: str
    incarnation: str
    first_seq: int
    made_at: int
    dead_letters: int
    in_doubt: int
    blobs: int
    kept_in: str | None


# -- backup


def back_up(state: StateDir, target: Path, clock: Clock) -> Manifest:
    """Write a backup to `target`, which must not exist. The gateway may run."""
    if target.exists():
        raise BackupError(f"{target} exists; a backup replaces nothing")
    if not state.journal.exists():
        raise BackupError(f"there is no journal in {state.path}; name another --state-dir")
    work = target.with_name(f".{target.name}.{clock.random(4).hex()}")
    journal = work.with_name(f"{work.name}.journal")
    try:
        _copy_journal(state.journal, journal)
        with _private(work) as file:
            manifest = _pack(state, journal, file, clock)
        work.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise BackupError(f"{target} cannot be written: {error.strerror or error}") from None
    except apsw.Error as error:
        raise BackupError(f"{state.journal} cannot be copied: {error}") from None
    finally:
        for leftover in (work, journal):
            leftover.unlink(missing_ok=True)
    return manifest


def _copy_journal(source: Path, target: Path) -> None:
    """In one step, which is one moment of the journal, and keeps nobody from writing it."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    reader = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
    copy = apsw.Connection(str(target))
    try:
        reader.set_busy_timeout(5_000)
        with copy.backup("main", reader, "main") as backup:
            backup.step()
        # One file, without a log beside it.
        copy.execute("PRAGMA journal_mode = DELETE")
    finally:
        copy.close()
        reader.close()


@contextmanager
def _private(path: Path) -> Iterator[IO[bytes]]:
    """A new file that only its owner can read, on disk when this ends."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _pack(state: StateDir, journal: Path, file: IO[bytes], clock: Clock) -> Manifest:
    node_id, incarnation, last_seq, digests = _look(journal)
    blobs = [state.blobs / digest.removeprefix("sha256:") for digest in digests]
    there = [blob for blob in blobs if blob.is_file()]
    manifest = Manifest(
        _VERSION,
        node_id,
        incarnation,
        last_seq,
        clock.now(),
        journal.stat().st_size,
        _sha256(journal),
        len(there),
        len(blobs) - len(there),
    )
    with tarfile.open(fileobj=file, mode="w") as tar:
        _add(tar, _MANIFEST, msgspec.json.encode(manifest))
        _add(tar, _KEY, state.key.read_bytes())
        for name, path in [(_JOURNAL, journal), *((_BLOBS + b.name, b) for b in there)]:
            with path.open("rb") as content:
                tar.addfile(_member(name, os.fstat(content.fileno()).st_size), content)
    return manifest


def _look(journal: Path) -> tuple[str, str, int, list[str]]:
    """(node, incarnation, last seq, digests of its blobs)"""
    connection = apsw.Connection(str(journal), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tx = Tx(connection, 0)
        ((node_id, incarnation),) = tx.rows(_FACTS, ("node_id", "incarnation"))
        ((last,),) = tx.rows(_LAST)
        digests = [row[0] for row in tx.rows("SELECT digest FROM blob ORDER BY digest")]
    finally:
        connection.close()
    return str(node_id), str(incarnation), int(last), digests


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    tar.addfile(_member(name, len(content)), BytesIO(content))


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


def _sha256(path: Path) -> str:
    mark = sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            mark.update(piece)
    return mark.hexdigest()


# -- restore


def read_manifest(file: Path) -> Manifest:
    try:
        with tarfile.open(file, "r:") as tar:
            member = tar.next()
            content = tar.extractfile(member) if member and member.name == _MANIFEST else None
            if content is None:
                raise BackupError(f"{file} is no backup")
            manifest = msgspec.json.decode(content.read(_LARGEST_MANIFEST), type=Manifest)
    except (OSError, tarfile.TarError, msgspec.MsgspecError) as error:
        raise BackupError(f"{file} is no backup: {error}") from None
    if manifest.version != _VERSION:
        raise BackupError(f"{file} is of another version of Gatepost; upgrade this one")
    return manifest


def restore(file: Path, settings: Settings, clock: Clock) -> Restored:
    """Put the gateway of these settings, which must be stopped, back to what is in `file`."""
    manifest = read_manifest(file)
    if manifest.node_id != settings.node.id:
        raise BackupError(
            f"{file} is of node {manifest.node_id!r}, and this is {settings.node.id!r}:"
            " set node.id, or choose another backup"
        )
    state = StateDir(settings.node.state_dir)
    state.prepare()
    guard = lock(state.journal)
    work = state.path / "restoring"
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o700)
        _unpack(file, manifest, work)
        _check_key(state, work)
        return _put_in_place(state, work, manifest, _renew(work, manifest, settings, clock), clock)
    except OSError as error:
        raise BackupError(f"{file} cannot be restored: {error.strerror or error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
        guard.close()


class _Renewed(Struct, frozen=True):
    incarnation: str
    first_seq: int
    dead_letters: int
    in_doubt: int


def _unpack(file: Path, manifest: Manifest, work: Path) -> None:
    """Only what a backup has, under names made here."""
    (work / "blobs").mkdir(mode=0o700)
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                path = _place(work, member)
                content = tar.extractfile(member)
                if path is not None and content is not None:
                    with _private(path) as target:
                        shutil.copyfileobj(content, target)
    except tarfile.TarError as error:
        raise BackupError(f"{file} is damaged: {error}") from None
    journal = work / _JOURNAL
    whole = journal.exists() and (work / _KEY).exists()
    if not whole or _sha256(journal) != manifest.journal_sha256:
        raise BackupError(f"{file} is damaged: its journal is not what was backed up")


def _place(work: Path, member: tarfile.TarInfo) -> Path | None:
    name = member.name
    if not member.isreg():
        return None
    if name in (_JOURNAL, _KEY):
        return work / name
    digits = name.removeprefix(_BLOBS)
    is_blob = name.startswith(_BLOBS) and len(digits) == _DIGITS and digits.isalnum()
    return work / "blobs" / digits if is_blob else None


def _check_key(state: StateDir, work: Path) -> None:
    if state.key.exists() and state.key.read_bytes() != (work / _KEY).read_bytes():
        raise BackupError(
            f"{state.key} is another key than the backup's, so this is another node:"
            " choose another state_dir"
        )


def _renew(work: Path, manifest: Manifest, settings: Settings, clock: Clock) -> _Renewed:
    """Begin the journal's new life, and take out of use what may have been dealt with."""
    database = Database.open(work / _JOURNAL)
    try:
        life = clock.random(8).hex()
        leap = _LEAP + int.from_bytes(clock.random(4))
        bare = Writer(database.writer, clock, lambda outcomes: None)
        first = _run(bare, lambda tx: begin_incarnation(tx, life, leap))
        node = LocalNode(manifest.node_id, life, NodeKey((work / _KEY).read_bytes()), clock)
        core = build_core(node, retry_policy(settings), mailbox_policy(settings))
        # No other participant: time must not pass for the mail that is put into quarantine.
        only = (core.outbox,)
        writer = Writer(database.writer, clock, lambda outcomes: None, participants=only)
        while _run(writer, lambda tx: quarantine(tx, core, _BATCH)):
            pass
        dead, doubt = _run(bare, count_quarantined)
        database.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        database.close()
    return _Renewed(life, first, dead, doubt)


def _run(writer: Writer, operation: Callable[[Tx], T]) -> T:
    found: list[tuple[T, GatepostError | None]] = []
    outcomes = writer.run_group([(operation, lambda value, error: found.append((value, error)))])
    for done, value, error in outcomes:
        done(value, error)
    ((result, failure),) = found
    if failure is not None:
        raise failure
    return result


def _put_in_place(
    state: StateDir, work: Path, manifest: Manifest, renewed: _Renewed, clock: Clock
) -> Restored:
    """The journal comes last: until then everything is as it was."""
    blobs = _add_blobs(state, work)
    if not state.key.exists():
        write_private(state.key, (work / _KEY).read_bytes())
    kept_in = _move_aside(state, clock.now())
    (work / _JOURNAL).replace(state.journal)
    sync_folder(state.path)
    return Restored(
        manifest.node_id,
        renewed.incarnation,
        renewed.first_seq,
        manifest.made_at,
        renewed.dead_letters,
        renewed.in_doubt,
        blobs,
        None if kept_in is None else str(kept_in),
    )


def _add_blobs(state: StateDir, work: Path) -> int:
    state.blobs.mkdir(mode=0o700, exist_ok=True)
    found = list((work / "blobs").iterdir())
    for blob in found:
        blob.replace(state.blobs / blob.name)
    sync_folder(state.blobs)
    return len(found)


def _move_aside(state: StateDir, now: int) -> Path | None:
    """The old journal and its log: a log must never meet a journal that is not its own."""
    files = [state.journal.with_name(state.journal.name + end) for end in ("-wal", "-shm", "")]
    there = [file for file in files if file.exists()]
    if not there:
        return None
    folder = state.path / f"before-restore-{now}"
    folder.mkdir(mode=0o700)
    for file in there:
        file.replace(folder / file.name)
    sync_folder(folder)
    sync_folder(state.path)
    return folder
