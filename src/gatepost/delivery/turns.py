"""Turns that ended: reads, for mail that was closed, the event that brought it and its pair."""

import msgspec
from msgspec import Raw

from gatepost.delivery.decisions import TurnEnded
from gatepost.journal.transaction import Tx
from gatepost.mailbox import ClosedMail
from gatepost.mailbox.enqueue import pair_of_mail
from gatepost.wire import EventInfo

_SELECT_META = "SELECT meta FROM body WHERE id = ?"
_SELECT_PAIR = """
SELECT p.sender, b.name FROM pair p JOIN mailbox b ON b.id = p.mailbox WHERE p.id = ?
"""
_PAIRS_CACHED = 10_000

decode_info = msgspec.json.Decoder(EventInfo).decode


class TurnReader:
    """The ends of pairs are cached, for an ack comes with nothing but the number of its pair."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[str, str]] = {}

    def read_turn(self, tx: Tx, closed: ClosedMail, reply: Raw | None) -> TurnEnded | None:
        """The turn that closed some mail; None if no event brought that mail."""
        meta = closed.meta or (tx.fetch_one(_SELECT_META, (closed.mail_id,)) or (None,))[0]
        if meta is None:
            return None
        sender, mailbox = self._find_pair(tx, pair_of_mail(closed.mail_id))
        answer = None if reply is None else bytes(reply)
        info = decode_info(meta)
        return TurnEnded(info, sender, mailbox, closed.outcome, closed.reason, answer)

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
