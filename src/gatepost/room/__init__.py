"""The shared room: signed records in a Yjs document, the rules for writing and reading them."""

from gatepost.room.admission import Chains, Genesis, Link, admit, extend, found
from gatepost.room.awareness import Awareness, Presence
from gatepost.room.ownership import Owned, handed_over, transfer
from gatepost.room.records import (
    MAPS,
    Agent,
    Capability,
    Coordination,
    Delivery,
    Eligibility,
    Invite,
    Node,
    Record,
    Retention,
    Review,
    Revocation,
    Routing,
    Skill,
    Term,
    Transfer,
    claim_key,
)
from gatepost.room.room import Applied, Room, room_id
from gatepost.room.signing import Author, Signed
from gatepost.room.standing import Member, Standing
from gatepost.room.sync import MAX_MESSAGE, Peer
from gatepost.room.view import View

__all__ = [
    "MAPS",
    "MAX_MESSAGE",
    "Agent",
    "Applied",
    "Author",
    "Awareness",
    "Capability",
    "Chains",
    "Coordination",
    "Delivery",
    "Eligibility",
    "Genesis",
    "Invite",
    "Link",
    "Member",
    "Node",
    "Owned",
    "Peer",
    "Presence",
    "Record",
    "Retention",
    "Review",
    "Revocation",
    "Room",
    "Routing",
    "Signed",
    "Skill",
    "Standing",
    "Term",
    "Transfer",
    "View",
    "admit",
    "claim_key",
    "extend",
    "found",
    "handed_over",
    "room_id",
    "transfer",
]
