"""Folds facts into deliveries, by the state machine of the protocol.

A *leg* holds all facts about one delivery and one node: whether the node was asked, whether it
accepted, processed or replied. Legs merge: each value is the earliest, the latest or the sum of its
parts, so a delivery is the same however its events were cut into batches. A receipt counts only if
the event was routed to the node that wrote it, and that routing may become known after the receipt.
Most deliveries have one leg that adds nothing to the delivery's own columns. For the others the
facts are stored as well, in the column `told`.

    emitted ──retry──▶ retry_pending
       └──────┬─────────────┘
         accepted ──▶ processed | replied          dead_letter (amended if answered all the same)

Facts are sorted once, by id, node and peer; all further steps use that order, a column at a time.
An id begins with the time it was drawn at, so the rows of an hour follow each other.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gatepost.pipeline.tables.facts import (
    ABSENT,
    NONE,
    SENT,
    TASK,
    TOLD,
    Column,
    Facts,
    What,
    Words,
    batch,
    changes,
    drawn_at,
    halves,
    numbers,
    ranks,
)
from gatepost.pipeline.tables.schemas import DELIVERIES, HOUR_MS


def deliveries(told: Facts) -> pa.Table:
    """Build the delivery of every message these facts are about, in the order of their ids.

    The facts must come from `Facts.join_parts`, which sorts their words.
    """
    return _Deliveries(told).table()


class _Rows(NamedTuple):
    """Sorted facts. `leg` and `delivery` number each row's leg and delivery from 0."""

    columns: Mapping[str, Column]
    # For a SENT fact the index of its message.
    message: Column
    leg: Column
    delivery: Column

    @classmethod
    def of(cls, told: Facts) -> Self:
        plain = {name: told.told[name].to_numpy() for name in TOLD.names}
        among = (plain["node"].astype(np.int64) * len(told.words) + plain["peer"]) * len(What)
        order = np.lexsort((among + plain["what"], plain["low"], plain["high"]))
        columns = {name: column[order] for name, column in plain.items()}
        message = (np.cumsum(plain["what"] == What.SENT) - 1)[order]
        starts = changes(columns["high"]) | changes(columns["low"]) | changes(columns["node"])
        leg = np.cumsum(starts | changes(columns["peer"])) - 1
        return cls(columns, message, leg, np.cumsum(starts) - 1)


Key = Column | Callable[[Column], Column]


def _least(group: Column, *keys: Key) -> Column:
    """The index of the least row of each group, by these keys. Rows of a group must be adjacent.

    A key may be a function; it is called with the few rows that have to be compared.
    """
    starts = np.flatnonzero(changes(group))
    sizes = np.diff(starts, append=len(group))
    if len(starts) == len(group):
        return starts
    contested = np.flatnonzero(np.repeat(sizes > 1, sizes))
    values = [key(contested) if callable(key) else key[contested] for key in keys]
    order = np.lexsort((*reversed(values), group[contested]))
    several = sizes[sizes > 1]
    starts[sizes > 1] = contested[order][np.cumsum(several) - several]
    return starts


def _spread(indexes: Column, values: Column, size: int) -> Column:
    """A column of `size` with the values at these indexes, and NONE elsewhere."""
    whole = np.full(size, NONE, values.dtype)
    whole[indexes] = values
    return whole


def _pick(values: Column, indexes: Column, nothing: float = ABSENT) -> Column:
    """The values at these indexes, and `nothing` where the index is NONE."""
    if not len(values):
        return np.full(len(indexes), nothing, values.dtype)
    return np.where(indexes < 0, values.dtype.type(nothing), values[indexes])


