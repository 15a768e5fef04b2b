"""The folder with the files of a migration, and durable changes to files."""

import os
from pathlib import Path

from gatepost.files import open_replacement, sync_folder


class MigrationFolder:
    """Paths of the migration's own files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = path / "migration-ledger.jsonl"
        self.marker = path / "migration.json"
        self.rejects = path / "migration-rejects.jsonl"
        self.mirror_group = path / "migration-mirror.json"


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file atomically. It keeps its mode; a new file is private."""
    with open_replacement(path) as file:
        if path.exists():
            os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
        file.write(content)


def remove_file(path: Path) -> None:
    path.unlink(missing_ok=True)
    sync_folder(path.parent)
