"""Yjs documents through pycrdt, an optional dependency: `gatepost[migration]`."""

from typing import TYPE_CHECKING, Any

from gatepost.errors import ConfigError, InvalidRequest
from gatepost.migration.values import Unreadable
from gatepost.room.update import decode_state_vector

if TYPE_CHECKING:
    from pycrdt import Doc

Records = dict[str, Any]


def load(update: bytes) -> "Doc[Any]":
    """Load the document of a complete state dump."""
    pycrdt = _pycrdt()
    doc: Doc[Any] = pycrdt.Doc()
    try:
        doc.apply_update(update)
        promised = pycrdt.get_state(update)
    except ValueError as error:
        raise InvalidRequest(f"this is neither JSON nor a Yjs update: {error}") from None
    if decode_state_vector(doc.get_state()) != decode_state_vector(promised):
        raise InvalidRequest(
            "this Yjs update builds on others that are missing;"
            " dump the whole document with `Y.encodeStateAsUpdate(doc)`"
        )
    return doc


def empty() -> "Doc[Any]":
    doc: Doc[Any] = _pycrdt().Doc()
    return doc


def roots(doc: "Doc[Any]") -> list[str]:
    return sorted(doc.keys())


def records(doc: "Doc[Any]", name: str) -> Records:
    """Read the entries of a root map. Nested shared types become plain values."""
    pycrdt = _pycrdt()
    if len(doc.get(name, type=pycrdt.Array)):
        raise InvalidRequest(f"`{name}` is a list in this document; a map of records is expected")
    found = doc.get(name, type=pycrdt.Map)
    with doc.transaction():
        return {key: _value(found, key) for key in found.keys()}  # noqa: SIM118


def put(doc: "Doc[Any]", name: str, new: Records) -> bytes:
    """Add the missing records as nested maps; return the whole document as an update."""
    pycrdt = _pycrdt()
    found = doc.get(name, type=pycrdt.Map)
    with doc.transaction():
        for key, record in new.items():
            if key not in found:
                found[key] = pycrdt.Map(record)
    return doc.get_update()


def _value(found: Any, key: str) -> Any:
    try:
        value = found[key]
        return value.to_py() if hasattr(value, "to_py") else value
    except (ValueError, TypeError) as error:
        return Unreadable(str(error))


def _pycrdt() -> Any:
    try:
        import pycrdt
    except ImportError:
        raise ConfigError(
            "reading a Yjs document needs pycrdt: install gatepost[migration],"
            " or export the document as JSON"
        ) from None
    return pycrdt
