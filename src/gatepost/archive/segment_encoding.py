"""Encodes outbox rows as Arrow tables and Parquet files."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from operator import attrgetter
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import UNSET, Raw, Struct, UnsetType

from gatepost.archive.manifest import ArchiveSegment, content_digest
from gatepost.archive.schema import EVENT_SCHEMA, SCHEMA_VERSION
from gatepost.errors import ArchiveError
from gatepost.events import CLEAR_KINDS, EventKind

ROW_GROUP_SIZE: Final = 128 * 1024

# Nonce and authentication tag: the bytes that encryption adds to a payload.
_ENCRYPTION_OVERHEAD = 24 + 16
# Columns whose values rarely repeat; a dictionary would not save space.
_UNIQUE_COLUMNS = {
    "event_id",
    "ref_id",
    "causation_id",
    "origin_id",
    "corr_id",
    "digest",
    "chain",
    "signature",
    "body",
}
_UNIQUE_COLUMNS |= {
    "seq",
    "prev_seq_to",
    "pair_seq",
    "created_at",
    "traceparent",
    "expires_at",
    "eta_at",
}
_DICTIONARY_COLUMNS = [name for name in EVENT_SCHEMA.names if name not in _UNIQUE_COLUMNS]
# Starting zstd takes longer than unpacking a small column of numbers that stand for texts.
_COMPRESSION = {
    name: "snappy" if name in _DICTIONARY_COLUMNS else "zstd" for name in EVENT_SCHEMA.names
}
_COMPRESSION_LEVEL = {name: 1 for name, kind in _COMPRESSION.items() if kind == "zstd"}
_METADATA = {"gatepost.schema": str(SCHEMA_VERSION)}
_STATISTICS_COLUMNS = ["seq", "created_at", "kind", "incarnation"]


class SignedGroup(Struct, frozen=True):
    """The signed head of one commit group."""

    first: int
    last: int
    chain: bytes
    signature: bytes


# seq, event id, id of the referenced event, encoded event, digest
OutboxRow = tuple[int, bytes, bytes | None, bytes, bytes]


class _ArchivedBlobRef(Struct, gc=False):
    digest: str
    size: int


class _ArchivedTrace(Struct, rename="camel", gc=False):
    route_decision: str | None = None
    policy_version: int | str | None = None
    traceparent: str | None = None


class _ArchivedTask(Struct, rename="camel", gc=False):
    capability_id: str | None = None
    capability_version: str | None = None
    delegation_skill_version: str | None = None
    executor_skill_version: str | None = None
    task_type: str | None = None
    eta_at: int | None = None
    eta_seconds: int | None = None
    progress: float | None = None
    failure_class: str | None = None


class _ArchivedEvent(Struct, rename="camel", gc=False):
    """An envelope, decoded without validation: the outbox holds only validated events."""

    source_agent_id: str
    kind: str
    created_at: int
    to_node_id: str | None = None
    to_agent_id: str | None = None
    pair_seq: int = 0
    pair_base: int = 1
    prev_seq_to: int = 0
    corr_id: str | None = None
    causation_id: str | None = None
    origin_event_id: str | None = None
    origin_node_id: str | None = None
    expires_at: int | None = None
    attempt: int = 1
    priority: int = 0
    offer: int = 0
    payload: Raw | UnsetType = UNSET
    payload_ref: _ArchivedBlobRef | None = None
    task: _ArchivedTask | None = None
    trace: _ArchivedTrace | None = None


class _ClearPayload(Struct, rename="camel", gc=False):
    """All fields of receipts, dead letters and signals, whose payloads are not encrypted."""

    status: str | None = None
    outcome: str | None = None
    reason: str | None = None
    eta_at: int | None = None
    eta_seconds: int | None = None
    attempts: int | None = None
    signal: str | None = None
    through: int | None = None


class _PayloadCiphertext(Struct, gc=False):
    data: str


_decode_event = msgspec.json.Decoder(_ArchivedEvent).decode
_decode_clear = msgspec.json.Decoder(_ClearPayload).decode
_decode_ciphertext = msgspec.json.Decoder(_PayloadCiphertext).decode

_ColumnGetters = dict[str, Callable[[Any], Any]]


def _renamed_columns(**fields: str) -> _ColumnGetters:
    """Getters by column, for columns named differently from their field."""
    return {column: attrgetter(field) for column, field in fields.items()}


def _same_name_columns(*names: str) -> _ColumnGetters:
    return {name: attrgetter(name) for name in names}


# The ETA of a receipt and of a task share one column; the receipt takes precedence.
_TASK_ETA = {"task_eta_at": "eta_at", "task_eta_seconds": "eta_seconds"}
_CLEAR_COLUMNS = _same_name_columns(
    "status", "outcome", "reason", "eta_at", "eta_seconds", "signal", "through"
)
_CLEAR_COLUMNS |= _renamed_columns(dead_attempts="attempts")
_TASK_COLUMNS = _same_name_columns(
    "capability_id", "capability_version", "task_type", "progress", "failure_class"
)
_TASK_COLUMNS |= _renamed_columns(
    delegation_version="delegation_skill_version",
    executor_version="executor_skill_version",
    **_TASK_ETA,
)
_TRACE_COLUMNS = _same_name_columns("route_decision", "traceparent")
_TRACE_COLUMNS |= {
    "policy_version": lambda t: None if t.policy_version is None else str(t.policy_version)
}
_BLOB_COLUMNS = _renamed_columns(blob_digest="digest", blob_size="size")
_ENVELOPE_COLUMNS = _same_name_columns("kind", "pair_base", "prev_seq_to", "corr_id", "created_at")
_ENVELOPE_COLUMNS |= _same_name_columns("expires_at", "attempt", "priority")
_ENVELOPE_COLUMNS |= {
    "offer": lambda event: event.offer > 0,
    # Mail that is forwarded for another gateway has a separate order.
    "pair_seq": lambda event: 0 if event.origin_node_id else event.pair_seq,
}
_ENVELOPE_COLUMNS |= _renamed_columns(
    source_agent="source_agent_id", to_node="to_node_id", to_agent="to_agent_id"
)


def events_table(
    incarnation: str, rows: Sequence[OutboxRow], groups: Sequence[SignedGroup], bodies: bool
) -> pa.Table:
    """Build the archive table of these rows. The groups must cover the rows exactly."""
    seqs, ids, refs, encoded, digests = zip(*rows, strict=True)
    try:
        events = [_decode_event(body) for body in encoded]
    except msgspec.MsgspecError as error:
        span = f"seq {seqs[0]} to {seqs[-1]}"
        raise ArchiveError(f"an event of the outbox, {span}, cannot be decoded: {error}") from None
    columns: dict[str, Any] = {
        "incarnation": pa.repeat(incarnation, len(rows)),
        "seq": seqs,
        "event_id": ids,
        "ref_id": refs,
        "digest": digests,
        "body": encoded if bodies else pa.nulls(len(rows), pa.binary()),
        "payload_size": list(map(_payload_size, events)),
        "causation_id": [_optional_id(event.causation_id) for event in events],
        "origin_id": [_optional_id(event.origin_event_id) for event in events],
        **{name: list(map(get, events)) for name, get in _ENVELOPE_COLUMNS.items()},
        **_optional_columns([_clear_payload(e) for e in events], _CLEAR_COLUMNS),
        **_optional_columns([e.task for e in events], _TASK_COLUMNS),
        **_optional_columns([e.trace for e in events], _TRACE_COLUMNS),
        **_optional_columns([e.payload_ref for e in events], _BLOB_COLUMNS),
        **_head_columns(seqs[0], len(rows), groups),
    }
    for eta in ("eta_at", "eta_seconds"):
        columns[eta] = pc.coalesce(columns[eta], columns[f"task_{eta}"])
    arrays = [_to_array(columns[field.name], field.type) for field in EVENT_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=EVENT_SCHEMA)


def _to_array(values: Any, type: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, type)


def _optional_columns(parts: Sequence[Any], columns: _ColumnGetters) -> dict[str, pa.Array]:
    """Columns of an optional part that most events lack; null where the part is missing."""
    found = [part for part in parts if part is not None]
    indices = count()
    index = pa.array([None if part is None else next(indices) for part in parts], pa.int32())
    return {
        name: pa.array(list(map(get, found)), _column_type(name)).take(index)
        for name, get in columns.items()
    }


def _column_type(name: str) -> pa.DataType:
    return EVENT_SCHEMA.field(_TASK_ETA.get(name, name)).type


def _head_columns(first: int, size: int, groups: Sequence[SignedGroup]) -> dict[str, list[Any]]:
    heads: dict[str, list[Any]] = {
        name: [None] * size for name in ("group_first", "chain", "signature")
    }
    for group in groups:
        index = group.last - first
        heads["group_first"][index] = group.first
        heads["chain"][index] = group.chain
        heads["signature"][index] = group.signature
    return heads


def _clear_payload(event: _ArchivedEvent) -> _ClearPayload | None:
    if event.kind not in CLEAR_KINDS or isinstance(event.payload, UnsetType):
        return None
    return _decode_clear_payload(event.kind, bytes(event.payload))


@lru_cache(4096)
def _decode_clear_payload(kind: str, payload: bytes) -> _ClearPayload | None:
    """Decode an unencrypted payload. Most receipts are equal, so the result is cached."""
    try:
        clear = _decode_clear(payload)
    except msgspec.MsgspecError:
        # The application chose the form of this payload; the archive has no columns for it.
        return None
    # A dead letter omits 0 attempts on the wire; in other kinds the field has no meaning.
    clear.attempts = (clear.attempts or 0) if kind == EventKind.DEAD_LETTER else None
    return clear


def _payload_size(event: _ArchivedEvent) -> int:
    """Size of the inline payload; for an encrypted one its clear size, like the size limit."""
    if isinstance(event.payload, UnsetType):
        return 0
    if event.kind not in CLEAR_KINDS:
        try:
            data = _decode_ciphertext(event.payload).data
        except msgspec.MsgspecError:
            pass
        else:
            return max(0, len(data) // 4 * 3 - data[-2:].count("=") - _ENCRYPTION_OVERHEAD)
    return len(bytes(event.payload))


def _optional_id(text: str | None) -> bytes | None:
    return bytes.fromhex(text.replace("-", "")) if text else None


def segment_path(first: int, last: int, created_at: int) -> str:
    """The path of a segment in its node's folder."""
    return f"date={utc_date(created_at)}/{first:020d}-{last:020d}.parquet"


