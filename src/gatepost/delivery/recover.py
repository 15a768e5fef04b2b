"""Deliveries after a journal was lost: the owner's, or this gateway's own.

The rules are in `gatepost.delivery.incarnations`.
"""

from gatepost.delivery.decisions import (
    NOTHING,
    Decision,
    Decisions,
    GiveUpDelivery,
    JournalLost,
    ReaderRestored,
    ReaderResumed,
)
from gatepost.delivery.delivery_states import DeliveryInput, DeliveryState, update_delivery
from gatepost.delivery.delivery_table import DELIVERY_COLUMNS, IS_PARKED, OpenDelivery
from gatepost.delivery.incarnations import position_after
from gatepost.delivery.outbox_writer import draft_pair_closed
from gatepost.delivery.outgoing import SenderPair
from gatepost.delivery.parts import DeliveryParts
from gatepost.events import Signal
from gatepost.journal import recipients
from gatepost.journal.incarnations import load_incarnations
from gatepost.journal.outbox_reads import was_sent_within
from gatepost.journal.transaction import Tx

# An honest reader asks once in 30 s, and again for each restore.
_ASKING_MS = 30_000
_MOST_QUESTIONS = 4

# Without a pair number no receiver waits for it. An unordered delivery that was an incident before
# stays one: its owner is asked about it anyway.
_DOUBT = update_delivery(DeliveryInput.DOUBT, "next_at = ?, offer = 0, pair_seq = 0")
_SELECT_UNDOUBTED = f"""
SELECT {DELIVERY_COLUMNS} FROM delivery
WHERE processed_at IS NULL AND node IS NOT NULL
AND (pair_seq > 0 OR state <> '{DeliveryState.INCIDENT}')
LIMIT ?
"""
_SELECT_OPEN_AT = f"""
SELECT {DELIVERY_COLUMNS} FROM delivery WHERE node = ? AND processed_at IS NULL ORDER BY event_id
"""
# Pairs that go to a node, or have a number open there; and their lowest number open elsewhere.
_SELECT_PAIRS_AT = f"""
SELECT from_agent, to_agent, origin_node, last, (
    SELECT min(pair_seq) FROM delivery d
    WHERE d.from_agent = p.from_agent AND d.to_agent = p.to_agent
    AND d.origin_node = p.origin_node AND d.processed_at IS NULL
    AND (d.node IS NOT ?1 OR {IS_PARKED}) AND d.pair_seq > 0
) FROM pair_seq p WHERE node = ?1 OR (from_agent, to_agent, origin_node) IN (
    SELECT from_agent, to_agent, origin_node FROM delivery WHERE node = ?1 AND processed_at IS NULL
)
"""


def greet_reader(
    parts: DeliveryParts, tx: Tx, node: str, incarnation: str, after: int, *, restored: bool
) -> Decisions:
    """Note the journal of a reader. If it replaced the one we knew, resume the new one.

    The new journal has read our outbox up to `after`. `restored`: the reader says that it was
    restored. A reader that we did not know may have read our outbox through relays before.
    """
    known, sent = recipients.sent_through(tx, node) or (None, 0)
    recipients.note_incarnation(tx, node, incarnation)
    if known == incarnation or (known is None and not restored):
        return NOTHING
    if sent > after:
        # Our answer may get lost; the cut makes the next link repeat it.
        recipients.skip_through(tx, node, sent)
    lost = _give_up_sent(parts, tx, node, after, sent)
    return [*lost, ReaderResumed(node, incarnation), JournalLost(node)]


def answer_restored(parts: DeliveryParts, tx: Tx, restored: ReaderRestored) -> Decisions:
    """A restored reader asks which events of our outbox are new to it.

    The answer may be long. A reader that asks too often gets it when it asks again later.
    """
    node, incarnation, own_incarnation, through = restored
    if not _count_question(parts, node, tx.now):
        return NOTHING
    position = (parts.node.id, own_incarnation, through)
    after = position_after(load_incarnations(tx), [position], parts.node.id)
    greeted = greet_reader(parts, tx, node, incarnation, after, restored=True)
    return greeted or [ReaderResumed(node, incarnation)]


def _count_question(parts: DeliveryParts, node: str, now: int) -> bool:
    """Count a question of a restored node; False if it asks too often."""
    asked = [at for at in parts.resume_questions.get(node, ()) if 0 <= now - at < _ASKING_MS]
    parts.resume_questions[node] = [*asked, now][:_MOST_QUESTIONS]
    return len(asked) < _MOST_QUESTIONS


def _give_up_sent(parts: DeliveryParts, tx: Tx, node: str, after: int, sent: int) -> Decisions:
    """Give up what the lost journal of `node` may have read: its outcome is unknown."""
    records = (OpenDelivery(*row) for row in tx.fetch_all(_SELECT_OPEN_AT, (node,)))
    # A message that was refused before may have been accepted when it was sent again.
    heard = ((each, (each.event_id, node, after, sent)) for each in records)
    lost = [each for each, span in heard if was_sent_within(tx, *span)]
    reason = f"{node} has another journal than it had"
    return [GiveUpDelivery(each, "owner_restored", reason) for each in lost]


def announce_resumed(parts: DeliveryParts, tx: Tx, resumed: ReaderResumed) -> Decisions:
    """Tell a restored node which numbers never come: it forgot which ones it closed."""
    node, incarnation = resumed
    decisions: list[Decision] = []
    for *pair, last, elsewhere in tx.fetch_all(_SELECT_PAIRS_AT, (node,)):
        through = elsewhere - 1 if elsewhere else last
        signal = draft_pair_closed(SenderPair(*pair), through)
        decisions += parts.writer.append_signal(tx, node, None, signal)
    cut, _ = recipients.cut_of(tx, node)
    follows = Signal(signal="resumed", text=incarnation, through=cut)
    return [*decisions, *parts.writer.append_signal(tx, node, None, follows)]


def doubt_open(parts: DeliveryParts, tx: Tx, limit: int) -> tuple[int, Decisions]:
    """In a restored journal, ask the owners of open deliveries, and send none of them again.

    Returns how many; repeat it until that is 0.
    """
    decisions: list[Decision] = []
    rows = tx.fetch_all(_SELECT_UNDOUBTED, (limit,))
    for found in (OpenDelivery(*row) for row in rows):
        if found.node == parts.node.id:
            # It was due for another attempt here, which may have happened after the backup.
            why = "this gateway was restored from a backup, and cannot say what it did"
            decisions.append(GiveUpDelivery(found, "owner_restored", why))
            continue
        tx.execute(_DOUBT, (tx.now + parts.policy.sla, found.event_id))
        if found.offer:
            withdraw = Signal(signal="withdraw", pair_seq=found.pair_seq)
            decisions += parts.writer.append_signal(tx, found.node, found.id, withdraw)
        question = Signal(signal="status_request")
        decisions += parts.writer.append_signal(tx, found.node, found.id, question)
    return len(rows), decisions
