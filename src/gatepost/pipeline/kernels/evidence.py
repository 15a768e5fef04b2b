"""Reads one segment: checks it by itself, and takes out all that other outboxes are compared with.

sent        one row for each event that opens a delivery
receipts    one row for each receipt `accepted` or `processed`
named       the nodes that events are addressed to
found       the violations that show in the segment alone
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from gatepost.pipeline.kernels.blocks import FOUND_SCHEMA, hash_texts, mix_hashes
from gatepost.pipeline.kernels.columns import Numbers, is_id, split_ids, to_numbers

SENT, RECEIPTS, NAMED, FOUND = "sent", "receipts", "named", "found"

EVIDENCE_COLUMNS: Final = (
    *("seq", "event_id", "kind", "source_agent", "to_node", "to_agent", "pair_seq", "corr_id"),
    *("ref_id", "created_at", "attempt", "payload_size", "status", "outcome"),
)
OUTCOMES: Final = ("ok", "dead_letter", "expired", "kept")
"""The outcomes of a turn; its index here is its code."""

SEQ_BITS: Final = 48
_TRACKED_KINDS = pa.array(["message", "reply", "task_create", "task_cancel"])


class OutboxPart(Struct, frozen=True):
    """Facts about the outbox of a segment.

    `number` counts the incarnations of the node. Later incarnations do not know events from
    `forgotten` on. Events after `valid` were written by a node that had been revoked.
    """

    node: str
    incarnation: str
    number: int
    forgotten: int | None
    valid: int | None


def collect_evidence(
    events: pa.Table, part: OutboxPart, max_inline: int
) -> Iterator[tuple[str, pa.Table]]:
    """The named tables of a segment, without the empty ones."""
    made = {
        SENT: _sent_rows(events, part),
        RECEIPTS: _receipt_rows(events, part),
        NAMED: pa.table({"node": _named_nodes(events)}),
        FOUND: pa.concat_tables(
            [_oversized_payloads(events, part, max_inline), _revoked_events(events, part)]
        ),
    }
    return ((name, table) for name, table in made.items() if table.num_rows)


def _sent_rows(events: pa.Table, part: OutboxPart) -> pa.Table:
    opening = pc.is_in(events["kind"], value_set=_TRACKED_KINDS)
    rows = events.filter(pc.and_(opening, pa.array(is_id(events["event_id"]))))
    high, low = split_ids(rows["event_id"].combine_chunks())
    size = rows.num_rows
    pair = mix_hashes(
        hash_texts(_repeat(part.node, size)),
        hash_texts(_repeat(part.incarnation, size)),
        hash_texts(rows["source_agent"]),
        hash_texts(rows["to_agent"]),
    )
    # Only the first attempt tells the place in the order of its pair; 0 is outside of any.
    first = to_numbers(rows["attempt"]) == 1
    number = np.where(first, np.maximum(to_numbers(rows["pair_seq"]), 0), 0)
    columns = {"high": high, "low": low, "owner": hash_texts(_repeat(part.node, size))}
    return pa.table(columns | {"pair": pair, "pair_seq": number})


def _receipt_rows(events: pa.Table, part: OutboxPart) -> pa.Table:
    told = pc.is_in(events["status"], value_set=pa.array(["accepted", "processed"]))
    wanted = pc.and_(pc.equal(events["kind"], "ack"), told).fill_null(False)
    rows = events.filter(pc.and_(wanted, pa.array(is_id(events["ref_id"]))))
    high, low = split_ids(rows["ref_id"].combine_chunks())
    owner = rows["to_node"].cast(pa.string()).fill_null(part.node)
    seq, size = to_numbers(rows["seq"]), rows.num_rows
    outcome = pc.index_in(rows["outcome"], value_set=pa.array(OUTCOMES)).fill_null(len(OUTCOMES))
    return pa.table(
        {
            "high": high,
            "low": low,
            "owner": hash_texts(owner),
            "node": hash_texts(_repeat(part.node, size)),
            "position": (part.number << SEQ_BITS) + seq,
            "processed": pc.equal(rows["status"], "processed"),
            "outcome": outcome.cast(pa.int8()),
            "forgotten": seq >= (part.forgotten or 1 << 62),
            "at": rows["created_at"],
            "owner_name": owner.dictionary_encode(),
            "node_name": _repeat(part.node, size).dictionary_encode(),
            "incarnation": _repeat(part.incarnation, size).dictionary_encode(),
            "corr_id": rows["corr_id"],
        }
    )


def position_seq(position: Numbers) -> Numbers:
    """The seq in an event's position."""
    return position & ((1 << SEQ_BITS) - 1)


def position_incarnation(position: Numbers) -> Numbers:
    """The number of the incarnation in an event's position."""
    return position >> SEQ_BITS


def _named_nodes(events: pa.Table) -> pa.Array:
    named = pc.unique(events["to_node"].cast(pa.string())).drop_null()
    return named.filter(pc.not_equal(named, "*"))


def _oversized_payloads(events: pa.Table, part: OutboxPart, max_inline: int) -> pa.Table:
    rows = events.filter(pc.greater(events["payload_size"], max_inline))
    details = [
        f"{size} bytes inline, the limit is {max_inline}"
        for size in rows["payload_size"].to_pylist()
    ]
    return _to_found(rows, part, "payload_over_limit", details)


def _revoked_events(events: pa.Table, part: OutboxPart) -> pa.Table:
    later = pc.greater(events["seq"], 1 << 62 if part.valid is None else part.valid)
    rows = events.filter(later)
    details = ["written after the node was revoked"] * rows.num_rows
    return _to_found(rows, part, "revoked_node", details)


def _to_found(rows: pa.Table, part: OutboxPart, rule: str, details: list[str]) -> pa.Table:
    size = rows.num_rows
    return found_table(
        {
            "rule": [rule] * size,
            "node": [part.node] * size,
            "incarnation": [part.incarnation] * size,
            **{name: rows[name] for name in ("seq", "event_id", "corr_id")},
            "at": rows["created_at"],
            "detail": details,
        }
    )


def found_table(columns: Mapping[str, object]) -> pa.Table:
    """Violations of these columns; the others are null."""
    size = len(columns["rule"])  # type: ignore[arg-type]
    given = {name: columns.get(name, pa.nulls(size)) for name in FOUND_SCHEMA.names}
    return pa.table(given).cast(FOUND_SCHEMA)


def _repeat(text: str, size: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.repeat(pa.scalar(text), size)])
