"""The blob part of a link: it sends our requests to the peer, and answers the peer's.

A few requests of a peer are answered at a time, and only while the peer reads the answers. Other
requests wait; nothing is read from disk for them yet.
"""

from collections import deque

from gatepost.delivery.abuse import AbuseKind
from gatepost.delivery.frames import PIECE_BYTES, AnyFrame, BlobPiece, BlobRequest, HelloFrame
from gatepost.errors import LinkError
from gatepost.journal.outbox import OutboxGroup
from gatepost.links.blob_fetch import BlobFetcher
from gatepost.links.link_port import LinkPort
from gatepost.links.proof import check_blob_request


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
        self._waiting: deque[BlobRequest] = deque()
        self._answering = 0
        self._addressed: set[tuple[str, str]] = set()
        self._open = False

    def handle_hello(self, hello: HelloFrame) -> None:
        self._open = True
        self._fetcher.add_part(self)

    def publish_group(self, group: OutboxGroup) -> None:
        """Blobs do not depend on new events."""

    def close(self) -> None:
        self._open = False
        self._waiting.clear()
        self._fetcher.remove_part(self)

    def receive_frame(self, frame: AnyFrame) -> bool:
        match frame:
            case BlobRequest():
                self._queue_request(frame)
            case BlobPiece():
                self._fetcher.take_piece(self, frame)
            case _:
                return False
        return True

    def send_request(self, ask: BlobRequest) -> None:
        self._port.send(ask)

    # -- answering

    def _queue_request(self, ask: BlobRequest) -> None:
        unanswered = len(self._waiting) + self._answering
        if ask.length > PIECE_BYTES or unanswered >= self._fetcher.limits.reads:
            raise LinkError(f"{self.peer} asks for too much at once")
        self._waiting.append(ask)
        self.resume_requests()

    def resume_requests(self) -> None:
        """Answer requests that wait, as many as the peer can take."""
        limit = self._fetcher.limits.served
        while self._waiting and self._answering < limit and not self._port.is_congested:
            self._answering += 1
            self._begin_answer(self._waiting.popleft())

    def answer_request(self, piece: BlobPiece) -> None:
        self._answering -= 1
        if self._open:
            self._port.send(piece)
            self.resume_requests()

    def _begin_answer(self, ask: BlobRequest) -> None:
        if ask.source == self._fetcher.node.id:
            self._serve_range(ask)
        elif not (self._forwards and self._fetcher.forwarder.forward_request(self, ask)):
            self._answer_nothing(ask)

    def _serve_range(self, ask: BlobRequest) -> None:
        """Serve a blob only to a reader to which we addressed an event with it."""
        reader = self._proven_reader(ask)
        if reader is None:
            self._answer_nothing(ask)
        elif (ask.digest, reader) in self._addressed:
            self._read_range(ask)
        else:
            self._port.commit(
                lambda tx: self._fetcher.is_addressed(tx, ask.digest, reader),
                lambda known: self._serve_if_addressed(ask, reader, known),
            )

    def _proven_reader(self, ask: BlobRequest) -> str | None:
        """The node that wants the blob: the peer itself, or the signer of a relayed request."""
        if ask.reader in (None, self.peer):
            return self.peer
        reader = self._fetcher.find_member_key(ask.reader)
        if self.relays and reader is not None and check_blob_request(ask, reader):
            return ask.reader
        detail = f"{self.peer} asks for a blob for {ask.reader}, without its signature"
        self._fetcher.abuse.report_abuse(self.peer, AbuseKind.FOREIGN_BLOB, detail)
        return None

    def _serve_if_addressed(self, ask: BlobRequest, reader: str, known: bool) -> None:
        if not known:
            self._answer_nothing(ask)
            return
        if len(self._addressed) >= self._fetcher.limits.forwards:
            self._addressed.clear()
        self._addressed.add((ask.digest, reader))
        self._read_range(ask)

    def _read_range(self, ask: BlobRequest) -> None:
        slots = self._fetcher.read_slots

        def read() -> None:
            if self._open:
                files.read_range(ask.digest, ask.offset, ask.length, send)
            else:
                slots.release()

        def send(total: int, data: bytes) -> None:
            slots.release()
            self.answer_request(BlobPiece(ask.source, ask.digest, ask.offset, total, data))

        files = self._fetcher.files
        slots.run(read)

    def _answer_nothing(self, ask: BlobRequest) -> None:
        self.answer_request(BlobPiece(ask.source, ask.digest, ask.offset, 0, b""))
