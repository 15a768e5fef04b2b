"""The schemas of all tables of the pipeline: columns, Spark types and meanings.

Times are TIMESTAMPs, ids are 16 bytes, `hour` counts the hours since 1970. Deliveries are
partitioned by the hour of their id: an id carries the time it was drawn at, so a receipt finds its
message's partition without looking the message up. Hourly tables made from deliveries have few
rows, and are partitioned by day.

A TIMESTAMP is an instant, stored in microseconds of UTC: two clocks that differ by a time zone
write the same value, and every reader of Delta's first protocol version knows the type.
TIMESTAMP_NTZ is a date and time of day that names no instant, and needs a table feature that older
readers refuse.
"""

import re
from datetime import date, timedelta
from typing import Any

from msgspec import Struct

HOUR_MS = 3_600_000
HOURS_A_DAY = 24
_EPOCH = date(1970, 1, 1)

_SPARK_TYPES = {"bigint": "long", "int": "integer"}


def day_of(number: int) -> date:
    """The UTC day with this number, counted since 1970."""
    return _EPOCH + timedelta(days=number)


def day_number(day: date) -> int:
    return (day - _EPOCH).days


class ColumnSpec(Struct, frozen=True):
    """A column of a table; `type` is Spark's."""

    name: str
    type: str
    meaning: str


class TableSpec(Struct, frozen=True):
    """A table; `name` is also its folder. One without a `partition` is small and replaced whole."""

    name: str
    meaning: str
    columns: tuple[ColumnSpec, ...]
    partition: str | None = "hour"

    @property
    def ddl(self) -> str:
        """The Spark schema, as `createDataFrame` and `from_json` take it."""
        return ", ".join(f"{column.name} {column.type}" for column in self.columns)

    @property
    def schema(self) -> dict[str, Any]:
        """The same schema in the JSON form of Spark and Delta, made without a JVM.

        Each column has its meaning as a comment.
        """
        struct = _struct_type([(column.name, column.type) for column in self.columns])
        for field, column in zip(struct["fields"], self.columns, strict=True):
            field["metadata"] = {"comment": column.meaning}
        return struct

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def kernel_names(self) -> list[str]:
        """The columns that kernels make; `day` follows from `hour` where rows are written."""
        return [name for name in self.names if name != "day"]

    @property
    def partitions(self) -> list[str]:
        return [] if self.partition is None else [self.partition]


def _struct_type(fields: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": name, "type": _spark_type(kind), "nullable": True, "metadata": {}}
            for name, kind in fields
        ],
    }


def _spark_type(kind: str) -> Any:
    outer, _, inner = kind.removesuffix(">").partition("<")
    if outer == "array":
        return {"type": "array", "elementType": _spark_type(inner), "containsNull": True}
    if outer == "struct":
        # No struct here has nested fields.
        pairs = re.findall(r"(\w+): (\w+)", inner)
        return _struct_type(pairs)
    return _SPARK_TYPES.get(kind, kind)


def _define_table(
    name: str, meaning: str, *columns: str, partition: str | None = "hour"
) -> TableSpec:
    """Define a table; each column is written as `name type | meaning`."""
    return TableSpec(name, meaning, tuple(map(_parse_column, columns)), partition)


def _parse_column(line: str) -> ColumnSpec:
    head, meaning = line.rsplit(" | ", 1)
    name, kind = head.split(" ", 1)
    return ColumnSpec(name, kind, meaning)


_DAY = "day date | the UTC day of `hour`"