def utc_date(created_at: int) -> str:
    """The UTC date of an epoch millisecond."""
    return datetime.fromtimestamp(created_at // 1000, UTC).strftime("%Y-%m-%d")


def encode_parquet(events: pa.Table) -> pa.Buffer:
    """Encode a Parquet file. Dictionary-encoded columns still read as plain ones."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        events.schema,
        compression=_COMPRESSION,
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=_DICTIONARY_COLUMNS,
        write_statistics=_STATISTICS_COLUMNS,
        store_schema=False,
    ) as writer:
        writer.write_table(events, row_group_size=ROW_GROUP_SIZE)
        writer.add_key_value_metadata(_METADATA)
    return sink.getvalue()


def describe_segment(
    events: pa.Table, content: pa.Buffer, first: int, last: int, now: int
) -> ArchiveSegment:
    """Build the manifest entry of a segment. Its last row must carry a head."""
    created = pc.min_max(events.column("created_at")).as_py()
    return ArchiveSegment(
        path=segment_path(first, last, events.column("created_at")[0].as_py()),
        incarnation=events.column("incarnation")[0].as_py(),
        first=first,
        last=last,
        rows=events.num_rows,
        bytes=content.size,
        sha256=content_digest(memoryview(content)),
        min_created_at=created["min"],
        max_created_at=created["max"],
        chain=events.column("chain")[-1].as_py().hex(),
        archived_at=now,
    )
