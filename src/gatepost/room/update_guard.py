"""Checks of incoming updates: every value must be a signed record in its own slot.

The verdict depends on the update alone, not on earlier arrivals; the stored document serves only to
recognise duplicates and to name the broken rule. All honest replicas therefore accept the same
updates, and a peer is never cut off for relaying an update it accepted itself, not even if the
writer was revoked since or the claim lost. One bad record rejects the whole update.
"""

from gatepost.room.admission_chain import ChainVerifier, Genesis
from gatepost.room.document import RoomDocument
from gatepost.room.signed_record import SignedRecord, open_signed_record
from gatepost.room.yjs_update import YjsItem, decode_update


class UpdateGuard:
    def __init__(self, genesis: Genesis) -> None:
        self._chains = ChainVerifier(genesis)

    def check_update(self, update: bytes, document: RoomDocument) -> list[SignedRecord]:
        """Return every record of the update, or raise RoomViolation. The document only is read."""
        decoded = decode_update(update)
        records = [self._open_item(item, document) for item in decoded.items]
        if decoded.deletes:
            document.check_deletes(decoded.deletes, records)
        return records

    def open_record(self, text: str, signature: str) -> SignedRecord:
        return open_signed_record(text, signature, self._chains)

    def _open_item(self, item: YjsItem, document: RoomDocument) -> SignedRecord:
        signed = document.matching_record(item) or open_signed_record(
            item.record, item.signature, self._chains
        )
        document.check_item(item, signed)
        return signed
