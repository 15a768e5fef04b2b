"""All links of one gateway and their parts. Gateways and simulations share this code.

Every connection to another gateway carries one link. A peer's outbox is read over one link only;
when that link ends, another one to the same peer takes over. The backbone role decides the parts:
only a backbone gateway keeps outboxes for others and forwards their blob requests.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from msgspec import Struct

from gatepost.delivery.abuse import AbuseKind
from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.frames import LinkFrame, decode_frame, encode_frame
from gatepost.delivery.local_node import LocalNode
from gatepost.errors import Forbidden, GatepostError, InternalError, LinkError
from gatepost.journal.outbox import EVERYBODY, Outbox, OutboxGroup
from gatepost.journal.transaction import Tx
from gatepost.links.blob_fetch import BlobFetcher
from gatepost.links.blob_link_part import BlobLinkPart
from gatepost.links.blob_ports import BlobFileAccess, FetchLimits
from gatepost.links.event_proof import ArchivedEvidence
from gatepost.links.link_port import LinkPart
from gatepost.links.log_part import LogPart, TaskLogs
from gatepost.links.outbox_feed import ArchivedOutbox
from gatepost.links.outbox_link import OutboxLink
from gatepost.links.outbox_replica import replicated_sources
from gatepost.links.reach_part import ReachDesk, ReachPart
from gatepost.links.relay_host import REPLICA_KEEP_MS, RelayHost
from gatepost.links.relay_reader import RelayReader, RelayRetry
from gatepost.links.source_feed import SourceFeedPart
from gatepost.links.trace_part import CountedLedger, TraceForwarder, TracePart

log = logging.getLogger(__name__)

_HOUR_MS = 3_600_000
# The overhead of a frame in bytes, until the journal has taken it.
_FRAME_COST = 256


class PeerLinkSettings(Struct, frozen=True):
    """Times in milliseconds.

    `max_untaken_bytes` limits the frames of a peer that wait for the journal. A peer that respects
    its credit stays below it.
    """

    window_bytes: int
    fetch: FetchLimits
    relay_retry: RelayRetry = RelayRetry()
    replica_keep_ms: int = REPLICA_KEEP_MS
    prune_every_ms: int = 60_000
    resume_every_ms: int = 600_000
    max_untaken_bytes: int = 64 << 20


class FrameConnection(Protocol):
    """An authenticated connection to another gateway that carries whole frames in order."""

    def send_frame(self, data: bytes) -> None: ...

    @property
    def is_congested(self) -> bool:
        """Whether many bytes are queued. `PeerLink.resume_requests` is called when it ends."""

    def end(self, error: GatepostError) -> None:
        """Close the connection. `PeerLinks.remove_link` is called once it is closed."""


class LinkedGateway(Protocol):
    """The gateway its links belong to."""

    @property
    def node(self) -> LocalNode: ...

    @property
    def coordinator(self) -> DeliveryCoordinator: ...

    @property
    def outbox(self) -> Outbox: ...

    def now(self) -> int: ...

    def uptime(self) -> int: ...

    def commit(
        self,
        operation: Callable[[Tx], Any],
        done: Callable[[Any, GatepostError | None], None],
        weight: int = 1,
    ) -> None:
        """Run `operation` in a transaction and call `done` where links run."""

    def is_backbone(self, node: str) -> bool: ...


class PeerLinks:
    """`start` it once, then call `tend` every second or so."""

    def __init__(
        self,
        gateway: LinkedGateway,
        files: BlobFileAccess,
        settings: PeerLinkSettings,
        archive: ArchivedOutbox | None = None,
        evidence: ArchivedEvidence | None = None,
        ledger: CountedLedger | None = None,
    ) -> None:
        self.gateway = gateway
        self.archive = archive
        self.settings = settings
        node, coordinator, window = gateway.node, gateway.coordinator, settings.window_bytes
        self.relay_host = RelayHost(coordinator, window, settings.replica_keep_ms)
        self.relay_reader = RelayReader(node, coordinator, window, settings.relay_retry)
        self.traces = TraceForwarder(coordinator, node.clock, evidence, ledger)
        self.logs = TaskLogs(node.clock)
        self.reach = ReachDesk(node.clock)
        self.fetcher = BlobFetcher(
            node, coordinator, files, gateway.commit, gateway.now, settings.fetch
        )
        self._links: list[PeerLink] = []
        self._prune_due = self._resume_due = 0
        gateway.outbox.on_published = self._publish_group

    def start(self) -> None:
        """Load the list of outboxes that were kept for others before."""
        self.gateway.commit(replicated_sources, self._follow_sources)

    def _follow_sources(self, sources: set[str] | None, error: GatepostError | None) -> None:
        for source in sorted(sources or ()):
            self.relay_host.want_source(source)

    # -- links come and go

    def add_link(self, connection: FrameConnection, peer: str) -> "PeerLink":
        """`open` the link at the side that dialled; the other side opens with the first frame."""
        link = PeerLink(self, connection, peer)
        self._links.append(link)
        return link

    def remove_link(self, link: "PeerLink") -> None:
        """The connection is closed."""
        link.ended = True
        self._links.remove(link)
        link.outbox.close()
        self.mark_live()
        self._read_elsewhere(link.peer)

    def links_to(self, peer: str) -> "list[PeerLink]":
        return [link for link in self._links if link.peer == peer]

    def linked_peers(self) -> set[str]:
        return {link.peer for link in self._links if link.outbox.greeted}

    def relay_links(self, node: str) -> "list[PeerLink]":
        """The links of relays that may reach a node; those that have its outbox come first."""
        able = [link for link in self._links if link.outbox.greeted and link.reader.relays]
        return sorted(able, key=lambda link: not link.reader.has_source(node))

    def acked_seq(self, peer: str) -> int:
        """The position that a peer reports in our outbox; the journal notes it a little later."""
        return max((link.outbox.acked_seq for link in self.links_to(peer)), default=0)

    # -- reading theirs

    def can_read(self, link: "PeerLink") -> bool:
        """Whether no other link reads this peer's outbox."""
        others = (other for other in self.links_to(link.peer) if other is not link)
        return not any(other.outbox.reading for other in others)

    def _read_elsewhere(self, peer: str) -> None:
        for link in self.links_to(peer):
            if link.outbox.greeted and not link.outbox.reading and self.can_read(link):
                link.outbox.read_outbox()

    # -- publishing ours

    def _publish_group(self, group: OutboxGroup) -> None:
        for link in list(self._links):
            link.outbox.publish_group(group)

    def mark_live(self) -> None:
        """Tell the outbox which nodes get events at once, so that it notes these as sent."""
        live = {link.peer for link in self._links if link.outbox.feed is not None}
        if any(link.source.is_followed for link in self._links):
            live.add(EVERYBODY)
        self.gateway.outbox.live_nodes = frozenset(live)

    # -- now and then

    def room_changed(self) -> None:
        """The room changed: serve relay readers whose wanted members are known now."""
        self.relay_host.retry_unserved()

    def tend(self, elapsed_ms: int) -> None:
        """Periodic work of links, relays and fetches. `elapsed_ms` never goes back."""
        for link in list(self._links):
            link.refresh_role()
            link.outbox.save_progress()
        self.relay_reader.refresh_requests()
        self.relay_host.flush_readings()
        self.relay_host.retry_restarts()
        self.fetcher.expire_requests()
        if elapsed_ms >= self._prune_due:
            self._prune_due = elapsed_ms + self.settings.prune_every_ms
            self.relay_host.prune_replicas(self.gateway.commit)
        if elapsed_ms >= self._resume_due:
            self._resume_due = elapsed_ms + self.settings.resume_every_ms
            self.fetcher.resume_fetches()


