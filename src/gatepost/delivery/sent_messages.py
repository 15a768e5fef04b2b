"""Messages that were sent from here: their status, and the callers that wait for it to change."""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import UNSET, Raw

from gatepost.delivery.blob_records import BLOB_SIZE_SQL
from gatepost.errors import GatepostError, UnknownMessage
from gatepost.events import parse_event_id
from gatepost.journal.transaction import Tx
from gatepost.journal.writer import JobOutcome
from gatepost.wire.operations import Sent

_SELECT_SENT = f"""
SELECT d.corr_id, d.state, d.node, d.outcome, d.reason, d.accepted_at, d.processed_at, d.emitted_at,
    coalesce(d.verdict, (SELECT u.verdict FROM undelivered u WHERE u.event_id = d.event_id)),
    d.verdict_at, d.reply, d.reply_ref, {BLOB_SIZE_SQL.format(digest="d.reply_ref")}
FROM delivery d WHERE d.event_id = ?
"""
# The rows of deliveries are forgotten; a message that was given up is kept until it is discarded.
_SELECT_GIVEN_UP = """
SELECT corr_id, 'dead_letter', node, 'dead_letter', reason, NULL, failed_at, NULL, verdict,
    verdict_at, NULL, NULL, NULL
FROM undelivered WHERE event_id = ?
"""

Woken = Callable[[Any, GatepostError | None], None]


class SentMessages:
    """Waiting callers are kept in memory and changed by effects, so a rollback leaves none."""

    def __init__(self) -> None:
        # Event id -> (`accepted` or `processed`, the caller that waits for it).
        self._waiting: dict[str, list[tuple[str, Woken]]] = {}
        self._woken: list[JobOutcome] = []

    def status(self, tx: Tx, event_id: str) -> Sent:
        id = parse_event_id(event_id)
        row = tx.fetch_one(_SELECT_SENT, (id,)) or tx.fetch_one(_SELECT_GIVEN_UP, (id,))
        if row is None:
            raise UnknownMessage(f"no message {event_id} was sent from this gateway")
        *known, sent_at, verdict, verdict_at, reply, ref, size = row
        sent = Sent(event_id, *known)
        sent.reply = UNSET if reply is None else Raw(reply)
        sent.reply_ref, sent.reply_size = ref, size
        sent.sent_at, sent.verdict, sent.verdict_at = sent_at, verdict, verdict_at
        return sent

    def wait(self, tx: Tx, event_id: str, woken: Woken, until: str = "processed") -> Sent:
        """The status now; if it is not `until` yet, `woken` gets it once it is."""
        sent = self.status(tx, event_id)
        if not is_reached(sent, until):
            tx.add_effect(partial(self._park_callers, sent.event_id, [(until, woken)]))
        return sent

    def stop_waiting(self, event_id: str, woken: Woken) -> None:
        waiting = [each for each in self._waiting.pop(event_id, []) if each[1] is not woken]
        if waiting:
            self._waiting[event_id] = waiting

    def status_changed(self, tx: Tx, event_id: str) -> None:
        """Wake the callers that wait for no more than the new status, once it is on disk."""
        if event_id in self._waiting:
            tx.add_effect(partial(self._wake_callers, tx, self.status(tx, event_id)))

    def take_woken(self) -> list[JobOutcome]:
        woken, self._woken = self._woken, []
        return woken

    def rolled_back(self) -> None:
        self._woken.clear()

    def _park_callers(self, event_id: str, waiting: list[tuple[str, Woken]]) -> None:
        self._waiting.setdefault(event_id, []).extend(waiting)

    def _wake_callers(self, tx: Tx, sent: Sent) -> None:
        waiting = self._waiting.pop(sent.event_id, [])
        ready = [each for each in waiting if is_reached(sent, each[0])]
        if still := [each for each in waiting if each not in ready]:
            self._waiting[sent.event_id] = still
        self._woken += [(woken, sent, None) for _, woken in ready]
        tx.on_rollback(partial(self._park_callers, sent.event_id, ready))


def is_reached(sent: Sent, until: str) -> bool:
    """Whether a message is `accepted` or `processed`, or will never get any further."""
    return sent.processed_at is not None or (until == "accepted" and sent.accepted_at is not None)
