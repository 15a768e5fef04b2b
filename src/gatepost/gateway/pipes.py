"""Links over the connections gateways have: one WebSocket carries the room and both outboxes."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from gatepost.delivery.blob_fetch import BlobFetcher, FetchLimits
from gatepost.delivery.event_trace import TracePart
from gatepost.delivery.frames import LinkFrame, decode_frame, encode_frame
from gatepost.delivery.outbox_link import LinkPart, OutboxLink
from gatepost.delivery.relay_host import RelayHost
from gatepost.delivery.relay_reader import RelayReader
from gatepost.delivery.source_feed import SourceFeedPart
from gatepost.errors import GatepostError, Internal, LinkError
from gatepost.events import sealed_size
from gatepost.gateway.blob_files import BlobFiles
from gatepost.gateway.connection import Connection
from gatepost.gateway.room import RoomKeeper
from gatepost.journal import Tx
from gatepost.journal.outbox import EVERYBODY, Appended
from gatepost.routing import Directory, directory_of

log = logging.getLogger(__name__)

# The room is looked at again this often at most, and at least.
_SOONEST_SECS = 0.05
_LATEST_SECS = 1.0
# A gateway we have no connection to shows signs of life in the room once a minute.
_HEARTBEAT_SECS = 90.0
_PRUNE_SECS = 60.0
_RESUME_SECS = 600.0


class Pipes:
    """Every connection to another gateway gets a link; each outbox is read over one of them."""

    def __init__(self, keeper: RoomKeeper) -> None:
        self._keeper = keeper
        self._core = keeper.core
        self._links: dict[Connection, LinkEnd] = {}
        self._presence = Presence(keeper)
        core, window = self._core, self._core.settings.delivery.window_bytes
        core.outbox.published = self._published
        self.directory = Directory()
        self.host = RelayHost(core.messages, window)
        self.reader = RelayReader(core.node, core.messages, window)
        self.fetcher = BlobFetcher(
            core.node.id,
            core.messages,
            BlobFiles(core.blobs, core.storers),
            self._commit,
            core.clock.now,
            FetchLimits(max_bytes=sealed_size(core.settings.limits.max_blob_bytes)),
        )
        core.on_blob_wanted = self.fetcher.want_blob
        self._pruned_at = self._resumed_at = 0.0

    # -- connections come and go

    def dialled(self, connection: Connection) -> None:
        """We opened it, so we speak first: nobody else can tell a gateway from a mere reader."""
        self._end_of(connection).link.open()

    def joined(self, connection: Connection) -> None:
        """They opened it; a link starts when they say so."""
        connection.on_frame = partial(self._first, connection)

    def left(self, connection: Connection) -> None:
        end = self._links.pop(connection, None)
        if end is not None:
            end.ended = True
            end.link.close()
            self.go_live()
            self._read_elsewhere(end.link.peer)
        self._presence.saw(connection.node)

    def links_to(self, node: str) -> "list[LinkEnd]":
        return [end for end in self._links.values() if end.link.peer == node]

    def linked(self) -> set[str]:
        return {end.link.peer for end in self._links.values() if end.link.greeted}

    def silence(self, node: str) -> float:
        """Seconds since its last sign of life: on a connection, or else in the room."""
        heard = [each.heard for each in self._keeper.connections if each.node == node]
        if heard:
            return max(0.0, asyncio.get_running_loop().time() - max(heard))
        member = self._keeper.current.view.nodes[node]
        return max(0, self._core.clock.now() - member.record.last_heartbeat_at) / 1000

    def acked(self, node: str) -> int:
        """How far a node says it has taken our outbox, though that may not be on disk yet."""
        return max((end.link.acked_seq for end in self.links_to(node)), default=0)

    def _first(self, connection: Connection, data: bytes) -> None:
        end = self._end_of(connection)
        end.link.open()
        end.receive(data)

    def _end_of(self, connection: Connection) -> "LinkEnd":
        end = LinkEnd(self, connection)
        self._links[connection] = end
        connection.on_frame = end.receive
        return end

    def may_read(self, end: "LinkEnd") -> bool:
        """One link to a gateway is enough to read its outbox."""
        others = (other for other in self.links_to(end.link.peer) if other is not end)
        return not any(other.link.reading for other in others)

    def _read_elsewhere(self, node: str) -> None:
        for end in self.links_to(node):
            if end.link.greeted and not end.link.reading and self.may_read(end):
                end.link.read_outbox()

    # -- our outbox

    def _published(self, group: Appended) -> None:
        for end in list(self._links.values()):
            end.link.publish_group(group)

    def go_live(self) -> None:
        """The writer marks as sent what these nodes are about to hear."""
        ends = list(self._links.values())
        live = {end.link.peer for end in ends if end.link.feed is not None}
        if any(end.source.is_followed for end in ends):
            live.add(EVERYBODY)
        self._core.outbox.live = frozenset(live)

    def is_backbone(self, node: str) -> bool:
        member = self._keeper.current.view.nodes.get(node)
        return member is not None and member.is_backbone

    # -- what routing knows

    async def run(self) -> None:
        """For as long as the gateway runs: keep the picture of the room that routing has."""
        self._core.submit(self.host.load_sources)
        while True:
            changes = self._keeper.changes
            try:
                await self._look()
                self._tend()
            except GatepostError as error:
                log.warning("routing goes by an old picture of the room: %s", error.message)
            except Exception:
                log.exception("routing goes by an old picture of the room")
            await asyncio.sleep(_SOONEST_SECS)
            await self._keeper.changed_since(changes, _LATEST_SECS)

    def _tend(self) -> None:
        """What relays and fetches have to do now and then."""
        now = asyncio.get_running_loop().time()
        for end in self._links.values():
            end.look()
        self.reader.refresh_requests()
        self.fetcher.expire_requests()
        if now >= self._pruned_at + _PRUNE_SECS:
            self._pruned_at = now
            self.host.prune_replicas(
                lambda operation, done: self._commit(operation, _if_done(done))
            )
        if now >= self._resumed_at + _RESUME_SECS:
            self._resumed_at = now
            self.fetcher.resume_fetches()

    def _commit(
        self, operation: Callable[[Tx], Any], done: Callable[[Any, GatepostError | None], None]
    ) -> None:
        try:
            self._core.writer.submit(operation, done)
        except GatepostError as error:
            done(None, error)

    async def _look(self) -> None:
        if self._keeper.room is None:
            return
        directory = directory_of(self._keeper.room.view, self._presence.is_online)
        if directory != self.directory:
            room_changed = self._core.messages.room_changed
            await self._core.commit(lambda tx: room_changed(tx, directory))
            self.directory = directory
            self.host.retry_unserved()


class LinkEnd:
    """One link's port: the connection it runs over, and this gateway's journal."""

    def __init__(self, pipes: Pipes, connection: Connection) -> None:
        self._pipes = pipes
        self._connection = connection
        self._core = pipes._core
        self.ended = False
        window = self._core.settings.delivery.window_bytes
        self.link = OutboxLink(self, self._core.node, self._core.messages, connection.node, window)
        self.link.may_read = lambda: pipes.may_read(self)
        self.link.on_live = pipes.go_live
        self.trace = TracePart(self, self._core.node, connection.node)
        self.link.parts += [self.trace, *self._parts(window)]

    def _parts(self, window: int) -> list[LinkPart]:
        """Relays are backbone nodes; only they keep outboxes, and pass on who asks for blobs."""
        pipes, core, peer = self._pipes, self._core, self.link.peer
        theirs, ours = pipes.is_backbone(peer), pipes.is_backbone(core.node.id)
        live = pipes.go_live
        self.source = SourceFeedPart(self, core.node, core.messages, window, on_live=live)
        self._reader = pipes.reader.make_part(self, peer, relays=theirs)
        self._blobs = pipes.fetcher.make_part(self, peer, relays=theirs, passes=ours)
        parts: list[LinkPart] = [self.source, self._reader, self._blobs]
        return [*parts, pipes.host.make_part(self, peer)] if ours else parts

    def look(self) -> None:
        """A node may be known as a relay only after it was linked."""
        self._reader.relays = self._blobs.relays = self._pipes.is_backbone(self.link.peer)

    def receive(self, data: bytes) -> None:
        try:
            self.link.receive_frame(decode_frame(data))
        except GatepostError as error:
            self.end(error)

    def send(self, frame: LinkFrame) -> None:
        if not self.ended:
            self._connection.send_frame(encode_frame(frame))

    def commit(self, operation: Callable[[Tx], Any], done: Callable[[Any], None]) -> None:
        try:
            self._core.writer.submit(operation, partial(self._done, done))
        except GatepostError as error:
            self.end(error)

    def _done(self, done: Callable[[Any], None], value: Any, error: GatepostError | None) -> None:
        if self.ended:
            return
        if error is not None:
            self.end(error)
            return
        try:
            done(value)
        except GatepostError as mistake:
            self.end(mistake)
        except Exception:
            log.exception("a link failed unexpectedly")
            self.end(Internal("an internal error; see the log"))

    def now(self) -> int:
        return self._core.clock.now()

    def end(self, error: GatepostError) -> None:
        """The connection goes, and is opened again by whoever dialled."""
        if self.ended:
            return
        self.ended = True
        peer = self.link.peer
        log.warning("the link to %s ends: %s", peer, error.message)
        if isinstance(error, LinkError):
            incidents, why = self._core.messages.incidents, error.message
            subject = f"{peer}@{self.now()}"
            self._core.submit(lambda tx: incidents.raise_(tx, "link_error", subject, why))
        self._connection.end(error)


def _if_done(done: Callable[[Any], None]) -> Callable[[Any, GatepostError | None], None]:
    def finished(value: Any, error: GatepostError | None) -> None:
        if error is None:
            done(value)
        else:
            log.warning("outboxes kept for others were not pruned: %s", error.message)

    return finished


class Presence:
    """Whether a gateway is believed to be there: connected, or heard of not long ago."""

    def __init__(self, keeper: RoomKeeper) -> None:
        self._keeper = keeper
        self._clock = keeper.core.clock
        self._patience = keeper.core.settings.delivery.offline_secs * 1000
        self._seen: dict[str, int] = {}
        self._heartbeats: dict[str, int] = {}

    def saw(self, node: str) -> None:
        self._seen[node] = self._clock.now()

    def is_online(self, node: str) -> bool:
        keeper = self._keeper
        if node == keeper.core.node.id or any(c.node == node for c in keeper.connections):
            return True
        member = keeper.current.view.nodes.get(node)
        if member is None or member.record.status == "offline":
            return False
        self._listen(node, member.record.last_heartbeat_at)
        return self._clock.now() < self._seen.get(node, 0) + self._patience

    def _listen(self, node: str, heartbeat: int) -> None:
        """A heartbeat is worth as much as a meeting, until the next one should have come."""
        if self._heartbeats.get(node) != heartbeat:
            # What stood in the room when we came says nothing of now.
            fresh = node in self._heartbeats
            self._heartbeats[node] = heartbeat
            if fresh:
                self._seen[node] = self._clock.now() + int(_HEARTBEAT_SECS * 1000)
