"""Turns events into facts. A fact is one statement of one event about one delivery.

A delivery is identified by its sender's node and its event id. Most events make one statement about
one delivery; a reply or a cancellation opens its own delivery and makes a statement about another.

Facts are columns of numbers, a million at a time: a text is a code, which is its index in a list of
words; an id is two halves. Needs pyarrow and numpy, but not Spark.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from gatepost.pipeline.kernels.columns import (
    ABSENT,
    NONE,
    Codes,
    Flags,
    Floats,
    IdHalves,
    Numbers,
    WordCodes,
    drawn_at,
    is_near_id,
    split_ids,
    to_numbers,
)
from gatepost.pipeline.tables.schemas import HOUR_MS

TEXT_COLUMNS: Final = (
    *("kind", "source_agent", "to_node", "to_agent", "status", "outcome", "reason", "signal"),
    *("capability_id", "capability_version", "delegation_version", "executor_version"),
    *("task_type", "failure_class", "route_decision"),
)
FACT_COLUMNS: Final = (
    *("node", "event_id", "pair_seq", "corr_id", "ref_id", "created_at", "expires_at", "attempt"),
    *("origin_id", "payload_size", "blob_size", "eta_at", "eta_seconds", "progress", *TEXT_COLUMNS),
)
"""The columns that are read of an event; the others stay on disk."""
ID_AGE_MS: Final = 31 * 24 * HOUR_MS
"""The default of the objective `id_days`."""
ID_COLUMNS: Final = ("kind", "event_id", "ref_id", "created_at")
"""The columns that tell which hours an event refers to."""


class FactKind(IntEnum):
    """The kinds of statements. Their names in lower case are stored in `deliveries.told`."""

    SENT = 0
    ACCEPTED = 1
    REFUSED = 2
    PROCESSED = 3
    REPLIED = 4
    DEAD = 5
    CONFIRMED = 6
    WITHDRAWN = 7
    PROMISED = 8
    PROGRESSED = 9
    COMPLETED = 10
    FAILED = 11
    CANCELLED = 12
    # The reason why a turn ended and was not done.
    UNDONE = 13


_BY_STATUS = {
    "accepted": FactKind.ACCEPTED,
    "processed": FactKind.PROCESSED,
    "refused": FactKind.REFUSED,
}
_BY_SIGNAL = {"confirm": FactKind.CONFIRMED, "withdraw": FactKind.WITHDRAWN}
# Other events of a task may carry an ETA or progress, as receipts may; these are separate facts.
_BY_KIND = {
    "dead_letter": FactKind.DEAD,
    "reply": FactKind.REPLIED,
    "task_complete": FactKind.COMPLETED,
    "task_failed": FactKind.FAILED,
    "task_cancel": FactKind.CANCELLED,
}
_TRACKED_KINDS = ("message", "reply", "task_create", "task_cancel")
_KINDS_ABOUT_OWN = ("dead_letter", "signal", "task_cancel")
_KINDS_ALSO_ABOUT = ("reply", "task_cancel")

VERSION_COLUMNS: Final = (
    "capability_id",
    "capability_version",
    "delegation_version",
    "executor_version",
)
TASK_COLUMNS: Final = (*VERSION_COLUMNS, "task_type")

TOLD_SCHEMA: Final = pa.schema(
    {
        **dict.fromkeys(("high", "low"), pa.uint64()),
        **dict.fromkeys(("node", "peer", "what", "text", "number"), pa.int32()),
        "at": pa.int64(),
        "progress": pa.float64(),
    }
)
"""One row per fact: the id and node of the delivery, the peer that said it or was sent it, the
kind of fact (`what`) and its time.

