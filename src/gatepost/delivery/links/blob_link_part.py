"""The blob part of a link: it sends our requests to the peer, and answers the peer's."""

from gatepost.delivery.frames import PIECE_BYTES, AnyFrame, BlobPiece, BlobRequest, HelloFrame
from gatepost.delivery.links.blob_fetch import BlobFetcher
from gatepost.delivery.links.link_port import LinkPort
from gatepost.errors import LinkError
from gatepost.journal.outbox import OutboxGroup

_SELECT_ADDRESSED = "SELECT 1 FROM delivery WHERE digest = ? AND node = ? LIMIT 1"


class BlobLinkPart:
    """`relays`: the peer forwards our requests; `forwards`: we forward the peer's."""

    def __init__(
        self, fetcher: BlobFetcher, port: LinkPort, peer: str, *, relays: bool, forwards: bool
    ) -> None:
        self._fetcher = fetcher
        self._port = port
        self.peer = peer
        self.relays = relays
        self._forwards = forwards
        self._reads = 0
        self._addressed: set[tuple[str, str]] = set()
        self._open = False

    def handle_hello(self, hello: HelloFrame) -> None:
        self._open = True
        self._fetcher.add_part(self)

    def publish_group(self, group: OutboxGroup) -> None:
        """Blobs do not depend on new events."""

    def close(self) -> None:
        self._open = False
        self._fetcher.remove_part(self)

    def receive_frame(self, frame: AnyFrame) -> bool:
        match frame:
            case BlobRequest():
                self._handle_request(frame)
            case BlobPiece():
                self._fetcher.take_piece(self, frame)
            case _:
                return False
        return True

    def send_request(self, ask: BlobRequest) -> None:
        self._port.send(ask)

    def send_piece(self, piece: BlobPiece) -> None:
        if self._open:
            self._port.send(piece)

    # -- answering

    def _handle_request(self, ask: BlobRequest) -> None:
        if ask.length > PIECE_BYTES or self._reads >= self._fetcher.limits.reads:
            raise LinkError(f"{self.peer} asks for too much at once")
        if ask.source == self._fetcher.node:
            self._serve_range(ask, ask.reader or self.peer)
        elif not (
            self._forwards
            and ask.reader is None
            and self._fetcher.forwarder.forward_request(self, ask)
        ):
            self._send_nothing(ask)

    def _serve_range(self, ask: BlobRequest, reader: str) -> None:
        """Serve a blob only to a reader that one of our events with this blob was addressed to."""
        self._reads += 1
        if (ask.digest, reader) in self._addressed:
            self._read_range(ask)
            return
        self._port.commit(
            lambda tx: tx.fetch_one(_SELECT_ADDRESSED, (ask.digest, reader)) is not None,
            lambda known: self._serve_if_addressed(ask, reader, known),
        )

    def _serve_if_addressed(self, ask: BlobRequest, reader: str, known: bool) -> None:
        if not known:
            self._reads -= 1
            self._send_nothing(ask)
            return
        if len(self._addressed) >= self._fetcher.limits.forwards:
            self._addressed.clear()
        self._addressed.add((ask.digest, reader))
        self._read_range(ask)

    def _read_range(self, ask: BlobRequest) -> None:
        self._fetcher.files.read_range(
            ask.digest,
            ask.offset,
            ask.length,
            lambda total, data: self._send_range(ask, total, data),
        )

    def _send_range(self, ask: BlobRequest, total: int, data: bytes) -> None:
        self._reads -= 1
        self.send_piece(BlobPiece(ask.source, ask.digest, ask.offset, total, data))

    def _send_nothing(self, ask: BlobRequest) -> None:
        self.send_piece(BlobPiece(ask.source, ask.digest, ask.offset, 0, b""))
