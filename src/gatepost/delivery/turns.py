"""Turns that ended: their replies, and the event and pair that brought the mail they closed."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw

from gatepost.delivery.blob_records import blob_fingerprint
from gatepost.delivery.decisions import TurnEnded
from gatepost.delivery.outgoing import EMPTY_PAYLOAD, TurnReply
from gatepost.errors import UnknownBlob
from gatepost.events import fingerprint_content
from gatepost.journal.transaction import Tx
from gatepost.mailbox import ClosedMail
from gatepost.mailbox.enqueue import pair_of_mail
from gatepost.wire import EventInfo, Failure

_SELECT_META = "SELECT meta FROM body WHERE id = ?"
_SELECT_PAIR = """
SELECT p.sender, b.name FROM pair p JOIN mailbox b ON b.id = p.mailbox WHERE p.id = ?
"""
_PAIRS_CACHED = 10_000

decode_info = msgspec.json.Decoder(EventInfo).decode


class GivenReplies(NamedTuple):
    """The replies of an ack by lease handle, with their fingerprints, and those it cannot send."""

    replies: dict[str, TurnReply]
    marks: dict[str, bytes]
    failures: list[Failure]


_NO_REPLIES = GivenReplies({}, {}, [])


def read_replies(tx: Tx, inline: Mapping[str, Raw], refs: Mapping[str, str]) -> GivenReplies:
    """Look up the replies of an ack, inline or uploaded before as blobs."""
    if not inline and not refs:
        return _NO_REPLIES
    given = GivenReplies({}, {}, [])
    for handle, raw in inline.items():
        payload = bytes(raw)
        given.replies[handle] = TurnReply(payload)
        given.marks[handle] = fingerprint_content(payload)
    for handle, digest in refs.items():
        try:
            given.marks[handle] = blob_fingerprint(tx, digest)
        except UnknownBlob as error:
            given.failures.append(Failure.from_error(error, handle))
        else:
            given.replies[handle] = TurnReply(EMPTY_PAYLOAD, digest)
    return given


class TurnReader:
    """The ends of pairs are cached, for an ack comes with nothing but the number of its pair."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[str, str]] = {}

    def read_turn(self, tx: Tx, closed: ClosedMail, reply: TurnReply | None) -> TurnEnded | None:
        """The turn that closed some mail; None if no event brought that mail."""
        meta = closed.meta or (tx.fetch_one(_SELECT_META, (closed.mail_id,)) or (None,))[0]
        if meta is None:
            return None
        sender, mailbox = self._find_pair(tx, pair_of_mail(closed.mail_id))
        info = decode_info(meta)
        return TurnEnded(info, sender, mailbox, closed.outcome, closed.reason, reply)

    def rolled_back(self) -> None:
        self._pairs.clear()

    def _find_pair(self, tx: Tx, pair: int) -> tuple[str, str]:
        """(sender, mailbox) of a pair, whose id never comes back for another."""
        found = self._pairs.get(pair)
        if found is None:
            ((sender, mailbox),) = tx.fetch_all(_SELECT_PAIR, (pair,))
            if len(self._pairs) >= _PAIRS_CACHED:
                self._pairs.clear()
            found = self._pairs[pair] = (sender, mailbox)
        return found