The `number` of a SENT fact is its attempt; for other kinds it counts how often the fact was
stated. The `at` of a PROMISED fact is the promised time.
"""


class ToldColumns(NamedTuple):
    """The columns of `TOLD_SCHEMA`, before and after their way between executors."""

    high: IdHalves
    low: IdHalves
    node: Codes
    peer: Codes
    what: Codes
    text: Codes
    number: Numbers | Codes
    at: Numbers
    progress: Floats

    @classmethod
    def from_batch(cls, told: pa.RecordBatch) -> Self:
        return cls(**{name: told[name].to_numpy() for name in cls._fields})

    @classmethod
    def join(cls, parts: Iterable[Self]) -> Self:
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def take(self, rows: Numbers) -> Self:
        return type(self)(**{name: column[rows] for name, column in self._asdict().items()})

    def to_batch(self) -> pa.RecordBatch:
        return build_batch(TOLD_SCHEMA, self._asdict())


SENT_SCHEMA: Final = pa.schema(
    {
        "sent_at": pa.int64(),
        **dict.fromkeys(("kind", "from_agent", "to_agent"), pa.int32()),
        "corr_id": pa.string(),
        **dict.fromkeys(("pair_seq", "expires_at", "size", "forwarded"), pa.int64()),
        **dict.fromkeys(TASK_COLUMNS, pa.int32()),
    }
)
"""The message itself: one row for each SENT fact, in the same order. `forwarded` is 0 or 1."""

_CODE_COLUMNS = {"node", "peer", "text", "kind", "from_agent", "to_agent", *TASK_COLUMNS}


class Facts(Struct, frozen=True):
    """`told` has `TOLD_SCHEMA`, `sent` has `SENT_SCHEMA`; their texts are indexes in `words`."""

    told: pa.RecordBatch
    sent: pa.RecordBatch
    words: pa.Array

    def __len__(self) -> int:
        return int(self.told.num_rows)

    def drawn_times(self) -> Numbers:
        """The times at which the ids were drawn, in epoch milliseconds."""
        return drawn_at(self.told["high"].to_numpy())

    def split_by_time(self, cuts: Sequence[int]) -> Iterator[tuple[int, Self]]:
        """Split by the times of the ids: part n ends before cut n and begins at cut n - 1."""
        part = np.searchsorted(np.array(cuts, np.int64), self.drawn_times(), side="right")
        order = np.argsort(part.astype(np.uint16), kind="stable")
        opens = self.told["what"].to_numpy() == FactKind.SENT
        told = self.told.take(pa.array(order))
        sent = self.sent.take(pa.array((np.cumsum(opens) - 1)[order][opens[order]]))
        sizes, opened = np.bincount(part), np.bincount(part[opens], minlength=len(cuts) + 1)
        for number in np.flatnonzero(sizes).tolist():
            told_part = told.slice(int(sizes[:number].sum()), int(sizes[number]))
            sent_part = sent.slice(int(opened[:number].sum()), int(opened[number]))
            yield number, type(self)(told_part, sent_part, self.words)

    @classmethod
    def join_parts(cls, parts: Sequence[Self]) -> Self:
        """Join parts over one sorted list of words, so that codes compare as texts do."""
        known = [part.words.to_pylist() for part in parts]
        words = sorted(set[str]().union(*known))
        codes = {word: code for code, word in enumerate(words)}
        new_codes = [np.array([*map(codes.__getitem__, own), NONE], np.int32) for own in known]
        return cls(
            _remap_codes([part.told for part in parts], new_codes, TOLD_SCHEMA),
            _remap_codes([part.sent for part in parts], new_codes, SENT_SCHEMA),
            pa.array(words, pa.string()),
        )

    def encode(self) -> bytes:
        words = pa.RecordBatch.from_arrays([self.words], ["word"])
        return encode_parts([_encode_ipc(batch) for batch in (self.told, self.sent, words)])

    @classmethod
    def decode(cls, block: bytes | memoryview) -> Self:
        return cls.from_parts(decode_parts(block))

    @classmethod
    def from_parts(cls, parts: Sequence[memoryview]) -> Self:
        """The facts of a decoded block; they keep its memory."""
        told, sent, words = map(_decode_ipc, parts)
        return cls(told, sent, words["word"])


def encode_parts(parts: Sequence[bytes | memoryview]) -> bytes:
    """One block of several byte strings."""
    return msgspec.msgpack.encode(parts)


def decode_parts(block: bytes | memoryview) -> list[memoryview]:
    """The byte strings of a block, without copying them."""
    return msgspec.msgpack.decode(block, type=list[memoryview])


# Compressed, because blocks are copied several times on their way. An executor has one core.
_IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


def _encode_ipc(batch: pa.RecordBatch) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_IPC_OPTIONS) as stream:
        stream.write_batch(batch)
    return memoryview(sink.getvalue())


def _decode_ipc(block: memoryview) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(block), options=_READ_OPTIONS) as stream:
        return stream.read_next_batch()


def _remap_codes(
    batches: Sequence[pa.RecordBatch], new_codes: Sequence[Codes], schema: pa.Schema
) -> pa.RecordBatch:
    """Join the batches; `new_codes` maps the old codes of each batch to new ones."""
    columns = []
    for field in schema:
        arrays = [batch[field.name] for batch in batches]
        if field.name in _CODE_COLUMNS:
            arrays = [
                pa.array(table[array.to_numpy()])
                for table, array in zip(new_codes, arrays, strict=True)
            ]
        columns.append(pa.concat_arrays(arrays))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def hours_of(events: pa.Table, id_age: int = ID_AGE_MS) -> Numbers:
    """The hours of the deliveries that these events open or refer to; no others change."""
    words, at = WordCodes(), to_numbers(events["created_at"])
    opens = words.matches_any(words.encode_column(events["kind"]), _TRACKED_KINDS)
    opening = opens & is_near_id(events["event_id"], at, id_age)
    rows = {"event_id": opening, "ref_id": is_near_id(events["ref_id"], at, id_age)}
    drawn = [
        drawn_at(split_ids(events[name].filter(pa.array(chosen)).combine_chunks())[0])
        for name, chosen in rows.items()
    ]
    return np.unique(np.concatenate(drawn) // HOUR_MS)


class _EventColumns:
    """A table of events, with the columns that several kinds of facts need."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.words = WordCodes()
        self.texts = {
            name: self.words.encode_column(table[name]) for name in ("node", *TEXT_COLUMNS)
        }
        self.created_at = to_numbers(table["created_at"])
        self.attempt = to_numbers(table["attempt"])
        names = ("outcome", "reason", "failure_class", "route_decision")
        self.text = _first_word(*(self.texts[name] for name in names))
        # The node of an event that is addressed to none.
        self.nobody = np.int32(self.words.code_of(""))

    def split_ids(self, name: str, rows: Numbers) -> tuple[IdHalves, IdHalves]:
        return split_ids(self.table[name].take(rows).combine_chunks())

    def is_any(self, kinds: Iterable[str]) -> Flags:
        return self.words.matches_any(self.texts["kind"], kinds)

    def fact_kinds(self) -> Codes:
        """The kind of fact that each event states about the one it refers to, or NONE."""
        kind, to_kinds = self.texts["kind"], self.words.map_codes
        what = to_kinds(kind, _BY_KIND)
        by_status = to_kinds(self.texts["status"], _BY_STATUS)
        what = np.where(self.is_any(["ack"]), by_status, what)
        by_signal = to_kinds(self.texts["signal"], _BY_SIGNAL)
        return np.where(self.is_any(["signal"]), by_signal, what)

    def eta_at(self) -> Numbers:
        """The promised time, given as such or in seconds from the event."""
        promised, seconds = to_numbers(self.table["eta_at"]), to_numbers(self.table["eta_seconds"])
        computed = np.where(seconds == ABSENT, ABSENT, self.created_at + seconds * 1000)
        return np.where(promised == ABSENT, computed, promised)


