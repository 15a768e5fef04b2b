"""The legacy file that old readers still use: a document as JSON, or as a Yjs state dump."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from gatepost.errors import InvalidRequest
from gatepost.migration import legacy_dump, yjs_document
from gatepost.migration.legacy_records import EVENT_FIELD, LegacyKind
from gatepost.migration.migration_files import replace_file

LegacyRecords = dict[str, dict[str, Any]]


class LegacyFile(Protocol):
    def add_records(self, records: Mapping[LegacyKind, LegacyRecords]) -> None:
        """Add the missing messages and tasks, all or none; on disk on return."""


class JsonLegacyFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def add_records(self, records: Mapping[LegacyKind, LegacyRecords]) -> None:
        document = self._read_document()
        for kind, new in records.items():
            document[kind] = new | document.get(kind, {})
        replace_file(self._path, json.dumps(document, ensure_ascii=False).encode())

    def _read_document(self) -> dict[str, Any]:
        if not self._path.exists():
            return {}
        legacy_dump.read_dump(self._path)
        found: dict[str, Any] = json.loads(self._path.read_text("utf-8-sig"))
        return found


class YjsLegacyFile:
    """A Yjs state dump. Each message is a nested map, so that readers can change its status.

    One in-memory document with one client id lives as long as this object. Changes that others
    made to the file are merged into it before each write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._doc = yjs_document.new_document()

    def add_records(self, records: Mapping[LegacyKind, LegacyRecords]) -> None:
        if self._path.exists():
            content = self._path.read_bytes()
            yjs_document.load_document(content)
            self._doc.apply_update(content)
        update = b""
        for kind, new in records.items():
            update = yjs_document.add_records(self._doc, kind, new)
        if update:
            replace_file(self._path, update)


def open_legacy_file(path: Path) -> LegacyFile:
    """Choose the format by suffix: `.json` is JSON, all else Yjs. The file may not exist yet."""
    if not path.parent.is_dir():
        raise InvalidRequest(f"{path.parent} is not a folder")
    return JsonLegacyFile(path) if path.suffix == ".json" else YjsLegacyFile(path)


def mirrored_ids(path: Path) -> set[str]:
    """Ids of the messages and tasks in the file that the mirror wrote."""
    if not path.exists():
        return set()
    found = legacy_dump.read_dump(path).iter_records()
    return {id for _, id, each in found if isinstance(each, dict) and EVENT_FIELD in each}
