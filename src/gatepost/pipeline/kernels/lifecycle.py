"""Folds facts into deliveries, by the state machine of the protocol.

A *leg* holds all facts about one delivery and one node: whether the node was asked, whether it
accepted, processed or replied. Legs merge: each value is the earliest, the latest or the sum of its
parts, so a delivery is the same however its events were cut into batches. A receipt counts only if
the event was routed to the node that wrote it, and that routing may become known after the receipt.
Most deliveries have one leg that adds nothing to the delivery's own columns. For the others the
facts are stored as well, in the column `told`.

    emitted ──retry──▶ retry_pending
       └──────┬─────────────┘
         accepted ──▶ processed | replied ◀── dead_letter (amended, if answered all the same)

Facts are sorted once, by id, node and peer; all further steps use that order, a column at a time.
An id begins with the time it was drawn at, so the rows of an hour follow each other.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gatepost.pipeline.kernels.columns import (
    ABSENT,
    NONE,
    Codes,
    Column,
    Flags,
    Floats,
    IdHalves,
    Numbers,
    Value,
    WordCodes,
    dense_ranks,
    drawn_at,
    mark_changes,
    split_ids,
    to_numbers,
)
from gatepost.pipeline.kernels.facts import (
    SENT_SCHEMA,
    TASK_COLUMNS,
    FactKind,
    Facts,
    ToldColumns,
    build_batch,
    fill_kind,
)
from gatepost.pipeline.tables.schemas import DELIVERIES, HOUR_MS

Index = TypeVar("Index", np.int32, np.int64)


def build_deliveries(told: Facts) -> pa.Table:
    """Build the delivery of every message these facts are about, in the order of their ids.

    The facts must come from `Facts.join_parts`, which sorts their words.
    """
    return _DeliveryBuilder(told).build_table()


class _SortedFacts(NamedTuple):
    """Sorted facts. `leg` and `delivery` number each row's leg and delivery from 0."""

    columns: ToldColumns
    # For a SENT fact the index of its message.
    message: Numbers
    leg: Numbers
    delivery: Numbers

    @classmethod
    def from_facts(cls, told: Facts) -> Self:
        plain = ToldColumns.from_batch(told.told)
        among = (plain.node.astype(np.int64) * len(told.words) + plain.peer) * len(FactKind)
        order = np.lexsort((among + plain.what, plain.low, plain.high))
        columns = plain.take(order)
        message = (np.cumsum(plain.what == FactKind.SENT) - 1)[order]
        starts = mark_changes(columns.high) | mark_changes(columns.low) | mark_changes(columns.node)
        leg = np.cumsum(starts | mark_changes(columns.peer)) - 1
        return cls(columns, message, leg, np.cumsum(starts) - 1)


SortKey = Column | Callable[[Numbers], Column]


def _least_per_group(group: Numbers, *keys: SortKey) -> Numbers:
    """The index of the least row of each group, by these keys. Rows of a group must be adjacent.

    A key may be a function; it is called with the few rows that have to be compared.
    """
    starts = np.flatnonzero(mark_changes(group))
    sizes = np.diff(starts, append=len(group))
    if len(starts) == len(group):
        return starts
    contested = np.flatnonzero(np.repeat(sizes > 1, sizes))
    values = [key(contested) if callable(key) else key[contested] for key in keys]
    order = np.lexsort((*reversed(values), group[contested]))
    several = sizes[sizes > 1]
    starts[sizes > 1] = contested[order][np.cumsum(several) - several]
    return starts


def _scatter_values(indexes: Numbers, values: Numbers, size: int) -> Numbers:
    """A column of `size` with the values at these indexes, and NONE elsewhere."""
    whole = np.full(size, NONE, values.dtype)
    whole[indexes] = values
    return whole


def _pick_values(
    values: NDArray[Value], indexes: Numbers, nothing: float = ABSENT
) -> NDArray[Value]:
    """The values at these indexes, and `nothing` where the index is NONE."""
    if not len(values):
        return np.full(len(indexes), nothing, values.dtype)
    return np.where(indexes < 0, values.dtype.type(nothing), values[indexes])


