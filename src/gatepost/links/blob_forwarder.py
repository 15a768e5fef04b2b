"""A relay's forwarding of blob requests, for peers without a link to the source.

Peers that ask for the same piece at the same time share one request to the source. Each gets the
answer, or an empty one after a deadline.
"""

from collections.abc import Callable

from msgspec.structs import replace

from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.frames import BlobPiece, BlobRequest
from gatepost.links.blob_ports import BlobPeer, FetchLimits
from gatepost.links.proof import check_blob_request


class BlobForwarder:
    """Knows which peers wait for which request. `peers` are the open links, kept by the fetcher."""

    def __init__(
        self,
        coordinator: DeliveryCoordinator,
        peers: list[BlobPeer],
        now: Callable[[], int],
        limits: FetchLimits,
    ) -> None:
        self._coordinator = coordinator
        self._peers = peers
        self._now = now
        self.limits = limits
        self._forwarded: dict[BlobRequest, list[tuple[BlobPeer, int]]] = {}

    def forward_request(self, peer: BlobPeer, ask: BlobRequest) -> bool:
        """Pass a peer's signed request on to the source.

        False without a link to the source, or with too much to do.
        """
        members = self._coordinator.routes.directory.gateways
        source = next((each for each in self._peers if each.peer == ask.source), None)
        reader = members.get(peer.peer)
        if source is None or reader is None or ask.source not in members:
            return False
        asked = replace(ask, reader=peer.peer)
        if not self._can_forward(ask.source) or not check_blob_request(asked, reader.key):
            return False
        waiting = self._forwarded.setdefault(asked, [])
        waiting.append((peer, self._now() + self.limits.answer_ms))
        if len(waiting) == 1:
            source.send_request(asked)
        return True

    def _can_forward(self, source: str) -> bool:
        """Whether a request fits: a source ends links with more than `reads`; leave some for us."""
        own = self.limits.fetches * self.limits.pieces
        waiting = sum(each.source == source for each in self._forwarded)
        total = sum(map(len, self._forwarded.values()))
        return waiting + own < self.limits.reads and total < self.limits.forwards

    def forward_piece(self, peer: BlobPeer, piece: BlobPiece) -> None:
        """Give a piece from its source to the peers that asked for it."""
        for ask in list(self._forwarded):
            same = (ask.source, ask.digest, ask.offset) == (peer.peer, piece.digest, piece.offset)
            if same and len(piece.data) <= ask.length:
                self._answer_waiting(ask, piece)

    def cap_deadlines(self, latest: int) -> None:
        for waiting in self._forwarded.values():
            waiting[:] = [(peer, min(deadline, latest)) for peer, deadline in waiting]

    def expire_requests(self, now: int) -> None:
        """Send an empty answer to peers that have waited too long."""
        for ask, waiting in list(self._forwarded.items()):
            if all(deadline <= now for _, deadline in waiting):
                self._answer_nothing(ask)

    def drop_source(self, source: str) -> None:
        """Answer the peers that wait for a source whose link has ended."""
        for ask in [each for each in self._forwarded if each.source == source]:
            self._answer_nothing(ask)

    def _answer_nothing(self, ask: BlobRequest) -> None:
        self._answer_waiting(ask, BlobPiece(ask.source, ask.digest, ask.offset, 0, b""))

    def _answer_waiting(self, ask: BlobRequest, piece: BlobPiece) -> None:
        for peer, _ in self._forwarded.pop(ask, []):
            peer.answer_request(piece)
