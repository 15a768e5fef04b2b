"""The columns of an archived event. The module needs pyarrow and nothing of the gateway.

`node` and `date` are not columns: they come from the path, `node=<id>/date=<day>/…`.
Ids are 16 bytes, times are epoch milliseconds. The last row of each commit group carries the
group's signed head in `group_first`, `chain` and `signature`; these are null in all other rows.
"""

from typing import Final

import pyarrow as pa

SCHEMA_VERSION: Final = 1


def _required_field(name: str, type: pa.DataType) -> pa.Field:
    return pa.field(name, type, nullable=False)


EVENT_SCHEMA: Final = pa.schema(
    [
        _required_field("incarnation", pa.string()),
        _required_field("seq", pa.int64()),
        _required_field("event_id", pa.binary()),
        _required_field("kind", pa.string()),
        _required_field("source_agent", pa.string()),
        pa.field("to_node", pa.string()),
        pa.field("to_agent", pa.string()),
        _required_field("pair_seq", pa.int64()),
        _required_field("pair_base", pa.int64()),
        _required_field("prev_seq_to", pa.int64()),
        pa.field("corr_id", pa.string()),
        pa.field("ref_id", pa.binary()),
        pa.field("causation_id", pa.binary()),
        # The first event of forwarded mail; null in events that are not forwarded mail.
        pa.field("origin_id", pa.binary()),
        _required_field("created_at", pa.int64()),
        pa.field("expires_at", pa.int64()),
        _required_field("attempt", pa.int32()),
        _required_field("priority", pa.int32()),
        _required_field("offer", pa.bool_()),
        # Size in bytes of the inline payload; 0 without one.
        _required_field("payload_size", pa.int32()),
        pa.field("blob_digest", pa.string()),
        pa.field("blob_size", pa.int64()),
        # From a receipt; `reason` also from a dead letter or a signal.
        pa.field("status", pa.string()),
        pa.field("outcome", pa.string()),
        pa.field("reason", pa.string()),
        # From a receipt, or else from the task.
        pa.field("eta_at", pa.int64()),
        pa.field("eta_seconds", pa.int64()),
        pa.field("dead_attempts", pa.int32()),
        pa.field("signal", pa.string()),
        pa.field("through", pa.int64()),
        pa.field("capability_id", pa.string()),
        pa.field("capability_version", pa.string()),
        pa.field("delegation_version", pa.string()),
        pa.field("executor_version", pa.string()),
        pa.field("task_type", pa.string()),
        pa.field("progress", pa.float64()),
        pa.field("failure_class", pa.string()),
        pa.field("route_decision", pa.string()),
        pa.field("policy_version", pa.string()),
        pa.field("traceparent", pa.string()),
        # SHA-256 of the event as sent.
        _required_field("digest", pa.binary()),
        pa.field("group_first", pa.int64()),
        pa.field("chain", pa.binary()),
        pa.field("signature", pa.binary()),
        # The event as sent, its payload still encrypted; null if the archive keeps no bodies.
        pa.field("body", pa.binary()),
    ],
    metadata={"gatepost.schema": str(SCHEMA_VERSION)},
)
