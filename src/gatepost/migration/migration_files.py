"""Atomic file replacement, and the folder with the files of a migration."""

import os
from pathlib import Path


class MigrationFolder:
    """Paths of the migration's own files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = path / "migration-ledger.jsonl"
        self.marker = path / "migration.json"
        self.rejects = path / "migration-rejects.jsonl"
        self.mirror_group = path / "migration-mirror.json"


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file atomically and durably. It keeps its mode; a new file is private."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if path.exists():
            os.fchmod(descriptor, path.stat().st_mode & 0o777)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
    sync_folder(path.parent)


def remove_file(path: Path) -> None:
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
