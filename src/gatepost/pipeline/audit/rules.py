"""The promises an audit checks: one code and one sentence each."""

from typing import Final

RULES: Final[dict[str, str]] = {
    "chain_gap": "Events of an outbox are numbered without gaps.",
    "chain_fork": "Every commit group continues the hash chain of the group before it.",
    "bad_signature": "Every commit group is signed by the key of its node.",
    "altered_event": "An archived event has the digest that was signed for it.",
    "altered_segment": "An archived file is the one its signed manifest lists.",
    "unsigned_manifest": "The list of a node's archived files is signed by the node.",
    "room_facts": "What a gateway says of the room it signed, and others do not contradict it.",
    "doubled_turn": "One event completes at most one turn.",
    "receipt_without_message": "A receipt is about an event of the outbox it is addressed to.",
    "processed_before_accepted": "A node processes only what it has accepted before.",
    "fifo_broken": "What one agent sends to another is processed in the order of sending.",
    "revoked_node": "Nothing counts that a node wrote after it was shut out.",
    "payload_over_limit": "A payload over the limit travels as a blob, not inside its event.",
    "two_publishers": "A term has one publisher.",
}
