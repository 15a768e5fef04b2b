"""Checks of incoming updates: every value must be a signed record in its own slot.

The verdict depends on the update alone, not on earlier arrivals; the stored document serves only to
recognise duplicates and to name the broken rule. All honest replicas therefore accept the same
updates, and a peer is never cut off for relaying an update it accepted itself, not even if the
writer was revoked since or the claim lost. One bad record rejects the whole update.
"""

from gatepost.room.admission import Chains, Genesis
from gatepost.room.document import Document
from gatepost.room.signing import Signed, open_signed
from gatepost.room.update import Item, decode


class Guard:
    def __init__(self, genesis: Genesis) -> None:
        self._chains = Chains(genesis)

    def inspect(self, update: bytes, document: Document) -> list[Signed]:
        """Return every record of the update, or raise RoomViolation. The document only is read."""
        decoded = decode(update)
        records = [self._open(item, document) for item in decoded.items]
        if decoded.deletes:
            document.check_deletes(decoded.deletes, records)
        return records

    def _open(self, item: Item, document: Document) -> Signed:
        signed = document.same(item) or open_signed(item.record, item.signature, self._chains)
        document.check_item(item, signed)
        return signed