def _first_word(*columns: Codes) -> Codes:
    """For each row the first of the columns that has a word."""
    found = columns[0]
    for column in columns[1:]:
        found = np.where(found == NONE, column, found)
    return found


def facts_from_events(table: pa.Table, id_age: int = ID_AGE_MS) -> Facts:
    """Make facts of events; `table` has `FACT_COLUMNS`, with texts dictionary-encoded or plain.

    An id that is older than its event by more than `id_age` ms makes no fact.
    """
    events = _EventColumns(table)
    tracked = events.is_any(_TRACKED_KINDS)
    near = {
        name: is_near_id(table[name], events.created_at, id_age) for name in ("event_id", "ref_id")
    }
    opening = np.flatnonzero(tracked & near["event_id"])
    about = (~tracked | events.is_any(_KINDS_ALSO_ABOUT)) & near["ref_id"]
    told = ToldColumns.join([_opening_facts(events, opening), *_referring_facts(events, about)])
    return Facts(told.to_batch(), _message_batch(events, opening), events.words.word_array())


def build_batch(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.RecordBatch:
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def fill_kind(rows: Numbers, what: FactKind) -> Codes:
    """The same kind of fact for all of these rows."""
    return np.full(len(rows), what, np.int32)


def _opening_facts(events: _EventColumns, rows: Numbers) -> ToldColumns:
    """The SENT facts of events that open a delivery."""
    to_node = events.texts["to_node"][rows]
    high, low = events.split_ids("event_id", rows)
    return ToldColumns(
        high,
        low,
        node=events.texts["node"][rows],
        peer=np.where(to_node == NONE, events.nobody, to_node),
        what=fill_kind(rows, FactKind.SENT),
        text=events.text[rows],
        number=events.attempt[rows],
        at=events.created_at[rows],
        progress=np.full(len(rows), np.nan),
    )


def _referring_facts(events: _EventColumns, about: Flags) -> Iterator[ToldColumns]:
    """The facts about deliveries that other events opened."""
    what, eta = events.fact_kinds(), events.eta_at()
    progress: Floats = np.asarray(events.table["progress"].fill_null(np.nan))
    rows = np.flatnonzero(about & (what != NONE))
    yield _referring_columns(events, rows)._replace(what=what[rows])
    undone = (what == FactKind.PROCESSED) & (events.texts["reason"] != NONE)
    rows = np.flatnonzero(
        about & undone & ~events.words.matches_any(events.texts["outcome"], ["ok"])
    )
    yield _referring_columns(events, rows)._replace(
        what=fill_kind(rows, FactKind.UNDONE), text=events.texts["reason"][rows]
    )
    # The ETA of a receipt is an estimate; the executor promises one when it takes the task.
    rows = np.flatnonzero(about & (eta != ABSENT) & ~events.is_any(["ack"]))
    yield _referring_columns(events, rows)._replace(
        what=fill_kind(rows, FactKind.PROMISED), at=eta[rows]
    )
    rows = np.flatnonzero(about & ~np.isnan(progress))
    yield _referring_columns(events, rows)._replace(
        what=fill_kind(rows, FactKind.PROGRESSED), progress=progress[rows]
    )


def _referring_columns(events: _EventColumns, rows: Numbers) -> ToldColumns:
    """All columns but the kind of fact."""
    own = events.is_any(_KINDS_ABOUT_OWN)[rows]
    node, to_node = events.texts["node"][rows], events.texts["to_node"][rows]
    # An old receipt may lack `to_node`; then it is addressed to an agent of its own node.
    default = np.where(own, events.nobody, node)
    to_node = np.where(to_node == NONE, default, to_node)
    high, low = events.split_ids("ref_id", rows)
    return ToldColumns(
        high,
        low,
        node=np.where(own, node, to_node),
        peer=np.where(own, to_node, node),
        what=np.full(len(rows), NONE, np.int32),
        text=events.text[rows],
        number=np.ones(len(rows), np.int32),
        at=events.created_at[rows],
        progress=np.full(len(rows), np.nan),
    )


def _message_batch(events: _EventColumns, rows: Numbers) -> pa.RecordBatch:
    table = events.table
    blob, inline = to_numbers(table["blob_size"]), to_numbers(table["payload_size"])
    is_task = events.is_any(["task_create"])
    columns: dict[str, Numbers | Codes] = {
        "sent_at": events.created_at,
        "kind": events.texts["kind"],
        "from_agent": events.texts["source_agent"],
        "to_agent": events.texts["to_agent"],
        "pair_seq": to_numbers(table["pair_seq"]),
        "expires_at": to_numbers(table["expires_at"]),
        "size": np.where(blob == ABSENT, inline, blob),
        "forwarded": np.asarray(table["origin_id"].is_valid()).astype(np.int64),
        **{name: np.where(is_task, events.texts[name], np.int32(NONE)) for name in TASK_COLUMNS},
    }
    taken: dict[str, Any] = {name: column[rows] for name, column in columns.items()}
    return build_batch(
        SENT_SCHEMA, taken | {"corr_id": table["corr_id"].take(rows).combine_chunks()}
    )