class _Legs:
    """One entry per leg: for each kind of fact its first time, its text and its count."""

    def __init__(self, rows: _SortedFacts) -> None:
        self._leg, columns = rows.leg, rows.columns
        start = np.flatnonzero(mark_changes(rows.leg))
        self.size = len(start)
        self.delivery = rows.delivery[start]
        self.peer = columns.peer[start]
        self._rows_by_kind = {what: np.flatnonzero(columns.what == what) for what in FactKind}
        first = {what: self._least_row(what, columns.at, columns.text) for what in FactKind}
        self.at = {what: _pick_values(columns.at, row) for what, row in first.items()}
        self.text = {what: _pick_values(columns.text, row, NONE) for what, row in first.items()}
        self.times = {what: self._sum_per_leg(what, columns.number) for what in _COUNTED_KINDS}
        last = self._least_row(FactKind.SENT, ~columns.number, ~columns.text)
        self.attempt = _pick_values(columns.number.astype(np.int64), last)
        self.why = _pick_values(columns.text, last, NONE)
        furthest = self._least_row(FactKind.PROGRESSED, -columns.progress)
        self.progress = _pick_values(columns.progress, furthest, np.nan)

    def _least_row(self, what: FactKind, *keys: Column) -> Numbers:
        """For each leg the least row of this kind of fact, or NONE."""
        rows = self._rows_by_kind[what]
        least = rows[_least_per_group(self._leg[rows], *(key[rows] for key in keys))]
        return _scatter_values(self._leg[least], least, self.size)

    def _sum_per_leg(self, what: FactKind, column: Numbers | Codes) -> Numbers:
        rows = self._rows_by_kind[what]
        return np.bincount(self._leg[rows], column[rows], self.size).astype(np.int64)

    def is_implied(self, sent_at: Numbers, is_task: Flags) -> Flags:
        """For each leg, whether the columns of its delivery contain all of its facts.

        This holds for the only leg of a delivery; `sent_at` and `is_task` are the delivery's.
        """
        implied: Flags = self.at[FactKind.SENT] == sent_at
        for what in _UNSTATED_KINDS:
            implied &= self.at[what] == ABSENT
        for what in _TASK_KINDS:
            implied &= (self.at[what] == ABSENT) | is_task
        for times in self.times.values():
            implied &= times <= 1
        return implied


# Kinds of facts that are counted.
_COUNTED_KINDS = (FactKind.ACCEPTED, FactKind.PROCESSED)
# Kinds that the columns of a delivery do not contain, and kinds that they contain for tasks only.
_UNSTATED_KINDS = (
    FactKind.REFUSED,
    FactKind.DEAD,
    FactKind.UNDONE,
    FactKind.CONFIRMED,
    FactKind.WITHDRAWN,
)
_TASK_KINDS = (
    FactKind.PROMISED,
    FactKind.PROGRESSED,
    FactKind.COMPLETED,
    FactKind.FAILED,
    FactKind.CANCELLED,
)


class _Answers(NamedTuple):
    """The columns of deliveries that follow from the answers of nodes."""

    numbers: Mapping[str, Numbers]
    texts: Mapping[str, Codes]


