"""Reads a legacy document from a file: a Yjs state dump or a JSON export, told apart by content."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from gatepost.errors import GatepostError, InvalidRequest
from gatepost.migration import yjs_document
from gatepost.migration.legacy_records import (
    AgentNames,
    LegacyItem,
    LegacyKind,
    RejectedItem,
    parse_legacy_record,
)

LEGACY_KINDS: tuple[LegacyKind, ...] = ("messages", "tasks")
# Root maps that identify a document of the legacy system, even one without payloads.
_STATE_MAPS = frozenset(
    {"nodes", "agents", "routing", "capabilities", "invites", "delivery", "coordination", "pulse"}
)


class LegacyDump(Struct, frozen=True):
    """Records by kind and id, and the names of the maps that hold no payloads."""

    records: dict[LegacyKind, dict[str, Any]]
    others: list[str]

    def iter_records(self) -> Iterator[tuple[LegacyKind, str, Any]]:
        for kind, records in self.records.items():
            for id, record in records.items():
                yield kind, id, record

    def parse_items(self, names: AgentNames) -> list[LegacyItem | RejectedItem]:
        return [
            found for entry in self.iter_records() for found in parse_legacy_record(*entry, names)
        ]


def read_dump(path: Path, only: LegacyKind | None = None) -> LegacyDump:
    """Read the records of one kind, or of both."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None
    try:
        return parse_dump(data, only)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error.message}") from None


def parse_dump(data: bytes, only: LegacyKind | None = None) -> LegacyDump:
    kinds = LEGACY_KINDS if only is None else (only,)
    if not data.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        return _from_yjs(data, kinds)
    try:
        return _from_json(data, kinds)
    except InvalidRequest as problem:
        # A Yjs update by 123 clients also starts with the byte of `{`.
        try:
            return _from_yjs(data, kinds)
        except GatepostError:
            raise problem from None


def _from_yjs(data: bytes, kinds: tuple[LegacyKind, ...]) -> LegacyDump:
    doc = yjs_document.load_document(data)
    names = yjs_document.root_names(doc)
    _check_map_names(names)
    return LegacyDump(
        {kind: yjs_document.read_records(doc, kind) for kind in kinds}, _other_maps(names)
    )


def _from_json(data: bytes, kinds: tuple[LegacyKind, ...]) -> LegacyDump:
    try:
        document = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_reject_duplicate_keys)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"this is not JSON: {error}") from None
    _check_map_names(list(document))
    return LegacyDump(
        {kind: _records_of_kind(document, kind) for kind in kinds}, _other_maps(list(document))
    )


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raise on a duplicate key. A JSON reader would silently keep the last record."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:80]!r} occurs twice in one object")
    return found


def _records_of_kind(document: dict[str, Any], kind: LegacyKind) -> dict[str, Any]:
    found = document.get(kind)
    if found is not None and not isinstance(found, dict):
        raise InvalidRequest(f"`{kind}` is not a map of records")
    return found or {}


def _check_map_names(names: list[str]) -> None:
    if not _STATE_MAPS.union(LEGACY_KINDS).intersection(names):
        raise InvalidRequest(
            "it has no map of the legacy system, neither `messages` nor `tasks`;"
            " a Yjs dump must be of version 1, as `Y.encodeStateAsUpdate(doc)` makes it"
        )


def _other_maps(names: list[str]) -> list[str]:
    return sorted(set(names).difference(LEGACY_KINDS))