class PeerLink:
    """One link, its parts, and the port through which they reach connection and journal."""

    def __init__(self, links: PeerLinks, connection: FrameConnection, peer: str) -> None:
        self._links = links
        self._gateway = gateway = links.gateway
        self._connection = connection
        self.peer = peer
        self.ended = False
        self._opened = False
        self._untaken_bytes = 0
        self._frame_bytes = 0
        node, coordinator, window = gateway.node, gateway.coordinator, links.settings.window_bytes
        theirs, ours = gateway.is_backbone(peer), gateway.is_backbone(node.id)
        self.trace = TracePart(self, node, peer, links.traces, forwards=ours)
        self.logs = LogPart(self, peer, links.logs)
        self.reach = ReachPart(self, peer, links.reach)
        is_relay = partial(gateway.is_backbone, peer)
        self.source = SourceFeedPart(
            self, node, coordinator, window, links.mark_live, is_relay, links.archive
        )
        self.reader = links.relay_reader.make_part(self, peer, relays=theirs)
        self._blobs = BlobLinkPart(links.fetcher, self, peer, relays=theirs, forwards=ours)
        parts: list[LinkPart] = [self.trace, self.logs, self.reach]
        parts += [self.source, self.reader, self._blobs]
        self._relay = links.relay_host.make_part(self, peer) if ours else None
        if self._relay is not None:
            parts.append(self._relay)
        can_read = partial(links.can_read, self)
        self.outbox = OutboxLink(
            self, node, coordinator, peer, window, parts, can_read, links.mark_live, links.archive
        )

    def refresh_role(self) -> None:
        """The room may show a peer as backbone only after it was linked."""
        self.reader.relays = self._blobs.relays = self._gateway.is_backbone(self.peer)
        self.source.resume_requests()
        if self.source.is_refused():
            problem = f"{self.peer} follows our outbox, and is no backbone node"
            abuse = self._gateway.coordinator.abuse
            abuse.report_abuse(self.peer, AbuseKind.FOREIGN_OUTBOX, problem)
            self.end(Forbidden(problem))

    def resume_requests(self) -> None:
        """The peer has taken most of the frames that were queued for it."""
        if self.ended:
            return
        self.source.resume_requests()
        self._blobs.resume_requests()
        if self._relay is not None:
            self._relay.resume_requests()

    def open(self) -> None:
        """Introduce ourselves, once."""
        if not self._opened:
            self._opened = True
            self.outbox.open()

    def receive(self, data: bytes) -> None:
        """A frame came from the peer."""
        if self.ended:
            return
        self.open()
        self._frame_bytes = len(data)
        try:
            self.outbox.receive_frame(decode_frame(data))
        except GatepostError as error:
            self.end(error)
        finally:
            self._frame_bytes = 0

    # -- the port of the link and its parts

    def send(self, frame: LinkFrame) -> None:
        if not self.ended:
            self._connection.send_frame(encode_frame(frame))

    @property
    def is_congested(self) -> bool:
        return self._connection.is_congested

    def commit(
        self, operation: Callable[[Tx], Any], done: Callable[[Any], None], weight: int = 1
    ) -> None:
        cost = self._frame_bytes + _FRAME_COST
        self._untaken_bytes += cost
        if self._untaken_bytes > self._links.settings.max_untaken_bytes:
            self.end(LinkError(f"{self.peer} sends more than its credit allows"))
            return
        self._gateway.commit(operation, partial(self._call_back, done, cost), weight)

    def _call_back(
        self, done: Callable[[Any], None], cost: int, value: Any, error: GatepostError | None
    ) -> None:
        self._untaken_bytes -= cost
        if self.ended:
            return
        try:
            if error is not None:
                raise error
            done(value)
        except GatepostError as problem:
            self.end(problem)
        except Exception:
            log.exception("a link failed unexpectedly")
            self.end(InternalError("an internal error; see the log"))

    def now(self) -> int:
        return self._gateway.now()

    def uptime(self) -> int:
        return self._gateway.uptime()

    def end(self, error: GatepostError) -> None:
        """Close the connection; the side that dialled dials again."""
        if self.ended:
            return
        self.ended = True
        log.warning("the link to %s ends: %s", self.peer, error.message)
        if isinstance(error, LinkError | InternalError):
            # One incident an hour, however often the peer comes back.
            hour = self.now() // _HOUR_MS * _HOUR_MS
            incidents, subject = self._gateway.coordinator.incidents, f"{self.peer}@{hour}"
            self._gateway.commit(
                lambda tx: incidents.raise_(tx, "link_error", subject, error.message), _log_failure
            )
        self._connection.end(error)


def _log_failure(value: object, error: GatepostError | None) -> None:
    if error is not None:
        log.warning("an incident could not be noted: %s", error.message)
