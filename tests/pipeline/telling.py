"""A handful of events, and the deliveries they make."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from gatepost.pipeline.archive_reader import ROW_SCHEMA
from gatepost.pipeline.kernels.facts import FACT_COLUMNS, Facts, facts_from_events
from gatepost.pipeline.kernels.lifecycle import build_deliveries

T = 1_772_490_600_000
Event = dict[str, Any]
Row = dict[str, Any]


def id_at(number: int, at: int = T) -> bytes:
    return at.to_bytes(6, "big") + b"\x70\x00" + number.to_bytes(8, "big")


M = id_at(1)


def event(node: str, kind: str, at: int, **fields: Any) -> Event:
    basic = {"node": node, "kind": kind, "created_at": T + at, "seq": at + 1, "attempt": 1}
    own = {"event_id": id_at(1000 + at, T + at), "incarnation": "i", "source_agent": "ann"}
    return own | {"pair_seq": 0, "payload_size": 0} | basic | fields


def sent(at: int = 0, to: str = "b", **fields: Any) -> Event:
    about = {"event_id": M, "to_node": to, "to_agent": "bob", "corr_id": "c", "pair_seq": 1}
    return event("a", "message", at, payload_size=7, **(about | fields))


def receipt(node: str, status: str, at: int, **fields: Any) -> Event:
    return event(node, "ack", at, ref_id=M, to_node="a", status=status, **fields)


def told(events: Sequence[Event]) -> Facts:
    schema = pa.schema([ROW_SCHEMA.field(name) for name in FACT_COLUMNS])
    return facts_from_events(pa.Table.from_pylist(list(events), schema))


def fold(*parts: Facts) -> pa.Table:
    return build_deliveries(Facts.join_parts(parts))


OK = {"outcome": "ok"}