class _Legs:
    """One entry per leg: for each kind of fact its first time, its text and its count."""

    def __init__(self, rows: _Rows) -> None:
        self._leg, columns = rows.leg, rows.columns
        start = np.flatnonzero(changes(rows.leg))
        self.size = len(start)
        self.delivery = rows.delivery[start]
        self.peer = columns["peer"][start]
        self._told = {what: np.flatnonzero(columns["what"] == what) for what in What}
        first = {what: self._least(what, columns["at"], columns["text"]) for what in What}
        self.at = {what: _pick(columns["at"], row) for what, row in first.items()}
        self.text = {what: _pick(columns["text"], row, NONE) for what, row in first.items()}
        self.times = {what: self._sum(what, columns["number"]) for what in _COUNTED}
        last = self._least(What.SENT, ~columns["number"], ~columns["text"])
        self.attempt = _pick(columns["number"].astype(np.int64), last)
        self.why = _pick(columns["text"], last, NONE)
        furthest = self._least(What.PROGRESSED, -columns["progress"])
        self.progress = _pick(columns["progress"], furthest, np.nan)

    def _least(self, what: What, *keys: Column) -> Column:
        """For each leg the least row of this kind of fact, or NONE."""
        rows = self._told[what]
        least = rows[_least(self._leg[rows], *(key[rows] for key in keys))]
        return _spread(self._leg[least], least, self.size)

    def _sum(self, what: What, column: Column) -> Column:
        rows = self._told[what]
        return np.bincount(self._leg[rows], column[rows], self.size).astype(np.int64)

    def plain(self, sent_at: Column, is_task: Column) -> Column:
        """Whether the columns of its delivery state all facts of each leg.

        This holds for the only leg of a delivery; `sent_at` and `is_task` are the delivery's.
        """
        implied: Column = self.at[What.SENT] == sent_at
        for what in _UNSAID:
            implied &= self.at[what] == ABSENT
        for what in _OF_TASKS:
            implied &= (self.at[what] == ABSENT) | is_task
        for times in self.times.values():
            implied &= times <= 1
        return implied


# Kinds of facts that are counted.
_COUNTED = (What.ACCEPTED, What.PROCESSED)
# Kinds that the columns of a delivery do not state, and kinds that they state for tasks only.
_UNSAID = (What.REFUSED, What.DEAD, What.CONFIRMED, What.WITHDRAWN)
_OF_TASKS = (What.PROMISED, What.PROGRESSED, What.COMPLETED, What.FAILED, What.CANCELLED)


