"""Backup and restore of a state directory: journal, keys, settings and blobs in one file.

A backup is a tar file. Its journal is a snapshot of one moment, even while the gateway runs; its
blobs are those the snapshot names. It includes settings, the certificate, agents and policy from
the state directory; a restore does not overwrite existing ones. A restored journal begins a new
incarnation (see delivery/restore.py) before it replaces the present journal, which is moved aside,
not removed.
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
from gatepost.config import FILE_NAME, Settings
from gatepost.core.gateway_core import mailbox_policy, retry_policy
from gatepost.core.state_dir import StateDir
from gatepost.delivery import LocalNode, build_core
from gatepost.delivery.blob_records import all_digests
from gatepost.delivery.restore import begin_incarnation, count_quarantined, quarantine
from gatepost.errors import BackupError, GatepostError
from gatepost.events import NodeKey
from gatepost.files import open_replacement, sync_folder, write_file_atomically
from gatepost.journal import Database, Tx, Writer, outbox_reads
from gatepost.journal.database import lock_journal
from gatepost.journal.facts import find_fact
from gatepost.tasks.policy import Policy
from gatepost.tasks.registry import AgentRegistry
from gatepost.tasks.task_engine import TaskEngine

T = TypeVar("T")

_FORMAT_VERSION = 1
_MANIFEST_NAME, _JOURNAL_NAME, _KEY_NAME, _BLOBS_PREFIX = (
    "manifest.json",
    "journal.db",
    "node.key",
    "blobs/",
)
_DIGEST_LENGTH = 64
_SETTINGS_PREFIX = "settings/"
# Files of the operator or of `init` in the state directory. A folder stands for its files.
_SETTINGS_FILES = (FILE_NAME, "tls.key", "tls.crt", "policy.cedar", "agents", "secrets")
_MAX_SETTINGS_FILES = 1000
_QUARANTINE_BATCH = 1000
# Added to the room versions this node signs after a restore: far more than a node signs between a
# backup and its restore, for a record changes about once a minute. A random part is added, so that
# one backup restored twice does not sign two different records with the same version. A thousand
# restores in a row fit under the greatest version of a record, which is 2**31 - 1.
_VERSION_LEAP = 1 << 20
_MAX_MANIFEST_BYTES = 1024 * 1024


class BackupManifest(Struct, frozen=True):
    """Contents of a backup. `missing` blobs were deleted by the gateway while it was made.

    `settings` names the files of the operator: settings, certificate, agents, policy, secrets.
    """

    version: int
    node_id: str
    incarnation: str
    last_seq: int
    made_at: int
    journal_bytes: int
    journal_sha256: str
    blobs: int
    missing: int
    settings: tuple[str, ...] = ()


class RestoreResult(Struct, frozen=True):
    """Outcome of a restore. `kept_in` is the folder that now holds the previous journal.

    Of the operator's files, `settings` were put back, and `present` ones left as they are.
    """

    node_id: str
    incarnation: str
    first_seq: int
    made_at: int
    dead_letters: int
    in_doubt: int
    blobs: int
    kept_in: str | None
    settings: tuple[str, ...] = ()
    present: tuple[str, ...] = ()


# -- backup


def create_backup(state: StateDir, target: Path, clock: Clock) -> BackupManifest:
    """Write a backup to `target`, which must not exist. The gateway may run."""
    if target.exists():
        raise BackupError(f"{target} exists; a backup replaces nothing")
    if not state.journal.exists():
        raise BackupError(f"there is no journal in {state.path}; name another --state-dir")
    journal = target.with_name(f".{target.name}.{clock.random(4).hex()}.journal")
    try:
        _copy_journal(state.journal, journal)
        with open_replacement(target) as file:
            manifest = _write_archive(state, journal, file, clock)
    except OSError as error:
        raise BackupError(f"{target} cannot be written: {error.strerror or error}") from None
    except apsw.Error as error:
        raise BackupError(f"{state.journal} cannot be copied: {error}") from None
    finally:
        journal.unlink(missing_ok=True)
    return manifest


def _copy_journal(source: Path, target: Path) -> None:
    """Copy the journal in one step, which gives a snapshot and does not block the writer."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    reader = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
    copy = apsw.Connection(str(target))
    try:
        reader.set_busy_timeout(5_000)
        with copy.backup("main", reader, "main") as backup:
            backup.step()
        # The copy becomes a single file, without a write-ahead log beside it.
        copy.execute("PRAGMA journal_mode = DELETE")
    finally:
        copy.close()
        reader.close()