EVENTS = _define_table(
    "events",
    "One event of an outbox, as archived; unique by (node, incarnation, seq). Read, never copied.",
    "node string | whose outbox it is in",
    "incarnation string | which journal of that node",
    "seq bigint | its number in that journal, without gaps",
    "event_id binary | its id; a retry repeats it",
    "kind string | message, ack, reply, task_create, …, signal or dead_letter",
    "source_agent string | who wrote it",
    "to_node string | the node it is meant for",
    "to_agent string | the agent it is meant for",
    "pair_seq bigint | its number among all from this agent to that one; 0 is outside any order",
    "pair_base bigint | all numbers of the pair before this one are closed",
    "prev_seq_to bigint | the previous seq meant for the same recipient",
    "corr_id string | the conversation it belongs to",
    "ref_id binary | the event it is about",
    "causation_id binary | the event it replays, or forwards",
    "origin_id binary | of forwarded mail: its first event, whose sender counts it",
    "created_at timestamp | when it was written, by its node's clock",
    "expires_at timestamp | when it is worth nothing any more",
    "attempt int | which try to deliver it",
    "priority int | more is sooner",
    "offer boolean | whether `accepted` needs a confirmation",
    "payload_size int | bytes of its inline payload",
    "blob_digest string | the blob that holds its payload",
    "blob_size bigint | bytes of that blob",
    "status string | of a receipt: accepted, refused or processed",
    "outcome string | of a processed receipt: ok, dead_letter, expired or kept",
    "reason string | of a receipt, dead letter or signal",
    "eta_at timestamp | when a task is promised",
    "eta_seconds bigint | in how many seconds a task is promised",
    "dead_attempts int | of a dead letter: how often it was tried",
    "signal string | which signal",
    "through bigint | of `pair_closed`: up to which number of the pair",
    "capability_id string | of a task: which capability it asks for",
    "capability_version string | of a task",
    "delegation_version string | version of the requester's skill",
    "executor_version string | version of the owner's skill",
    "task_type string | of a task",
    "progress double | of a task, 0 to 1",
    "failure_class string | of a failed task",
    "route_decision string | local, owner, retry, fallback or moved",
    "policy_version string | under which routing policy",
    "traceparent string | W3C trace context",
    "digest binary | sha256 of the encoded event",
    "group_first bigint | on the last event of a commit group: where the group starts",
    "chain binary | on the last event of a commit group: the hash chain after it",
    "signature binary | on the last event of a commit group: the node's over the head",
    "body binary | the encoded event, if the archive keeps encrypted payloads",
    "date date | UTC date of created_at",
    partition=None,
)

DELIVERIES = _define_table(
    "deliveries",
    "One message, reply, task_create or task_cancel, with its state.",
    "hour bigint | of its event id",
    "node string | the sender's node",
    "event_id binary | its id",
    "kind string | message, reply, task_create or task_cancel; null while only receipts are known",
    "from_agent string | the sender",
    "to_agent string | the receiver",
    "to_node string | the node that answered, else the node last asked",
    "corr_id string | its conversation",
    "pair_seq bigint | its number in the pair's order",
    "sent_at timestamp | created_at of its first attempt",
    "expires_at timestamp | when the sender gives up",
    "size bigint | bytes of payload, inline or blob",
    "forwarded boolean | it carries on mail that another event sent first",
    "attempts int | how often it was sent",
    "routes int | to how many nodes",
    "decision string | why the last attempt went where it went",
    "accepted_at timestamp | first accepted receipt of a node it was routed to",
    "processed_at timestamp | first processed receipt of such a node",
    "replied_at timestamp | first reply of such a node",
    "dead_at timestamp | when the sender dead-lettered it",
    "outcome string | ok, dead_letter or expired; kept, of a reply without a turn",
    "reason string | why it was dead-lettered, not done or refused",
    "duplicates bigint | repeated receipts",
    "strangers bigint | nodes that answered without having been asked",
    "turns bigint | nodes that processed it with outcome ok",
    "state string | emitted, retry_pending, accepted, processed, replied, dead_letter or orphan",
    "amended boolean | dead-lettered, and answered all the same: its state is that of the answer",
    "closed boolean | nothing more is expected",
    "task struct<capability_id: string, capability_version: string, delegation_version: string, "
    "executor_version: string, task_type: string, eta_at: timestamp, progress: double, "
    "completed_at: timestamp, failed_at: timestamp, failure_class: string, cancelled_at: timestamp>"
    " | the request of a task and the facts stated about it; null for messages",
    "told array<struct<peer: string, what: string, at: timestamp, text: string, number: int, "
    "progress: double>> | the first facts by or to each node; null if the other columns state them",
)

