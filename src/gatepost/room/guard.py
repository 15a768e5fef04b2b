"""The hard guard: nothing comes in that is not a signed record in its own place.

It looks at one update and at nothing that depends on what arrived before, except to tell a
duplicate and to name the rule that was broken. So what one honest replica takes every other takes
too, and whoever passes on what it took is never cut off for it: not a relay, not for the records
of a node that was revoked since, not for a claim that lost. One bad record drops the whole update.
"""

from gatepost.room.admission import Chains, Genesis
from gatepost.room.document import Document
from gatepost.room.signing import Signed, open_signed
from gatepost.room.update import Item, decode


class Guard:
    def __init__(self, genesis: Genesis) -> None:
        self._chains = Chains(genesis)

    def inspect(self, update: bytes, document: Document) -> list[Signed]:
        """Every record in the update, or RoomViolation. The document is only looked at."""
        decoded = decode(update)
        records = [self._open(item, document) for item in decoded.items]
        if decoded.deletes:
            document.check_deletes(decoded.deletes, records)
        return records

    def _open(self, item: Item, document: Document) -> Signed:
        signed = document.same(item) or open_signed(item.record, item.signature, self._chains)
        document.check_item(item, signed)
        return signed
