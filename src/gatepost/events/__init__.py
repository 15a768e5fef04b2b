"""Events between gateways: envelopes, ids, kinds, payload encryption, blobs, the hash chain."""

from gatepost.events.blobs import Blob, BlobStore
from gatepost.events.chain import (
    Head,
    event_digest,
    extend,
    genesis,
    sign_head,
    verify_group,
    verify_head,
)
from gatepost.events.codec import decode, decode_payload, encode, encode_payload
from gatepost.events.envelope import (
    DeadLetter,
    Envelope,
    PayloadRef,
    Receipt,
    Signal,
    TaskInfo,
    Trace,
)
from gatepost.events.framing import frame
from gatepost.events.ids import (
    AgentId,
    Digest,
    EventId,
    EventIds,
    MsgId,
    NodeId,
    check_agent_id,
    check_digest,
    check_msg_id,
    check_node_id,
    format_event_id,
    new_event_id,
    parse_event_id,
)
from gatepost.events.kinds import CLEAR, KNOWN, LEGACY, TRACKED, Kind
from gatepost.events.sealing import NodeKey, Sealed, Sealer, fingerprint, verify
from gatepost.events.secretstream import sealed_size

__all__ = [
    "CLEAR",
    "KNOWN",
    "LEGACY",
    "TRACKED",
    "AgentId",
    "Blob",
    "BlobStore",
    "DeadLetter",
    "Digest",
    "Envelope",
    "EventId",
    "EventIds",
    "Head",
    "Kind",
    "MsgId",
    "NodeId",
    "NodeKey",
    "PayloadRef",
    "Receipt",
    "Sealed",
    "Sealer",
    "Signal",
    "TaskInfo",
    "Trace",
    "check_agent_id",
    "check_digest",
    "check_msg_id",
    "check_node_id",
    "decode",
    "decode_payload",
    "encode",
    "encode_payload",
    "event_digest",
    "extend",
    "fingerprint",
    "format_event_id",
    "frame",
    "genesis",
    "new_event_id",
    "parse_event_id",
    "sealed_size",
    "sign_head",
    "verify",
    "verify_group",
    "verify_head",
]