TASKS = _define_table(
    "tasks",
    "One task from its creation to its end.",
    _DAY,
    "hour bigint | of its event id",
    "node string | the creator's node",
    "event_id binary | the task's id",
    "corr_id string | its conversation",
    "from_agent string | who asked",
    "to_agent string | who was asked",
    "to_node string | the node that answered, else the node last asked",
    "capability_id string | what was asked for",
    "capability_version string | its version",
    "delegation_version string | version of the requester's skill",
    "executor_version string | version of the owner's skill",
    "task_type string | its type",
    "created_at timestamp | when it was created",
    "accepted_at timestamp | first accepted receipt",
    "eta_at timestamp | when it was promised",
    "progress double | furthest progress told, 0 to 1",
    "ended_at timestamp | when it completed, failed or was cancelled",
    "took_ms bigint | from creation to completion; null if not completed",
    "failure_class string | why it failed",
    "reason string | why it was dead-lettered",
    "state string | pending, accepted, running, completed, failed, cancelled or dead_letter",
    partition="day",
)

TURNS = _define_table(
    "turns",
    "One agent turn: a node that processed an event. Two with outcome ok are a doubled turn.",
    "hour bigint | of the event's id",
    "node string | the sender's node",
    "event_id binary | the event that was processed",
    "turn_node string | where the turn ran",
    "agent string | who took the turn",
    "kind string | of the event",
    "corr_id string | its conversation",
    "accepted_at timestamp | when that node accepted it",
    "processed_at timestamp | when the turn ended",
    "outcome string | ok, dead_letter or expired; kept, of a reply without a turn",
    "asked boolean | the event was routed to that node",
)

SLO = _define_table(
    "slo",
    "Service levels of what one node sent in one window, by kind and capability.",
    _DAY,
    "hour bigint | the window's",
    "window_start timestamp | its start; by created_at of the message",
    "window_ms bigint | its length",
    "kind string | message, reply, task_create or task_cancel",
    "node string | the sender's node",
    "capability_id string | for tasks; null for all else",
    "sent bigint | deliveries opened",
    "accepted bigint | of these, accepted",
    "processed bigint | of these, done: processed or replied to",
    "dead bigint | given up by the sender, or dead-lettered or expired at the owner",
    "amended bigint | dead-lettered, and answered all the same; not dead",
    "retried bigint | sent more than once",
    "duplicates bigint | repeated receipts",
    "open bigint | still waiting",
    "ack_lag bigint | not accepted by the window's end, nor given up",
    "bytes bigint | payload",
    "per_second double | deliveries per second",
    "accept_p50 bigint | ms from send to accepted, median",
    "accept_p95 bigint | the same, 95 %",
    "accept_p99 bigint | the same, 99 %",
    "process_p50 bigint | ms from send to processed or reply, median",
    "process_p95 bigint | the same, 95 %",
    "process_p99 bigint | the same, 99 %",
    "retry_rate double | retried / sent",
    "duplicate_rate double | duplicates / sent",
    "dead_rate double | dead / sent",
    "online_p95 bigint | accept_p95 without deliveries that waited for a node that was away",
    "objective_ms bigint | the limit that online_p95 should stay below",
    "met boolean | whether it did; null if nothing was accepted",
    partition="day",
)

INCIDENTS = _define_table(
    "incidents",
    "Something a person should look at.",
    "incident_id string | the same for the same incident, however often it is found",
    "class string | sla_breach, backlog, dead_letter_burst, routing_miss, silent_node, clock_skew "
    "or bad_archive",
    "node string | the node it is about: the owner, or the sender of dead letters",
    "agent string | the agent it is about, if one",
    "capability_id string | the capability it is about, if one",
    "started_at timestamp | since when",
    "ended_at timestamp | until when; null while it lasts",
    "count bigint | deliveries concerned",
    "samples array<string> | up to five corrIds",
    "sentence string | what happened, in words",
    partition=None,
)

REVIEWS = _define_table(
    "reviews",
    "Misfires of one capability under one pair of skill versions, for review.",
    "review_id string | the same for the same misfire, however often it is found",
    "capability_id string | which capability",
    "capability_version string | its version",
    "delegation_version string | version of the requester's skill",
    "executor_version string | version of the owner's skill",
    "class string | eta_breach, sla_breach, terminal_error, contract_mismatch or routing_miss",
    "count bigint | tasks that misfired so",
    "tasks bigint | all tasks under these versions",
    "first_at timestamp | created_at of the first of them",
    "last_at timestamp | created_at of the last",
    "samples array<string> | up to five corrIds",
    partition=None,
)

