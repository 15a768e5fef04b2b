"""Yjs documents through pycrdt, an optional dependency: `gatepost[migration]`."""

from typing import TYPE_CHECKING, Any

from gatepost.errors import ConfigError, InvalidRequest
from gatepost.migration.json_values import UnreadableValue
from gatepost.room.yjs_update import decode_state_vector

if TYPE_CHECKING:
    from pycrdt import Doc

YjsRecords = dict[str, Any]


def load_document(update: bytes) -> "Doc[Any]":
    """Load the document of a complete state dump."""
    pycrdt = _import_pycrdt()
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


def new_document() -> "Doc[Any]":
    doc: Doc[Any] = _import_pycrdt().Doc()
    return doc


def root_names(doc: "Doc[Any]") -> list[str]:
    return sorted(doc.keys())


def read_records(doc: "Doc[Any]", name: str) -> YjsRecords:
    """Read the entries of a root map. Nested shared types become plain values."""
    pycrdt = _import_pycrdt()
    if len(doc.get(name, type=pycrdt.Array)):
        raise InvalidRequest(f"`{name}` is a list in this document; a map of records is expected")
    found = doc.get(name, type=pycrdt.Map)
    with doc.transaction():
        return {key: _plain_value(found, key) for key in found.keys()}  # noqa: SIM118


def add_records(doc: "Doc[Any]", name: str, new: YjsRecords) -> bytes:
    """Add the missing records as nested maps; return the whole document as an update."""
    pycrdt = _import_pycrdt()
    found = doc.get(name, type=pycrdt.Map)
    with doc.transaction():
        for key, record in new.items():
            if key not in found:
                found[key] = pycrdt.Map(record)
    return doc.get_update()


def _plain_value(found: Any, key: str) -> Any:
    try:
        value = found[key]
        return value.to_py() if hasattr(value, "to_py") else value
    except (ValueError, TypeError) as error:
        return UnreadableValue(str(error))


def _import_pycrdt() -> Any:
    try:
        import pycrdt
    except ImportError:
        raise ConfigError(
            "reading a Yjs document needs pycrdt: pip install 'gatepost[migration]',"
            " or export the document as JSON"
        ) from None
    return pycrdt