@contextmanager
def _new_private_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that only its owner can read; it is synced to disk on exit."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _write_archive(state: StateDir, journal: Path, file: IO[bytes], clock: Clock) -> BackupManifest:
    node_id, incarnation, last_seq, digests = _read_journal_facts(journal)
    blobs = [state.blobs / digest.removeprefix("sha256:") for digest in digests]
    present = [blob for blob in blobs if blob.is_file()]
    settings = _settings_files(state)
    manifest = BackupManifest(
        _FORMAT_VERSION,
        node_id,
        incarnation,
        last_seq,
        clock.now(),
        journal.stat().st_size,
        _file_sha256(journal),
        len(present),
        len(blobs) - len(present),
        tuple(settings),
    )
    with tarfile.open(fileobj=file, mode="w") as tar:
        _add_content(tar, _MANIFEST_NAME, msgspec.json.encode(manifest))
        _add_content(tar, _KEY_NAME, state.key.read_bytes())
        for name, path in [
            (_JOURNAL_NAME, journal),
            *((_SETTINGS_PREFIX + name, state.path / name) for name in settings),
            *((_BLOBS_PREFIX + b.name, b) for b in present),
        ]:
            with path.open("rb") as content:
                tar.addfile(_tar_member(name, os.fstat(content.fileno()).st_size), content)
    return manifest


def _settings_files(state: StateDir) -> list[str]:
    """The operator's files by their names below the state directory; links are not followed."""
    found: list[Path] = []
    for name in _SETTINGS_FILES:
        path = state.path / name
        found += sorted(path.iterdir()) if path.is_dir() and not path.is_symlink() else [path]
    files = [path for path in found if path.is_file() and not path.is_symlink()]
    if len(files) > _MAX_SETTINGS_FILES:
        raise BackupError(f"there are more than {_MAX_SETTINGS_FILES} files of agents and secrets")
    return [path.relative_to(state.path).as_posix() for path in files]