class _Deliveries:
    """Folds all legs of a delivery into one row. Only answers of nodes that were asked count."""

    def __init__(self, told: Facts) -> None:
        self._texts, self._sent = told.words, told.sent
        rows = _Rows.of(told)
        self._legs = legs = _Legs(rows)
        start = np.flatnonzero(changes(rows.delivery))
        self.size = len(start)
        self._id = rows.columns["high"][start], rows.columns["low"][start]
        self._node = rows.columns["node"][start]
        self._nobody = self._place("")
        self._everyone = np.ones(legs.size, bool)
        self._asked = (legs.at[What.SENT] != ABSENT) & (legs.peer != self._nobody)
        self._message = self._first_message(rows)
        self._is_task = self._of_message("kind", NONE) == self._place("task_create")

    def table(self) -> pa.Table:
        answers = self._answers()
        high, low = self._id
        columns = {
            "hour": pa.array(drawn_at(high) // HOUR_MS),
            "node": self._words(self._node),
            "event_id": _ids(high, low),
            **self._said(),
            **{name: self._array(column) for name, column in answers.items()},
            **self._judged(answers),
            "task": self._task(),
            "told": self._listed(),
        }
        for name in ("attempts", "routes"):
            columns[name] = columns[name].cast(pa.int32())
        return pa.Table.from_pydict({name: columns[name] for name in DELIVERIES.names})

    def _answers(self) -> dict[str, Column]:
        legs, asked = self._legs, self._asked
        at, text, peer = legs.at, legs.text, legs.peer
        accept = self._first(What.ACCEPTED, asked, peer)
        turn = self._first(What.PROCESSED, asked, text[What.PROCESSED], peer)
        replied = self._first(What.REPLIED, asked)
        dead = self._first(What.DEAD, self._everyone, text[What.DEAD])
        refused = self._first(What.REFUSED, asked, text[What.REFUSED])
        last = self._best(self._everyone, ~legs.attempt, ~legs.why, ~peer)
        to_node = _pick(peer, _either(turn, _either(accept, last)), NONE)
        answered = (at[What.ACCEPTED] != ABSENT) | (at[What.PROCESSED] != ABSENT)
        again = np.sum([np.maximum(times - 1, 0) for times in legs.times.values()], axis=0)
        reasons = [
            _pick(text[What.DEAD], dead, NONE),
            _pick(text[What.REFUSED], refused, NONE),
        ]
        return {
            "to_node": np.where(to_node == self._nobody, np.int32(NONE), to_node),
            "attempts": _pick(legs.attempt, last),
            "routes": self._sum(asked),
            "decision": _pick(legs.why, last, NONE),
            "accepted_at": _pick(at[What.ACCEPTED], accept),
            "processed_at": _pick(at[What.PROCESSED], turn),
            "replied_at": _pick(at[What.REPLIED], replied),
            "dead_at": _pick(at[What.DEAD], dead),
            "outcome": _pick(text[What.PROCESSED], turn, NONE),
            "reason": _either(*reasons),
            "duplicates": self._sum(again),
            "strangers": self._sum(~asked & answered),
            "turns": self._sum(asked & (text[What.PROCESSED] == self._place("ok"))),
        }

    def _first(self, what: What, legs: Column, *keys: Column) -> Column:
        """For each delivery the one of these legs with the earliest such fact, or NONE."""
        at = self._legs.at[what]
        return self._best(legs & (at != ABSENT), at, *keys)

    def _best(self, legs: Column, *keys: Column) -> Column:
        """For each delivery the least of these legs, or NONE."""
        candidates, delivery = np.flatnonzero(legs), self._legs.delivery
        least = _least(delivery[candidates], *(key[candidates] for key in keys))
        best = candidates[least]
        return _spread(delivery[best], best, self.size)

    def _sum(self, values: Column) -> Column:
        """The sum over all legs of each delivery."""
        return np.bincount(self._legs.delivery, values, self.size).astype(np.int64)

    def _first_message(self, rows: _Rows) -> Column:
        """For each delivery the index of the message that opened it, or NONE."""
        sent = np.flatnonzero(rows.columns["what"] == What.SENT)
        delivery, message = rows.delivery[sent], rows.message[sent]

        def rank_by(name: str) -> Callable[[Column], Column]:
            return lambda contested: ranks(self._sent[name].take(pa.array(message[contested])))

        first = _least(delivery, *(rank_by(name) for name in SENT.names))
        return _spread(delivery[first], message[first], self.size)

    def _of_message(self, name: str, nothing: int = ABSENT) -> Column:
        return _pick(self._sent[name].to_numpy(), self._message, nothing)

    def _said(self) -> dict[str, pa.Array]:
        """The columns that the message itself states."""
        corr_id = self._sent["corr_id"].take(pa.array(self._message, mask=self._message < 0))
        texts = ("kind", "from_agent", "to_agent")
        return {
            "corr_id": corr_id,
            **{name: _numbers(self._of_message(name)) for name in _NUMBERS},
            **{name: self._words(self._of_message(name, NONE)) for name in texts},
        }

    def _judged(self, answers: Mapping[str, Column]) -> dict[str, pa.Array]:
        """The state that follows from the answers."""
        has = {name: answers[name] != ABSENT for name in answers if name.endswith("_at")}
        answered = has["processed_at"] | has["replied_at"]
        states = {
            "orphan": self._message < 0,
            "dead_letter": has["dead_at"],
            "replied": has["replied_at"],
            "processed": has["processed_at"],
            "accepted": has["accepted_at"],
            "retry_pending": answers["attempts"] > 1,
        }
        state = np.select(list(states.values()), list(range(len(states))), len(states))
        return {
            "state": pa.array([*states, "emitted"]).take(pa.array(state)),
            "amended": pa.array(has["dead_at"] & answered),
            "closed": pa.array(has["dead_at"] | answered),
        }

    def _task(self) -> pa.Array:
        """The request of a task, and all facts that any node stated about it."""
        legs, everyone = self._legs, self._everyone

        def first_time(what: What) -> pa.Array:
            return _numbers(_pick(legs.at[what], self._first(what, everyone)))

        failed = self._first(What.FAILED, everyone, legs.text[What.FAILED])
        furthest = self._best(~np.isnan(legs.progress), -legs.progress)
        fields = {
            **{name: self._words(self._of_message(name, NONE)) for name in TASK},
            "eta_at": first_time(What.PROMISED),
            "progress": _shares(_pick(legs.progress, furthest, np.nan)),
            "completed_at": first_time(What.COMPLETED),
            "failed_at": _numbers(_pick(legs.at[What.FAILED], failed)),
            "failure_class": self._words(_pick(legs.text[What.FAILED], failed, NONE)),
            "cancelled_at": first_time(What.CANCELLED),
        }
        return _struct(fields, self._is_task)

    def _listed(self) -> pa.Array:
        """The facts of each delivery, or null where its other columns state them all."""
        legs = self._legs
        delivery = legs.delivery
        alone = np.bincount(delivery, minlength=self.size)[delivery] == 1
        implied = legs.plain(self._of_message("sent_at")[delivery], self._is_task[delivery])
        listed = ~(alone & self._asked & implied)
        rows = {what: np.flatnonzero(listed & (legs.at[what] != ABSENT)) for what in What}
        leg = np.concatenate(list(rows.values()))
        sizes = np.bincount(delivery[leg], minlength=self.size)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        facts = self._facts(rows).take(pa.array(np.argsort(leg, kind="stable")))
        return pa.ListArray.from_arrays(offsets, facts, mask=pa.array(sizes == 0))

    def _facts(self, rows: Mapping[What, Column]) -> pa.Array:
        """The facts of these legs, one kind of fact after the other."""
        legs = self._legs

        def gather(values: Callable[[What], Column]) -> Column:
            return np.concatenate([values(what)[chosen] for what, chosen in rows.items()])

        once, never = np.ones(legs.size, np.int64), np.full(legs.size, np.nan)
        numbers = {What.SENT: legs.attempt, **legs.times}
        text = {**legs.text, What.SENT: legs.why}
        what = np.concatenate([np.full(len(chosen), what) for what, chosen in rows.items()])
        fields = {
            "peer": self._words(gather(lambda _: legs.peer)),
            "what": pa.array([what.name.lower() for what in What]).take(pa.array(what)),
            "at": pa.array(gather(lambda what: legs.at[what])),
            "text": self._words(gather(lambda what: text[what])),
            "number": pa.array(gather(lambda what: numbers.get(what, once)).astype(np.int32)),
            "progress": _shares(
                gather(lambda what: legs.progress if what == What.PROGRESSED else never)
            ),
        }
        return _struct(fields, np.ones(len(what), bool))

    def _place(self, word: str) -> int:
        code = int(self._texts.index(word).as_py())
        # A word that is not in the list must not match rows without a word (NONE).
        return code if code >= 0 else NONE - 1

    def _array(self, column: Column) -> pa.Array:
        return self._words(column) if column.dtype == np.int32 else _numbers(column)

    def _words(self, codes: Column) -> pa.Array:
        return self._texts.take(pa.array(codes, mask=codes == NONE))


def _either(one: Column, other: Column) -> Column:
    return np.where(one >= 0, one, other)


def _numbers(column: Column) -> pa.Array:
    return pa.array(column, mask=column == ABSENT)


def _shares(column: Column) -> pa.Array:
    return pa.array(column, mask=np.isnan(column))


def _struct(fields: Mapping[str, pa.Array], valid: Column) -> pa.Array:
    return pa.StructArray.from_arrays(list(fields.values()), list(fields), mask=pa.array(~valid))


def _ids(high: Column, low: Column) -> pa.Array:
    data = np.column_stack([high, low]).astype(">u8")
    offsets = np.arange(len(high) + 1, dtype=np.int32) * 16
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(high), buffers)