class _DeliveryBuilder:
    """Folds all legs of a delivery into one row. Only answers of nodes that were asked count."""

    def __init__(self, told: Facts) -> None:
        self._word_array, self._sent = told.words, told.sent
        rows = _SortedFacts.from_facts(told)
        self._legs = legs = _Legs(rows)
        start = np.flatnonzero(mark_changes(rows.delivery))
        self.size = len(start)
        self._id = rows.columns.high[start], rows.columns.low[start]
        self._node = rows.columns.node[start]
        self._nobody = self._word_code("")
        self._everyone = np.ones(legs.size, bool)
        self._asked = (legs.at[FactKind.SENT] != ABSENT) & (legs.peer != self._nobody)
        self._message = self._first_message(rows)
        self._is_task = self._message_codes("kind") == self._word_code("task_create")

    def build_table(self) -> pa.Table:
        answers = self._answers()
        high, low = self._id
        columns = {
            "hour": pa.array(drawn_at(high) // HOUR_MS),
            "node": self._to_texts(self._node),
            "event_id": _id_array(high, low),
            **self._message_columns(),
            **{name: _nullable_numbers(column) for name, column in answers.numbers.items()},
            **{name: self._to_texts(column) for name, column in answers.texts.items()},
            **self._state_columns(answers.numbers),
            "task": self._task_column(),
            "told": self._told_column(),
        }
        for name in ("attempts", "routes"):
            columns[name] = columns[name].cast(pa.int32())
        return pa.Table.from_pydict({name: columns[name] for name in DELIVERIES.names})

    def _answers(self) -> _Answers:
        legs, asked = self._legs, self._asked
        at, text, peer = legs.at, legs.text, legs.peer
        accept = self._first_leg(FactKind.ACCEPTED, asked, peer)
        turn = self._first_leg(FactKind.PROCESSED, asked, text[FactKind.PROCESSED], peer)
        replied = self._first_leg(FactKind.REPLIED, asked)
        dead = self._first_leg(FactKind.DEAD, self._everyone, text[FactKind.DEAD])
        refused = self._first_leg(FactKind.REFUSED, asked, text[FactKind.REFUSED])
        undone = self._first_leg(FactKind.UNDONE, asked, text[FactKind.UNDONE])
        last = self._least_leg(self._everyone, ~legs.attempt, ~legs.why, ~peer)
        to_node = _pick_values(peer, _first_known(turn, _first_known(accept, last)), NONE)
        answered = (at[FactKind.ACCEPTED] != ABSENT) | (at[FactKind.PROCESSED] != ABSENT)
        again = np.sum([np.maximum(times - 1, 0) for times in legs.times.values()], axis=0)
        reason = _first_known(
            _pick_values(text[FactKind.UNDONE], undone, NONE),
            _pick_values(text[FactKind.REFUSED], refused, NONE),
        )
        numbers = {
            "attempts": _pick_values(legs.attempt, last),
            "routes": self._sum_per_delivery(asked),
            "accepted_at": _pick_values(at[FactKind.ACCEPTED], accept),
            "processed_at": _pick_values(at[FactKind.PROCESSED], turn),
            "replied_at": _pick_values(at[FactKind.REPLIED], replied),
            "dead_at": _pick_values(at[FactKind.DEAD], dead),
            "duplicates": self._sum_per_delivery(again),
            "strangers": self._sum_per_delivery(~asked & answered),
            "turns": self._sum_per_delivery(
                asked & (text[FactKind.PROCESSED] == self._word_code("ok"))
            ),
        }
        texts = {
            "to_node": np.where(to_node == self._nobody, np.int32(NONE), to_node),
            "decision": _pick_values(legs.why, last, NONE),
            "outcome": _pick_values(text[FactKind.PROCESSED], turn, NONE),
            "reason": _first_known(_pick_values(text[FactKind.DEAD], dead, NONE), reason),
        }
        return _Answers(numbers, texts)

    def _first_leg(self, what: FactKind, legs: Flags, *keys: Column) -> Numbers:
        """For each delivery the one of these legs with the earliest such fact, or NONE."""
        at = self._legs.at[what]
        return self._least_leg(legs & (at != ABSENT), at, *keys)

    def _least_leg(self, legs: Flags, *keys: Column) -> Numbers:
        """For each delivery the least of these legs, or NONE."""
        candidates, delivery = np.flatnonzero(legs), self._legs.delivery
        least = _least_per_group(delivery[candidates], *(key[candidates] for key in keys))
        best = candidates[least]
        return _scatter_values(delivery[best], best, self.size)

    def _sum_per_delivery(self, values: Numbers | Flags) -> Numbers:
        """The sum over all legs of each delivery."""
        return np.bincount(self._legs.delivery, values, self.size).astype(np.int64)

    def _first_message(self, rows: _SortedFacts) -> Numbers:
        """For each delivery the index of the message that opened it, or NONE."""
        sent = np.flatnonzero(rows.columns.what == FactKind.SENT)
        delivery, message = rows.delivery[sent], rows.message[sent]

        def rank_by(name: str) -> Callable[[Numbers], Numbers]:
            return lambda contested: dense_ranks(
                self._sent[name].take(pa.array(message[contested]))
            )

        first = _least_per_group(delivery, *(rank_by(name) for name in SENT_SCHEMA.names))
        return _scatter_values(delivery[first], message[first], self.size)

    def _message_numbers(self, name: str) -> Numbers:
        numbers: Numbers = self._sent[name].to_numpy()
        return _pick_values(numbers, self._message)

    def _message_codes(self, name: str) -> Codes:
        codes: Codes = self._sent[name].to_numpy()
        return _pick_values(codes, self._message, NONE)

    def _message_columns(self) -> dict[str, pa.Array]:
        """The columns that the message itself states."""
        corr_id = self._sent["corr_id"].take(pa.array(self._message, mask=self._message < 0))
        texts = ("kind", "from_agent", "to_agent")
        return {
            "corr_id": corr_id,
            **{name: _nullable_numbers(self._message_numbers(name)) for name in _NUMBER_COLUMNS},
            "forwarded": pa.array(self._message_numbers("forwarded") == 1),
            **{name: self._to_texts(self._message_codes(name)) for name in texts},
        }

    def _state_columns(self, answers: Mapping[str, Numbers]) -> dict[str, pa.Array]:
        """The state that follows from the answers."""
        has = {name: answers[name] != ABSENT for name in answers if name.endswith("_at")}
        answered = has["processed_at"] | has["replied_at"]
        states = {
            "orphan": self._message < 0,
            "replied": has["replied_at"],
            "processed": has["processed_at"],
            "dead_letter": has["dead_at"],
            "accepted": has["accepted_at"],
            "retry_pending": answers["attempts"] > 1,
        }
        state = np.select(list(states.values()), list(range(len(states))), len(states))
        return {
            "state": pa.array([*states, "emitted"]).take(pa.array(state)),
            "amended": pa.array(has["dead_at"] & answered),
            "closed": pa.array(has["dead_at"] | answered),
        }

    def _task_column(self) -> pa.Array:
        """The request of a task, and all facts that any node stated about it."""
        legs, everyone = self._legs, self._everyone

        def first_time(what: FactKind) -> pa.Array:
            return _nullable_numbers(_pick_values(legs.at[what], self._first_leg(what, everyone)))

        failed = self._first_leg(FactKind.FAILED, everyone, legs.text[FactKind.FAILED])
        furthest = self._least_leg(~np.isnan(legs.progress), -legs.progress)
        fields = {
            **{name: self._to_texts(self._message_codes(name)) for name in TASK_COLUMNS},
            "eta_at": first_time(FactKind.PROMISED),
            "progress": _nullable_floats(_pick_values(legs.progress, furthest, np.nan)),
            "completed_at": first_time(FactKind.COMPLETED),
            "failed_at": _nullable_numbers(_pick_values(legs.at[FactKind.FAILED], failed)),
            "failure_class": self._to_texts(_pick_values(legs.text[FactKind.FAILED], failed, NONE)),
            "cancelled_at": first_time(FactKind.CANCELLED),
        }
        return _struct_array(fields, self._is_task)

    def _told_column(self) -> pa.Array:
        """The facts of each delivery, or null where its other columns state them all."""
        legs = self._legs
        delivery = legs.delivery
        alone = np.bincount(delivery, minlength=self.size)[delivery] == 1
        implied = legs.is_implied(
            self._message_numbers("sent_at")[delivery], self._is_task[delivery]
        )
        listed = ~(alone & self._asked & implied)
        rows = {what: np.flatnonzero(listed & (legs.at[what] != ABSENT)) for what in FactKind}
        leg = np.concatenate(list(rows.values()))
        sizes = np.bincount(delivery[leg], minlength=self.size)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        facts = self._told_structs(rows).take(pa.array(np.argsort(leg, kind="stable")))
        return pa.ListArray.from_arrays(offsets, facts, mask=pa.array(sizes == 0))

    def _told_structs(self, rows: Mapping[FactKind, Numbers]) -> pa.Array:
        """The facts of these legs, one kind of fact after the other."""
        legs = self._legs

        def gather(values: Callable[[FactKind], NDArray[Value]]) -> NDArray[Value]:
            return np.concatenate([values(what)[chosen] for what, chosen in rows.items()])

        once, never = np.ones(legs.size, np.int64), np.full(legs.size, np.nan)
        numbers = {FactKind.SENT: legs.attempt, **legs.times}
        text = {**legs.text, FactKind.SENT: legs.why}
        what = np.concatenate([np.full(len(chosen), what) for what, chosen in rows.items()])
        fields = {
            "peer": self._to_texts(gather(lambda _: legs.peer)),
            "what": pa.array([what.name.lower() for what in FactKind]).take(pa.array(what)),
            "at": pa.array(gather(lambda what: legs.at[what])),
            "text": self._to_texts(gather(lambda what: text[what])),
            "number": pa.array(gather(lambda what: numbers.get(what, once)).astype(np.int32)),
            "progress": _nullable_floats(
                gather(lambda what: legs.progress if what == FactKind.PROGRESSED else never)
            ),
        }
        return _struct_array(fields, np.ones(len(what), bool))

    def _word_code(self, word: str) -> int:
        code = int(self._word_array.index(word).as_py())
        # A word that is not in the list must not match rows without a word (NONE).
        return code if code >= 0 else NONE - 1

    def _to_texts(self, codes: Codes) -> pa.Array:
        return self._word_array.take(pa.array(codes, mask=codes == NONE))


def _first_known(one: NDArray[Index], other: NDArray[Index]) -> NDArray[Index]:
    return np.where(one >= 0, one, other)


def _nullable_numbers(column: Numbers) -> pa.Array:
    return pa.array(column, mask=column == ABSENT)


def _nullable_floats(column: Floats) -> pa.Array:
    return pa.array(column, mask=np.isnan(column))


def _struct_array(fields: Mapping[str, pa.Array], valid: Flags) -> pa.Array:
    return pa.StructArray.from_arrays(list(fields.values()), list(fields), mask=pa.array(~valid))


def _id_array(high: IdHalves, low: IdHalves) -> pa.Array:
    data = np.column_stack([high, low]).astype(">u8")
    offsets = np.arange(len(high) + 1, dtype=np.int32) * 16
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(high), buffers)


