"""Known-bad links: each forgets one thing that matters of relays, blobs or reading.

A mutant is applied to the real code for as long as its context lasts.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from gatepost.delivery.frames import EventsFrame
from gatepost.delivery.inbox.cursors import OutboxCursor
from gatepost.errors import ChainError, LinkError
from gatepost.events import Blob, BlobStore, ChainHead, Envelope, decode_event, extend_chain
from gatepost.journal import Tx
from gatepost.links import blob_fetch, proof, relay_reader
from gatepost.links.blob_fetch import BlobFetch, BlobFetcher
from gatepost.links.peer_links import PeerLinks
from gatepost.links.relay_reader import RelayReaderPart

LinkMutant = AbstractContextManager[Any]


def relay_proof_not_checked() -> LinkMutant:
    """A relay is believed, whatever it sends."""

    def believe(frame: EventsFrame, incarnations: Any, key: bytes) -> list[Envelope]:
        if not frame.events:
            raise LinkError("a frame has no events")
        return [decode_event(body) for body in frame.events]

    return patch.object(relay_reader, "check_relayed_events", believe)


def relay_signature_not_checked() -> LinkMutant:
    """Digests and chain have to agree, but nobody looks who signed them."""

    def agree(previous: bytes, digests: Sequence[bytes], head: ChainHead, key: bytes) -> None:
        if (
            len(digests) != head.last - head.first + 1
            or extend_chain(previous, digests) != head.chain
        ):
            raise ChainError("digests and chain do not agree")

    return patch.object(proof, "verify_group", agree)


def relay_incarnations_not_checked() -> LinkMutant:
    """A relay may say that a source was restored."""
    return patch.object(relay_reader, "check_incarnations", lambda *_: None)


def relay_gap_not_checked() -> LinkMutant:
    """Events that a relay leaves out are not missed."""
    honest = RelayReaderPart._take_batch

    def careless(self: RelayReaderPart, tx: Tx, frame: Any, envelopes: Any) -> Any:
        with patch.object(OutboxCursor, "follows", lambda self, envelope: True):
            return honest(self, tx, frame, envelopes)

    return patch.object(RelayReaderPart, "_take_batch", careless)


def restored_reader_trusts_relay() -> LinkMutant:
    """A restored reader takes events from a relay that its lost journal may have dealt with."""
    return patch.object(relay_reader, "is_in_doubt", lambda tx, source: False)


def blob_digest_not_checked() -> LinkMutant:
    """A fetched blob is kept, whatever is in it."""

    def keep(self: BlobStore, digest: str) -> Blob:
        blob = Blob(digest, self._partial_path(digest).stat().st_size)
        self._publish_blob(self._partial_path(digest), blob)
        return blob

    return patch.object(BlobStore, "complete_fetch", keep)


def accepted_before_blob() -> LinkMutant:
    """An event is accepted as soon as the first piece of its blob is asked for."""
    honest = BlobFetcher._request_pieces

    def hasty(self: BlobFetcher, fetch: BlobFetch) -> None:
        if not fetch.asked:
            came = self._coordinator.blob_arrived
            self._commit(lambda tx: came(tx, fetch.digest), lambda value, error: None)
        honest(self, fetch)

    return patch.object(BlobFetcher, "_request_pieces", hasty)


@contextmanager
def blob_requests_never_expire() -> Iterator[None]:
    """A lost range is waited for, for ever."""
    honest = BlobFetcher.expire_requests

    def patient(self: BlobFetcher) -> None:
        for fetch in self._fetches.values():
            fetch.requested = dict.fromkeys(fetch.requested, 2**60)
        with patch.object(blob_fetch, "_cap_deadlines", lambda fetches, limits, now: None):
            honest(self)

    with patch.object(BlobFetcher, "expire_requests", patient):
        yield


def nothing_read_elsewhere() -> LinkMutant:
    """When the link that reads an outbox ends, no other link takes over."""
    return patch.object(PeerLinks, "_read_elsewhere", lambda self, peer: None)


# Each mutant, with the faults that make it show.
LINK_MUTANTS: dict[str, tuple[Callable[[], LinkMutant], list[str]]] = {
    mutant.__name__: (mutant, kinds)
    for mutant, kinds in (
        (relay_proof_not_checked, ["relay_forgery"]),
        (relay_signature_not_checked, ["relay_forgery"]),
        (relay_incarnations_not_checked, ["relay_forgery", "drop"]),
        (relay_gap_not_checked, ["relay_omission"]),
        (restored_reader_trusts_relay, ["restore", "drop"]),
        (blob_digest_not_checked, ["blob_forgery"]),
        (accepted_before_blob, ["blob_loss"]),
        (blob_requests_never_expire, ["blob_loss"]),
        (nothing_read_elsewhere, ["second_connection", "drop"]),
    )
}
