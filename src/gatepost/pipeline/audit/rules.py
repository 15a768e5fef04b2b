"""The rules an audit checks: a code and a sentence for each promise of the protocol.

Causes come first: missing events also explain receipts without their messages.
"""

from typing import Final

RULES: Final[dict[str, str]] = {
    "missing_archive": "A node whose events other gateways have read has an archive.",
    "unknown_node": "Only nodes of the room have an archive here.",
    "unsigned_manifest": "The list of a node's archived files is signed by the node.",
    "room_facts": "A gateway's facts of the room are signed, and other gateways agree with them.",
    "missing_events": "An outbox is archived as far as other gateways have read it.",
    "altered_segment": "An archived file is the one its signed manifest lists.",
    "altered_event": "An archived event has the digest that was signed for it.",
    "chain_gap": "Events of an outbox are numbered without gaps.",
    "chain_fork": "Every commit group continues the hash chain of the group before it, and is the"
    " one that other gateways saw.",
    "bad_signature": "Every commit group is signed by the key of its node.",
    "revoked_node": "Events that a node wrote after it was revoked do not count.",
    "two_publishers": "A term has one publisher.",
    "payload_over_limit": "A payload over the limit travels as a blob, not inside its event.",
    "receipt_without_message": "A receipt is about an event of the outbox it is addressed to.",
    "processed_before_accepted": "A node processes only events it has accepted before.",
    "doubled_turn": "One event completes at most one turn.",
    "fifo_broken": "Events from one agent to another are processed in the order of sending.",
}

# Not a promise, but a reason why the audit cannot judge a node.
UNJUDGED: Final = "unjudged"
UNJUDGED_SENTENCE: Final = "The archive holds enough to judge its nodes by."

SENTENCES: Final = RULES | {UNJUDGED: UNJUDGED_SENTENCE}
# Rule → its position in a report.
RULE_ORDER: Final = {rule: place for place, rule in enumerate(SENTENCES)}
