"""The gateway's own archive, for reading, in a separate thread beside the traffic.

Cut-off readers get events from it that have left the journal, and traces find pruned events there.
"""

import asyncio
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import astuple

from gatepost.config import ArchiveSettings
from gatepost.delivery import LocalNode
from gatepost.delivery.frames import CommitGroup
from gatepost.errors import GatepostError, InternalError
from gatepost.events import EventKind, parse_event_id
from gatepost.events.kinds import TRACKED_KINDS
from gatepost.links.event_proof import EvidenceRead, build_archived_group, merge_groups
from gatepost.links.outbox_feed import ArchivedPage, PageRead, PrunedStretch
from gatepost.proof.proof_file import ProvenGroup

if TYPE_CHECKING:
    from gatepost.archive.segment_reader import ArchiveFindings, SegmentReader

log = logging.getLogger(__name__)

SEARCH_SECS = 2.0
# A reader whose events cannot be read this often in a row is told to skip them.
_MAX_FAILURES = 5
_PROOF_KINDS = {*TRACKED_KINDS, EventKind.ACK, EventKind.DEAD_LETTER}


class OwnArchiveReader:
    """Reads one request at a time. Without `archive.uri` there is nothing to read."""

    def __init__(self, settings: ArchiveSettings, node: LocalNode) -> None:
        self._settings = settings
        self._node = node
        self._thread = ThreadPoolExecutor(1, "archive-reader")
        self._segments: SegmentReader | None = None
        # Reader, or None for all relays → failures in a row.
        self._failures: dict[str | None, int] = {}

    @property
    def is_configured(self) -> bool:
        return bool(self._settings.uri)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    async def find_events(self, event_id: bytes) -> "ArchiveFindings | None":
        """An event of ours and the events that refer to it; None without an archive."""
        if not self.is_configured:
            return None
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._search, event_id)

    def read_page(self, wanted: PrunedStretch, done: PageRead) -> None:
        """Call `done` on the event loop."""
        if not self.is_configured:
            done(ArchivedPage(wanted.upto, [], missing=True), None)
            return
        loop = asyncio.get_running_loop()
        reading = self._thread.submit(self._read_stretch, wanted)
        reading.add_done_callback(
            lambda future: loop.call_soon_threadsafe(partial(self._finish, wanted, done, future))
        )

    async def find_evidence(self, event_id: str, peer: str | None = None) -> list[ProvenGroup]:
        """The archived groups of our outbox about a message, for a peer or for this gateway."""
        if not self.is_configured:
            return []
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._search_evidence, event_id, peer)

    def read_evidence(self, event_id: str, peer: str | None, done: EvidenceRead) -> None:
        """Search the archive, then call `done` on the event loop; it is empty if unreadable."""
        if not self.is_configured:
            done([])
            return
        loop = asyncio.get_running_loop()
        reading = self._thread.submit(self._search_evidence, event_id, peer)
        reading.add_done_callback(
            lambda future: loop.call_soon_threadsafe(_finish_evidence, done, future)
        )

    # -- in the thread

    def _open_segments(self) -> "SegmentReader":
        from gatepost.archive.archive_store import ArchiveStore
        from gatepost.archive.segment_reader import SegmentReader

        if self._segments is None:
            store = ArchiveStore.open(self._settings.uri)
            self._segments = SegmentReader(store, self._node.id, self._node.key.public)
        return self._segments

    def _search(self, event_id: bytes) -> "ArchiveFindings":
        deadline = time.monotonic() + SEARCH_SECS
        return self._open_segments().find_events(event_id, lambda: time.monotonic() > deadline)

    def _search_evidence(self, event_id: str, peer: str | None) -> list[ProvenGroup]:
        segments, node, groups = self._open_segments(), self._node.id, list[ProvenGroup]()
        for found in self._search(parse_event_id(event_id)).events:
            if found.kind not in _PROOF_KINDS or peer not in (None, found.to_node):
                continue
            if any(each.first <= found.seq <= each.last for each in groups):
                continue
            whole = segments.read_group_of(found.seq)
            if whole is not None:
                head = astuple(whole.group)
                group = build_archived_group(
                    node, whole.incarnation, head, whole.rows, event_id, peer
                )
                groups = merge_groups(groups, [group] if group else [])
        return groups

    def _read_stretch(self, wanted: PrunedStretch) -> ArchivedPage:
        return read_archived_page(self._open_segments(), wanted)

    # -- on the event loop

    def _finish(
        self, wanted: PrunedStretch, done: PageRead, reading: "Future[ArchivedPage]"
    ) -> None:
        if reading.cancelled():
            return
        error = reading.exception()
        if error is None:
            self._failures.pop(wanted.reader, None)
            done(reading.result(), None)
            return
        reader = wanted.reader or "relays"
        log.warning("archived events for %s cannot be read: %s", reader, error)
        count = self._failures[wanted.reader] = self._failures.get(wanted.reader, 0) + 1
        if count >= _MAX_FAILURES:
            done(ArchivedPage(wanted.upto, [], missing=True), None)
        elif isinstance(error, GatepostError):
            done(None, error)
        else:
            done(None, InternalError("the archive cannot be read"))


def _finish_evidence(done: EvidenceRead, reading: "Future[list[ProvenGroup]]") -> None:
    if reading.cancelled():
        return
    if error := reading.exception():
        log.warning("the archive cannot be searched for evidence: %s", error)
    done([] if error else reading.result())


def read_archived_page(segments: "SegmentReader", wanted: PrunedStretch) -> ArchivedPage:
    incarnation, stretch = wanted.incarnation, (wanted.after, wanted.upto)
    if wanted.reader is None:
        found = segments.read_groups(incarnation, *stretch)
    else:
        found = segments.read_stretch(incarnation, wanted.reader, *stretch)
    groups = [CommitGroup(*astuple(group)) for group in found.groups]
    return ArchivedPage(found.upto, found.rows, found.missing, groups)