def facts_from_deliveries(stored: pa.Table) -> Facts:
    """Turn stored deliveries back into facts that build the same deliveries."""
    return _StoredDeliveries(stored.combine_chunks()).to_facts()


# The columns of a delivery that state a fact: its time, and its text if it has one.
_STATED_COLUMNS: Final = {
    FactKind.SENT: ("sent_at", "decision"),
    FactKind.ACCEPTED: ("accepted_at", None),
    FactKind.PROCESSED: ("processed_at", "outcome"),
    FactKind.REPLIED: ("replied_at", None),
    FactKind.PROMISED: ("task.eta_at", None),
    FactKind.COMPLETED: ("task.completed_at", None),
    FactKind.FAILED: ("task.failed_at", "task.failure_class"),
    FactKind.CANCELLED: ("task.cancelled_at", None),
}


_RowsAndFacts = tuple[Numbers, ToldColumns]
"""Facts, and the stored delivery of each."""


class _StoredDeliveries:
    """Stored deliveries: some list their facts in `told`, for the others the columns state them."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._word_codes = WordCodes()
        told = table["told"].combine_chunks()
        self._listed = told.flatten()
        # The delivery of each listed fact, and the deliveries that list none.
        self._delivery_of_fact: Numbers = pc.list_parent_indices(told).to_numpy()
        self._unlisted = np.flatnonzero(np.asarray(told.is_null()))
        self._high, self._low = split_ids(table["event_id"].combine_chunks())
        self._node = self._word_codes.encode_column(table["node"])
        self._to_node = self._word_codes.encode_column(table["to_node"])

    def to_facts(self) -> Facts:
        parts = [
            self._listed_facts(),
            *map(self._stated_facts, _STATED_COLUMNS),
            self._progress_facts(),
        ]
        told = ToldColumns.join(columns for _, columns in parts)
        row = np.concatenate([rows for rows, _ in parts])
        return Facts(
            told.to_batch(),
            self._message_batch(row[told.what == FactKind.SENT]),
            self._word_codes.word_array(),
        )

    def _listed_facts(self) -> _RowsAndFacts:
        by_name = {what.name.lower(): what for what in FactKind}
        column = {
            name: _struct_field(self._listed, name) for name in ("peer", "what", "at", "text")
        }
        rows, codes = self._delivery_of_fact, self._word_codes
        return rows, ToldColumns(
            self._high[rows],
            self._low[rows],
            self._node[rows],
            peer=codes.encode_column(column["peer"]),
            what=codes.map_codes(codes.encode_column(column["what"]), by_name),
            text=codes.encode_column(column["text"]),
            number=to_numbers(_struct_field(self._listed, "number")),
            at=to_numbers(column["at"]),
            progress=np.asarray(_struct_field(self._listed, "progress").fill_null(np.nan)),
        )

    def _stated_facts(self, what: FactKind) -> _RowsAndFacts:
        at_name, text_name = _STATED_COLUMNS[what]
        at = to_numbers(self._column_at(at_name))
        rows = self._unlisted[at[self._unlisted] != ABSENT]
        facts = self._fact_columns(what, rows)._replace(at=at[rows])
        if text_name:
            text = self._word_codes.encode_column(self._column_at(text_name))
            facts = facts._replace(text=text[rows])
        if what == FactKind.SENT:
            facts = facts._replace(number=to_numbers(self._table["attempts"])[rows])
        return rows, facts

    def _progress_facts(self) -> _RowsAndFacts:
        progress: Floats = np.asarray(self._column_at("task.progress").fill_null(np.nan))
        rows = self._unlisted[~np.isnan(progress[self._unlisted])]
        facts = self._fact_columns(FactKind.PROGRESSED, rows)
        return rows, facts._replace(progress=progress[rows])

    def _fact_columns(self, what: FactKind, rows: Numbers) -> ToldColumns:
        return ToldColumns(
            self._high[rows],
            self._low[rows],
            self._node[rows],
            peer=self._to_node[rows],
            what=fill_kind(rows, what),
            text=np.full(len(rows), NONE, np.int32),
            number=np.ones(len(rows), np.int32),
            at=np.zeros(len(rows), np.int64),
            progress=np.full(len(rows), np.nan),
        )

    def _column_at(self, path: str) -> pa.ChunkedArray:
        name, _, inner = path.partition(".")
        return _struct_field(self._table[name], inner) if inner else self._table[name]

    def _message_batch(self, rows: Numbers) -> pa.RecordBatch:
        table = self._table.select([*_MESSAGE_COLUMNS, "task"]).take(pa.array(rows))
        columns = {
            "corr_id": table["corr_id"].combine_chunks(),
            **{
                name: to_numbers(table[name])
                for name in _MESSAGE_COLUMNS
                if name in _NUMBER_COLUMNS
            },
            "forwarded": to_numbers(table["forwarded"].cast(pa.int64()).fill_null(0)),
            **{
                name: self._word_codes.encode_column(table[name])
                for name in ("kind", "from_agent", "to_agent")
            },
            **{
                name: self._word_codes.encode_column(_struct_field(table["task"], name))
                for name in TASK_COLUMNS
            },
        }
        return build_batch(SENT_SCHEMA, columns)


_MESSAGE_COLUMNS: Final = tuple(name for name in SENT_SCHEMA.names if name not in TASK_COLUMNS)
_NUMBER_COLUMNS: Final = ("sent_at", "pair_seq", "expires_at", "size")


def _struct_field(column: pa.Array | pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A field of a struct column, null where the struct is null."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.chunked_array([pc.struct_field(chunk, name) for chunk in chunks])