def _read_journal_facts(journal: Path) -> tuple[str, str, int, list[str]]:
    """Return (node id, incarnation, last seq, digests of the blobs)."""
    connection = apsw.Connection(str(journal), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tx = Tx(connection, 0)
        node_id, incarnation = find_fact(tx, "node_id"), find_fact(tx, "incarnation")
        last = outbox_reads.last_seq(tx)
        digests = all_digests(tx)
    finally:
        connection.close()
    return str(node_id), str(incarnation), int(last), digests


def _add_content(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    tar.addfile(_tar_member(name, len(content)), BytesIO(content))


def _tar_member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


def _file_sha256(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


# -- restore


def read_manifest(file: Path) -> BackupManifest:
    try:
        with tarfile.open(file, "r:") as tar:
            member = tar.next()
            content = tar.extractfile(member) if member and member.name == _MANIFEST_NAME else None
            if content is None:
                raise BackupError(f"{file} is no backup")
            manifest = msgspec.json.decode(content.read(_MAX_MANIFEST_BYTES), type=BackupManifest)
    except (OSError, tarfile.TarError, msgspec.MsgspecError) as error:
        raise BackupError(f"{file} is no backup: {error}") from None
    if manifest.version != _FORMAT_VERSION:
        raise BackupError(f"{file} is of another version of Gatepost; upgrade this one")
    return manifest


def restore_backup(file: Path, settings: Settings, clock: Clock) -> RestoreResult:
    """Restore the backup in `file` into the state directory of `settings`.

    The gateway must be stopped.
    """
    manifest = read_manifest(file)
    if settings.node.id not in {"", manifest.node_id}:
        raise BackupError(
            f"{file} is of node {manifest.node_id!r}, and this is {settings.node.id!r}:"
            " set node.id, or choose another backup"
        )
    state = StateDir(settings.node.state_dir)
    state.create_folder()
    guard = lock_journal(state.journal)
    work = state.path / "restoring"
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o700)
        _unpack_archive(file, manifest, work)
        _check_node_key(state, work)
        return _install_restored(
            state, work, manifest, _renew_journal(work, manifest, settings, clock), clock
        )
    except OSError as error:
        raise BackupError(f"{file} cannot be restored: {error.strerror or error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
        guard.close()


class _RenewedJournal(Struct, frozen=True):
    incarnation: str
    first_seq: int
    dead_letters: int
    in_doubt: int


def _unpack_archive(file: Path, manifest: BackupManifest, work: Path) -> None:
    """Extract known members only, under names chosen here."""
    for folder in ("blobs", "settings", "settings/agents", "settings/secrets"):
        (work / folder).mkdir(mode=0o700)
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                path = _target_path(work, member, manifest)
                content = tar.extractfile(member)
                if path is not None and content is not None:
                    with _new_private_file(path) as target:
                        shutil.copyfileobj(content, target)
    except tarfile.TarError as error:
        raise BackupError(f"{file} is damaged: {error}") from None
    journal = work / _JOURNAL_NAME
    whole = journal.exists() and (work / _KEY_NAME).exists()
    if not whole or _file_sha256(journal) != manifest.journal_sha256:
        raise BackupError(f"{file} is damaged: its journal does not match its manifest")


def _target_path(work: Path, member: tarfile.TarInfo, manifest: BackupManifest) -> Path | None:
    name = member.name
    if not member.isreg():
        return None
    if name in (_JOURNAL_NAME, _KEY_NAME):
        return work / name
    if name.startswith(_SETTINGS_PREFIX):
        named = name.removeprefix(_SETTINGS_PREFIX)
        return work / name if named in manifest.settings and _is_settings_name(named) else None
    digits = name.removeprefix(_BLOBS_PREFIX)
    is_blob = name.startswith(_BLOBS_PREFIX) and len(digits) == _DIGEST_LENGTH and digits.isalnum()
    return work / "blobs" / digits if is_blob else None


def _is_settings_name(name: str) -> bool:
    """Whether a backup may put a file back under this name."""
    folder, _, file = name.rpartition("/")
    is_plain = file not in {"", ".", ".."} and "/" not in folder
    return is_plain and (folder or file) in _SETTINGS_FILES


def _check_node_key(state: StateDir, work: Path) -> None:
    if state.key.exists() and state.key.read_bytes() != (work / _KEY_NAME).read_bytes():
        raise BackupError(
            f"{state.key} is another key than the backup's, so this is another node:"
            " choose another state_dir"
        )


def _renew_journal(
    work: Path, manifest: BackupManifest, settings: Settings, clock: Clock
) -> _RenewedJournal:
    """Begin a new incarnation: quarantine mail that may have been processed, and end tasks."""
    database = Database.open(work / _JOURNAL_NAME)
    try:
        incarnation = clock.random(8).hex()
        leap = draw_version_leap(clock)
        bare = Writer(database.writer_connection, clock, lambda outcomes: None)
        first = _run_transaction(bare, lambda tx: begin_incarnation(tx, incarnation, leap))
        key = NodeKey((work / _KEY_NAME).read_bytes())
        node = LocalNode(manifest.node_id, incarnation, key, clock)
        core = build_core(node, retry_policy(settings), mailbox_policy(settings))
        hub = TaskEngine(core, AgentRegistry(), Policy(), settings.hub)
        # The outbox is the only participant: no timer may fire for quarantined mail.
        only = (core.outbox,)
        writer = Writer(database.writer_connection, clock, lambda outcomes: None, participants=only)
        while _run_transaction(writer, lambda tx: quarantine(tx, core, _QUARANTINE_BATCH)):
            pass
        while _run_transaction(writer, hub.restored.end_restored_tasks):
            pass
        dead, doubt = _run_transaction(bare, count_quarantined)
        database.writer_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        database.close()
    return _RenewedJournal(incarnation, first, dead, doubt)


def draw_version_leap(clock: Clock) -> int:
    return _VERSION_LEAP + int.from_bytes(clock.random(4)) % _VERSION_LEAP


def _run_transaction(writer: Writer, operation: Callable[[Tx], T]) -> T:
    found: list[tuple[T, GatepostError | None]] = []
    outcomes = writer.run_group([(operation, lambda value, error: found.append((value, error)))])
    for done, value, error in outcomes:
        done(value, error)
    ((result, failure),) = found
    if failure is not None:
        raise failure
    return result


def _install_restored(
    state: StateDir, work: Path, manifest: BackupManifest, renewed: _RenewedJournal, clock: Clock
) -> RestoreResult:
    """Move the restored files into the state directory.

    The journal comes last: until then the previous state is intact.
    """
    blobs = _add_blobs(state, work)
    if not state.key.exists():
        write_file_atomically(state.key, (work / _KEY_NAME).read_bytes())
    installed, left = _add_settings(state, work, manifest)
    kept_in = _move_journal_aside(state, clock.now())
    (work / _JOURNAL_NAME).replace(state.journal)
    sync_folder(state.path)
    return RestoreResult(
        manifest.node_id,
        renewed.incarnation,
        renewed.first_seq,
        manifest.made_at,
        renewed.dead_letters,
        renewed.in_doubt,
        blobs,
        None if kept_in is None else str(kept_in),
        installed,
        left,
    )


def _add_blobs(state: StateDir, work: Path) -> int:
    state.blobs.mkdir(mode=0o700, exist_ok=True)
    found = list((work / "blobs").iterdir())
    for blob in found:
        blob.replace(state.blobs / blob.name)
    sync_folder(state.blobs)
    return len(found)


def _add_settings(
    state: StateDir, work: Path, manifest: BackupManifest
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Put the operator's files back, without overwriting existing ones."""
    installed, left = [], []
    for name in manifest.settings:
        source, target = work / _SETTINGS_PREFIX / name, state.path / name
        if not source.exists():
            continue
        if target.exists() or target.is_symlink():
            left.append(name)
            continue
        target.parent.mkdir(mode=0o700, exist_ok=True)
        write_file_atomically(target, source.read_bytes())
        installed.append(name)
    return tuple(installed), tuple(left)


def _move_journal_aside(state: StateDir, now: int) -> Path | None:
    """Move the old journal and its log together: a log must never meet another journal."""
    files = [state.journal.with_name(state.journal.name + end) for end in ("-wal", "-shm", "")]
    present = [file for file in files if file.exists()]
    if not present:
        return None
    folder = state.path / f"before-restore-{now}"
    folder.mkdir(mode=0o700)
    for file in present:
        file.replace(folder / file.name)
    sync_folder(folder)
    sync_folder(state.path)
    return folder