ETA = _define_table(
    "eta",
    "How long a capability really takes.",
    "capability_id string | which capability",
    "capability_version string | its version",
    "completed bigint | tasks this is from",
    "p50_seconds double | median from creation to completion",
    "p90_seconds double | 90 %",
    "p95_seconds double | 95 %",
    "p99_seconds double | 99 %",
    "promised_seconds double | median of the promised times",
    "kept_rate double | completed by the promised time / promised",
    "recommended_eta_seconds bigint | a defaultEtaSeconds kept 95 % of the time",
    partition=None,
)

TRAFFIC = _define_table(
    "traffic",
    "Deliveries from one agent to another in one hour: number, size and outcomes.",
    _DAY,
    "hour bigint | of the event ids",
    "node string | the sender's node",
    "from_agent string | the sender",
    "to_node string | the node that answered, else the node last asked",
    "to_agent string | the receiver",
    "sent bigint | deliveries",
    "bytes bigint | payload",
    "ok bigint | closed with outcome ok or kept, or a reply",
    "dead bigint | given up by the sender, or dead-lettered or expired at the owner",
    "open bigint | still waiting",
    "accept_ms double | mean from send to accepted",
    "process_ms double | mean from send to processed or reply",
    "process_max bigint | the slowest",
    partition="day",
)

CASES = _define_table(
    "cases",
    "A delivery that was given up, waited beyond its window, is slow or misfired: for incidents.",
    _DAY,
    "hour bigint | of its event id",
    "node string | the sender's node",
    "to_node string | the node that answered, else the node last asked",
    "to_agent string | the receiver",
    "corr_id string | its conversation",
    "sent_at timestamp | when it was sent",
    "accepted_at timestamp | when it was accepted",
    "ended_at timestamp | when it was processed, replied to or dead-lettered",
    "dead_at timestamp | when it was dead-lettered",
    "reason string | why",
    "capability_id string | of a task: what was asked for; this and the rest is null for all else",
    "capability_version string | its version",
    "delegation_version string | version of the requester's skill",
    "executor_version string | version of the owner's skill",
    "eta_at timestamp | when the task was promised",
    "task_ended_at timestamp | when it completed, failed or was cancelled",
    "task_state string | as in `tasks`",
    "failure_class string | why it failed",
    partition="day",
)

PACES = _define_table(
    "paces",
    "One hour's tasks under one pair of skill versions: how many, how long. Several rows add up.",
    _DAY,
    "hour bigint | of the event ids",
    "capability_id string | what was asked for",
    "capability_version string | its version",
    "delegation_version string | version of the requester's skill",
    "executor_version string | version of the owner's skill",
    "tasks bigint | all of them",
    "completed bigint | of these, completed",
    "promised bigint | of these, with a time it was promised for",
    "kept bigint | of these, completed by then",
    "took array<struct<ms: bigint, count: bigint>> | creation to completion, rounded up to three "
    "digits, and how often",
    "promises array<struct<ms: bigint, count: bigint>> | creation to the promised time, the same",
    partition="day",
)

ACTIVITY = _define_table(
    "activity",
    "Events one node wrote in one window, by its own clock; silence is measured by it.",
    "batch bigint | the batch that counted it; sum over batches",
    "node string | whose outbox",
    "window_start timestamp | the window of created_at",
    "events bigint | events written",
    "first_at timestamp | the first of them",
    "last_at timestamp | the last of them",
    partition=None,
)

VIOLATIONS = _define_table(
    "violations",
    "One breach of a protocol promise.",
    "rule string | its code",
    "sentence string | the promise that was broken, in words",
    "node string | whose outbox shows it",
    "incarnation string | which journal of that node",
    "seq bigint | where; null if the rule is not about one event",
    "event_id binary | the event concerned",
    "corr_id string | its conversation",
    "at timestamp | created_at of the event that shows it",
    "detail string | the details, in words",
    partition=None,
)

TABLES: dict[str, TableSpec] = {
    table.name: table
    for table in (
        EVENTS,
        DELIVERIES,
        TASKS,
        TURNS,
        SLO,
        INCIDENTS,
        REVIEWS,
        ETA,
        TRAFFIC,
        CASES,
        PACES,
        ACTIVITY,
        VIOLATIONS,
    )
}
