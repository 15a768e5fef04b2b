"""Known-bad gateways: each has one defect that matters. A checker that lets one pass is broken.

A mutant is applied to the real code for as long as its context lasts.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from gatepost.delivery import accept, close, recover, release, reroute, routes, send, timers
from gatepost.delivery.accept import EventBatch, TakenBatch
from gatepost.delivery.acceptance_check import AcceptanceCheck
from gatepost.delivery.decisions import Decision, Decisions, GiveUpDelivery, ReceiptArrived
from gatepost.delivery.delivery_table import OpenDelivery
from gatepost.delivery.event_acceptor import EventAcceptor
from gatepost.delivery.forward import MailForwarder
from gatepost.delivery.inbox import inbox_table
from gatepost.delivery.inbox.cursors import OutboxCursor
from gatepost.delivery.intake import Intake, confirm_offer, pair_key
from gatepost.delivery.pairs import SenderPairs
from gatepost.delivery.parts import DeliveryParts
from gatepost.events import Envelope, decode_event, extend_chain, genesis_chain
from gatepost.journal import Database, Tx, outbox
from gatepost.journal.outbox import Outbox
from gatepost.mailbox import NewMail
from gatepost.routing import RoutingDirectory, decision

Mutant = AbstractContextManager[Any]


def receipt_before_commit() -> Mutant:
    """Peers hear of events that are not on disk yet."""
    before_commit = Outbox.before_commit

    def publish_early(self: Outbox, tx: Tx) -> None:
        before_commit(self, tx)
        if self._group is not None and self.on_published is not None:
            appended, self._group = self._group, None
            self.on_published(appended)

    return patch.object(Outbox, "before_commit", publish_early)


@contextmanager
def no_dedup() -> Iterator[None]:
    """Each event counts as new, however often it comes."""
    with (
        _sql(inbox_table, "_SELECT_STATE", "WHERE", "WHERE 0 AND"),
        patch.object(EventAcceptor, "_build_mail", _mail_under_another_id()),
    ):
        yield


@contextmanager
def dedup_in_memory() -> Iterator[None]:
    """An event that was seen before a restart counts as new after it."""
    mail = patch.object(EventAcceptor, "_build_mail", _mail_under_another_id())
    with _at_start("DELETE FROM inbox"), mail:
        yield


def _mail_under_another_id() -> Callable[[EventAcceptor, Tx, Envelope, bytes], NewMail]:
    """The mailbox knows ids too, and would hide the defect."""
    honest, numbers = EventAcceptor._build_mail, count()

    def mail(self: EventAcceptor, tx: Tx, envelope: Envelope, payload: bytes) -> NewMail:
        made = honest(self, tx, envelope, payload)
        made.msg_id = f"{made.msg_id}.{next(numbers)}"
        return made

    return mail


@contextmanager
def cursor_before_batch() -> Iterator[None]:
    """The cursor moves first, and the events follow in the next transaction, if there is one."""
    before_commit = release.before_commit
    waiting: dict[int, list[EventBatch]] = {}

    def move_only(parts: DeliveryParts, tx: Tx, batch: EventBatch) -> TakenBatch:
        cursor = OutboxCursor.load(tx, batch.source, batch.incarnation, batch.first_seq)
        new = [body for body in batch.events if decode_event(body).seq > cursor.seq]
        cursor.seq = max(cursor.seq, batch.upto)
        cursor.last_to = max([cursor.last_to, *(decode_event(body).seq for body in new)])
        cursor.save(tx)
        later = replace(batch, events=new)
        tx.add_effect(lambda: waiting.setdefault(id(parts), []).append(later))
        return TakenBatch(cursor.seq, [], [])

    def catch_up(parts: DeliveryParts, tx: Tx) -> Decisions:
        late: list[Decision] = []
        for batch in waiting.pop(id(parts), []):
            events = [(decode_event(body), body) for body in batch.events]
            late += accept._take_events(parts, tx, batch, events)
        return [*late, *before_commit(parts, tx)]

    with (
        patch.object(accept, "take_batch", move_only),
        patch.object(release, "before_commit", catch_up),
    ):
        yield


def cursor_not_moved() -> Mutant:
    return patch.object(OutboxCursor, "save", lambda self, tx: None)


def no_pair_order() -> Mutant:
    """Each event is accepted as it comes."""

    def at_once(self: Intake, tx: Tx, envelope: Envelope, body: bytes) -> None:
        key = pair_key(self.source, envelope)
        pair = self._load_for_arrival(tx, key, envelope)
        self._accept_or_hold(tx, key, pair, envelope, body)

    return patch.object(Intake, "_take_in_order", at_once)


def engaged_without_confirm() -> Mutant:
    def engage(self: Intake, tx: Tx, pair: Any, envelope: Envelope, body: bytes) -> None:
        self.acceptor.accept_event(tx, envelope)

    return patch.object(Intake, "_accept_offer", engage)


@contextmanager
def receipts_from_anyone() -> Iterator[None]:
    """A receipt counts from any node."""
    with (
        _sql(close, "_ACCEPT", "AND node = ?", "AND ? IS NOT NULL"),
        _sql(close, "_PROCESS", "AND node = ?", "AND ? IS NOT NULL"),
    ):
        yield


@contextmanager
def accepted_work_rerouted() -> Iterator[None]:
    """A message that one node has accepted is sent to another node as well."""
    moves = "state IN ('emitted', 'retry_pending')"
    more = "state IN ('emitted', 'retry_pending', 'accepted', 'incident')"
    with (
        _sql(reroute, "_SELECT_ACCEPTED_OF_PAIR", "WHERE", "WHERE 0 AND"),
        _sql(reroute, "_SELECT_UNACCEPTED_OF_PAIR", moves, more),
        _sql(reroute, "_SELECT_WAITING_ROUTES", moves, more),
        _sql(reroute, "_SELECT_WAITING_PAIRS", moves, more),
        _sql(reroute, "_REROUTE", moves, more),
    ):
        yield


def held_forgotten() -> Mutant:
    """Held events do not outlive a restart."""
    return _at_start("DELETE FROM held")


def omissions_unnoticed() -> Mutant:
    return patch.object(OutboxCursor, "follows", lambda self, envelope: True)


def restore_unnoticed() -> Mutant:
    """A reader with another journal than it had is served as if nothing had happened."""
    return patch.object(recover, "greet_reader", lambda parts, tx, *reader, **more: ())


def gap_left_open() -> Mutant:
    """A dead letter does not tell its pair to go on without it."""
    return patch.object(Intake, "close_number", lambda self, tx, key, number: None)


def confirm_forgotten() -> Mutant:
    honest = close.apply_receipt

    def silent(parts: DeliveryParts, tx: Tx, arrived: ReceiptArrived) -> Decisions:
        with _sql(close, "_ACCEPT", "RETURNING offer", "RETURNING 0"):
            return honest(parts, tx, arrived)

    return patch.object(close, "apply_receipt", silent)


def late_receipt_ignored() -> Mutant:
    """A message stays a dead letter, though its owner says later that it was processed."""
    return _sql(close, "_AMEND", "WHERE", "WHERE 0 AND")


@contextmanager
def given_up_engaged() -> Iterator[None]:
    """An owner engages what has expired, and may be given up already."""
    honest = AcceptanceCheck.reason_against

    def careless(self: AcceptanceCheck, tx: Tx, envelope: Envelope) -> str:
        return honest(self, tx, replace(envelope, expires_at=None))

    build = EventAcceptor._build_mail

    def keep(self: EventAcceptor, tx: Tx, envelope: Envelope, payload: bytes) -> NewMail:
        return build(self, tx, replace(envelope, expires_at=None), payload)

    with (
        patch.object(AcceptanceCheck, "reason_against", careless),
        patch.object(EventAcceptor, "_build_mail", keep),
    ):
        yield


def pair_never_closed() -> Mutant:
    """A node that takes a pair over is never told that it may begin."""
    return patch.object(SenderPairs, "close_numbers", lambda self, tx, pair: None)


def moved_pair_not_held() -> Mutant:
    """A node that takes a pair over need not wait for numbers that are still open elsewhere."""
    honest = SenderPairs.set_route

    def careless(self: SenderPairs, tx: Tx, pair: Any, node: str, first: int) -> int:
        honest(self, tx, pair, node, first)
        return first

    return patch.object(SenderPairs, "set_route", careless)


def confirmed_out_of_turn() -> Mutant:
    """An offer that is confirmed further on in the outbox overtakes earlier ones of its pair."""
    return patch.object(accept, "confirm_next_offer", confirm_offer)


def delay_ignored() -> Mutant:
    """A delayed message is engaged as soon as it comes."""
    honest = EventAcceptor._build_mail

    def hasty(self: EventAcceptor, tx: Tx, envelope: Envelope, payload: bytes) -> NewMail:
        made = honest(self, tx, envelope, payload)
        made.not_before = 0
        return made

    return patch.object(EventAcceptor, "_build_mail", hasty)


def chain_broken() -> Mutant:
    """Every commit group starts a chain of its own."""

    def forget(chain: bytes, digests: Any) -> bytes:
        return extend_chain(genesis_chain("nobody", "none"), digests)

    return patch.object(outbox, "extend_chain", forget)


def expired_without_a_word() -> Mutant:
    """A sender says that a message expired without asking the owner that may have it."""

    def hasty(parts: DeliveryParts, tx: Tx, found: OpenDelivery) -> Decisions:
        return (GiveUpDelivery(found, "expired", "nobody accepted it in time"),)

    return patch.object(timers, "_expire", hasty)


def returned_mail_renumbered() -> Mutant:
    """Mail that comes back gets a new number, behind the one that its message has already."""
    return patch.object(send, "find_numbered", lambda tx, out: None)


def origin_forgotten() -> Mutant:
    """A gateway numbers the mail that it forwards together with its own mail."""
    return patch.object(MailForwarder, "_origin_of", lambda self, info: "")


def forwarded_mail_overtaken() -> Mutant:
    """A gateway does not wait for mail that it forwarded, which may come back."""
    return patch.object(release, "reopen_number", lambda parts, tx, forward: None)


def pairs_unclosed_after_restore() -> Mutant:
    """A restored owner is not told which numbers it has forgotten."""
    return _sql(recover, "_SELECT_PAIRS_AT", "WHERE", "WHERE 0 AND")


def revoked_owner_waited_for() -> Mutant:
    """Deliveries to a revoked owner stay open until their last deadline."""
    return patch.object(reroute, "end_deliveries_to_revoked", lambda parts, tx: ())


def _sql(module: Any, name: str, old: str, new: str) -> Mutant:
    """Change one SQL statement of a module; it is an error if that changes nothing."""
    text = getattr(module, name)
    assert old in text, f"{name} has no {old!r}"
    return patch.object(module, name, text.replace(old, new))


def _at_start(statement: str) -> Mutant:
    """Run a statement on each journal that is opened."""
    honest = Database.open.__func__  # type: ignore[attr-defined]

    def opened(cls: type[Database], path: Path, check: Any = "quick") -> Database:
        database: Database = honest(cls, path, check)
        database.writer_connection.execute(statement)
        return database

    return patch.object(Database, "open", classmethod(opened))


def former_owners_accused() -> Mutant:
    """Mail that was sent before its sender or its receiver moved is taken for forged."""
    speak = decision.may_speak_for

    def forget_former(directory: RoutingDirectory, node: str, agent: str) -> bool:
        home = directory.agents.get(agent)
        agents = directory.agents | ({agent: replace(home, former=())} if home else {})
        return speak(replace(directory, agents=agents), node, agent)

    return patch.object(routes, "may_speak_for", forget_former)


MUTANTS: dict[str, Callable[[], Mutant]] = {
    mutant.__name__: mutant
    for mutant in (
        receipt_before_commit,
        no_dedup,
        dedup_in_memory,
        cursor_before_batch,
        cursor_not_moved,
        no_pair_order,
        engaged_without_confirm,
        receipts_from_anyone,
        former_owners_accused,
        accepted_work_rerouted,
        held_forgotten,
        omissions_unnoticed,
        restore_unnoticed,
        gap_left_open,
        confirm_forgotten,
        late_receipt_ignored,
        given_up_engaged,
        pair_never_closed,
        moved_pair_not_held,
        confirmed_out_of_turn,
        delay_ignored,
        chain_broken,
        expired_without_a_word,
        returned_mail_renumbered,
        origin_forgotten,
        forwarded_mail_overtaken,
        pairs_unclosed_after_restore,
        revoked_owner_waited_for,
    )
}
