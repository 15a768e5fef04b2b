"""Reads a legacy document from a file: a Yjs state dump or a JSON export, told apart by content."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from gatepost.errors import GatepostError, InvalidRequest
from gatepost.migration import yjs
from gatepost.migration.fields import Item, Kind, Names, Reject, understand

KINDS: tuple[Kind, ...] = ("messages", "tasks")
# Root maps that identify a document of the legacy system, even one without payloads.
_STATE = frozenset(
    {"nodes", "agents", "routing", "capabilities", "invites", "delivery", "coordination", "pulse"}
)


class Dump(Struct, frozen=True):
    """Records by kind and id, and the names of the maps that hold no payloads."""

    records: dict[Kind, dict[str, Any]]
    others: list[str]

    def each(self) -> Iterator[tuple[Kind, str, Any]]:
        for kind, records in self.records.items():
            for id, record in records.items():
                yield kind, id, record

    def understood(self, names: Names) -> list[Item | Reject]:
        return [found for entry in self.each() for found in understand(*entry, names)]


def read(path: Path, only: Kind | None = None) -> Dump:
    """Read the records of one kind, or of both."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None
    try:
        return parse(data, only)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error.message}") from None


def parse(data: bytes, only: Kind | None = None) -> Dump:
    kinds = KINDS if only is None else (only,)
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


def _from_yjs(data: bytes, kinds: tuple[Kind, ...]) -> Dump:
    doc = yjs.load(data)
    names = yjs.roots(doc)
    _check_names(names)
    return Dump({kind: yjs.records(doc, kind) for kind in kinds}, _others(names))


def _from_json(data: bytes, kinds: tuple[Kind, ...]) -> Dump:
    try:
        document = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_no_key_twice)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"this is not JSON: {error}") from None
    _check_names(list(document))
    return Dump({kind: _map(document, kind) for kind in kinds}, _others(list(document)))


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raise on a duplicate key. A JSON reader would silently keep the last record."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:80]!r} occurs twice in one object")
    return found


def _map(document: dict[str, Any], kind: Kind) -> dict[str, Any]:
    found = document.get(kind)
    if found is not None and not isinstance(found, dict):
        raise InvalidRequest(f"`{kind}` is not a map of records")
    return found or {}


def _check_names(names: list[str]) -> None:
    if not _STATE.union(KINDS).intersection(names):
        raise InvalidRequest(
            "it has no map of the legacy system, neither `messages` nor `tasks`;"
            " a Yjs dump must be of version 1, as `Y.encodeStateAsUpdate(doc)` makes it"
        )


def _others(names: list[str]) -> list[str]:
    return sorted(set(names).difference(KINDS))