def facts_of(stored: pa.Table) -> Facts:
    """Turn stored deliveries back into facts that build the same deliveries."""
    return _Stored(stored.combine_chunks()).facts()


# The columns of a delivery that state a fact: its time, and its text if it has one.
_SAYS: Final = {
    What.SENT: ("sent_at", "decision"),
    What.ACCEPTED: ("accepted_at", None),
    What.PROCESSED: ("processed_at", "outcome"),
    What.REPLIED: ("replied_at", None),
    What.PROMISED: ("task.eta_at", None),
    What.COMPLETED: ("task.completed_at", None),
    What.FAILED: ("task.failed_at", "task.failure_class"),
    What.CANCELLED: ("task.cancelled_at", None),
}


class _Stored:
    """Stored deliveries: some list their facts in `told`, for the others the columns state them."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._all = Words()
        told = table["told"].combine_chunks()
        self._listed = told.flatten()
        # The delivery of each listed fact, and the deliveries that list none.
        self._of = pc.list_parent_indices(told).to_numpy()
        self._alone = np.flatnonzero(np.asarray(told.is_null()))
        self._to_node = self._all.of(table["to_node"])

    def facts(self) -> Facts:
        parts = [self._told(), *map(self._says, _SAYS), self._progressed()]
        row = np.concatenate([part.pop("row") for part in parts])
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        high, low = halves(self._table["event_id"].combine_chunks())
        node = self._all.of(self._table["node"])
        columns |= {"high": high[row], "low": low[row], "node": node[row]}
        sent = row[columns["what"] == What.SENT]
        return Facts(batch(TOLD, columns), self._messages(sent), self._all.all())

    def _told(self) -> dict[str, Column]:
        by_name = {what.name.lower(): what for what in What}
        column = {name: _field(self._listed, name) for name in ("peer", "what", "at", "text")}
        return {
            "row": self._of,
            "peer": self._all.of(column["peer"]),
            "what": self._all.chosen(self._all.of(column["what"]), by_name),
            "at": numbers(column["at"]),
            "text": self._all.of(column["text"]),
            "number": numbers(_field(self._listed, "number")),
            "progress": np.asarray(_field(self._listed, "progress").fill_null(np.nan)),
        }

    def _says(self, what: What) -> dict[str, Column]:
        at_name, text_name = _SAYS[what]
        at = numbers(self._column(at_name))[self._alone]
        stated = at != ABSENT
        part = self._part(what, self._alone[stated])
        part["at"] = at[stated]
        if text_name:
            part["text"] = self._all.of(self._column(text_name))[self._alone][stated]
        if what == What.SENT:
            part["number"] = numbers(self._table["attempts"])[self._alone][stated]
        return part

    def _progressed(self) -> dict[str, Column]:
        progress = np.asarray(self._column("task.progress").fill_null(np.nan))[self._alone]
        stated = ~np.isnan(progress)
        return self._part(What.PROGRESSED, self._alone[stated]) | {"progress": progress[stated]}

    def _part(self, what: What, rows: Column) -> dict[str, Column]:
        size = len(rows)
        return {
            "row": rows,
            "peer": self._to_node[rows],
            "what": np.full(size, what),
            "at": np.zeros(size, np.int64),
            "text": np.full(size, NONE),
            "number": np.ones(size, np.int64),
            "progress": np.full(size, np.nan),
        }

    def _column(self, path: str) -> pa.ChunkedArray:
        name, _, inner = path.partition(".")
        return _field(self._table[name], inner) if inner else self._table[name]

    def _messages(self, rows: Column) -> pa.RecordBatch:
        table = self._table.select([*_MESSAGE, "task"]).take(pa.array(rows))
        columns = {
            "first": np.ones(len(rows), np.int64),
            "corr_id": table["corr_id"].combine_chunks(),
            **{name: numbers(table[name]) for name in _MESSAGE if name in _NUMBERS},
            **{name: self._all.of(table[name]) for name in ("kind", "from_agent", "to_agent")},
            **{name: self._all.of(_field(table["task"], name)) for name in TASK},
        }
        return batch(SENT, columns)


_MESSAGE: Final = tuple(name for name in SENT.names if name not in {"first", *TASK})
_NUMBERS: Final = ("sent_at", "pair_seq", "expires_at", "size")


def _field(column: pa.Array | pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A field of a struct column, null where the struct is null."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.chunked_array([pc.struct_field(chunk, name) for chunk in chunks])
