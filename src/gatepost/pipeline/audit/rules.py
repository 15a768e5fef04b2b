"""The rules an audit checks: a code and a sentence for each promise of the protocol."""

from typing import Final

RULES: Final[dict[str, str]] = {
    "chain_gap": "Events of an outbox are numbered without gaps.",
    "chain_fork": "Every commit group continues the hash chain of the group before it.",
    "bad_signature": "Every commit group is signed by the key of its node.",
    "altered_event": "An archived event has the digest that was signed for it.",
    "altered_segment": "An archived file is the one its signed manifest lists.",
    "unsigned_manifest": "The list of a node's archived files is signed by the node.",
    "room_facts": "A gateway's facts of the room are signed, and other gateways agree with them.",
    "doubled_turn": "One event completes at most one turn.",
    "receipt_without_message": "A receipt is about an event of the outbox it is addressed to.",
    "processed_before_accepted": "A node processes only events it has accepted before.",
    "fifo_broken": "Events from one agent to another are processed in the order of sending.",
    "revoked_node": "Events that a node wrote after it was revoked do not count.",
    "payload_over_limit": "A payload over the limit travels as a blob, not inside its event.",
    "two_publishers": "A term has one publisher.",
}
