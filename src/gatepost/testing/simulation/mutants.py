"""Known-bad gateways: each forgets one thing that matters. A checker that lets one pass is broken.

A mutant is applied to the real code for as long as its context lasts.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from gatepost.delivery import pairs, receiver, sender
from gatepost.delivery.outbox_link import OutboxLink
from gatepost.delivery.receiver import Batch, Cursor, Receiver, _Taking
from gatepost.delivery.sender import Sender
from gatepost.events import Envelope, decode, extend, genesis
from gatepost.journal import Database, Tx, outbox
from gatepost.journal.outbox import Outbox
from gatepost.mailbox import Mail

Mutant = AbstractContextManager[Any]


def receipt_before_commit() -> Mutant:
    """Others hear of what is not on disk yet."""
    before_commit = Outbox.before_commit

    def publish_early(self: Outbox, tx: Tx) -> None:
        before_commit(self, tx)
        if self._appended is not None and self.published is not None:
            appended, self._appended = self._appended, None
            self.published(appended)

    return patch.object(Outbox, "before_commit", publish_early)


@contextmanager
def no_dedup() -> Iterator[None]:
    """Whatever comes is new."""
    with (
        _sql(receiver, "_SEEN", "WHERE", "WHERE 0 AND"),
        patch.object(_Taking, "_mail", _mail_under_another_id()),
    ):
        yield


@contextmanager
def dedup_in_memory() -> Iterator[None]:
    """What was seen before a restart is new after it."""
    with _at_start("DELETE FROM inbox"), patch.object(_Taking, "_mail", _mail_under_another_id()):
        yield


def _mail_under_another_id() -> Callable[[_Taking, Envelope, bytes], Mail]:
    """The mailbox knows ids too, and would save the day."""
    honest, numbers = _Taking._mail, count()

    def mail(self: _Taking, envelope: Envelope, payload: bytes) -> Mail:
        made = honest(self, envelope, payload)
        made.msg_id = f"{made.msg_id}.{next(numbers)}"
        return made

    return mail


def cursor_before_batch() -> Mutant:
    """The cursor moves first, and the events follow in the next transaction, if there is one."""
    take, before_commit = Receiver.take, Receiver.before_commit
    waiting: dict[Receiver, list[Batch]] = {}

    def move_only(self: Receiver, tx: Tx, batch: Batch) -> int:
        cursor = Cursor.of(tx, batch.source, batch.incarnation, batch.first_seq)
        new = [body for body in batch.events if decode(body).seq > cursor.seq]
        cursor.seq = max(cursor.seq, batch.upto)
        cursor.last_to = max([cursor.last_to, *(decode(body).seq for body in new)])
        cursor.save(tx)
        later = replace(batch, events=new)
        tx.effect(lambda: waiting.setdefault(self, []).append(later))
        return cursor.seq

    def catch_up(self: Receiver, tx: Tx) -> None:
        for batch in waiting.pop(self, []):
            taking = _Taking(self, tx, batch.source, batch.incarnation, batch.now)
            for body in batch.events:
                taking.handle(decode(body), body)
            taking.end()
        before_commit(self, tx)

    assert take is Receiver.take
    return patch.multiple(Receiver, take=move_only, before_commit=catch_up)


def cursor_not_moved() -> Mutant:
    return patch.object(Cursor, "save", lambda self, tx: None)


def no_pair_order() -> Mutant:
    """Whatever comes is taken as it comes."""

    def at_once(self: _Taking, envelope: Envelope, body: bytes) -> None:
        key = self._key(envelope)
        self._try(key, self._pair(key, envelope.pair_base, envelope.pair_seq), envelope, body)

    return patch.object(_Taking, "_in_order", at_once)


def engaged_without_confirm() -> Mutant:
    def engage(self: _Taking, pair: Any, envelope: Envelope, body: bytes) -> None:
        self._accept(envelope)

    return patch.object(_Taking, "_offer", engage)


@contextmanager
def receipts_from_anyone() -> Iterator[None]:
    """A receipt counts, whoever wrote it."""
    with (
        _sql(sender, "_ACCEPT", "AND node = ?", "AND ? IS NOT NULL"),
        _sql(sender, "_PROCESS", "AND node = ?", "AND ? IS NOT NULL"),
    ):
        yield


@contextmanager
def accepted_work_rerouted() -> Iterator[None]:
    """What somebody has accepted is given to somebody else as well."""
    moves = "state IN ('emitted', 'retry_pending')"
    more = "state IN ('emitted', 'retry_pending', 'accepted', 'incident')"
    with (
        _sql(sender, "_TAKEN_OF_PAIR", "WHERE", "WHERE 0 AND"),
        _sql(sender, "_OF_PAIR", moves, more),
        _sql(sender, "_WAITING_ROUTES", moves, more),
        _sql(sender, "_PAIRS_WAITING", moves, more),
        _sql(sender, "_REROUTE", moves, more),
    ):
        yield


def held_forgotten() -> Mutant:
    """What waited for its turn does not outlive a restart."""
    return _at_start("DELETE FROM held")


def omissions_unnoticed() -> Mutant:
    return patch.object(Cursor, "follows", lambda self, envelope: True)


def restore_unnoticed() -> Mutant:
    """A reader with another journal than it had is served as if nothing had happened."""
    start = OutboxLink._find_start

    def trusting(self: OutboxLink, tx: Tx, frame: Any) -> Any:
        tx.run("UPDATE recipient SET incarnation = NULL")
        return start(self, tx, frame)

    return patch.object(OutboxLink, "_find_start", trusting)


def gap_left_open() -> Mutant:
    """A dead letter does not tell its pair to go on without it."""
    return patch.object(_Taking, "_skip", lambda self, key, number: None)


def confirm_forgotten() -> Mutant:
    honest = Sender._accepted

    def silent(self: Sender, tx: Tx, source: str, ref: str) -> None:
        with _sql(sender, "_ACCEPT", "RETURNING offer", "RETURNING 0"):
            honest(self, tx, source, ref)

    return patch.object(Sender, "_accepted", silent)


def late_receipt_reopens() -> Mutant:
    """A dead letter comes back to life when its owner speaks."""
    open_states = "state IN ("
    return _sql(sender, "_PROCESS", open_states, f"{open_states}'dead_letter', ")


def pair_never_settled() -> Mutant:
    """Who takes a pair over is never told that it may begin."""
    return patch.object(pairs.Pairs, "settled", lambda self, tx, pair: None)


def moved_pair_not_held() -> Mutant:
    """Who takes a pair over need not wait for what is still open elsewhere."""
    honest = pairs.Pairs.pin

    def careless(self: pairs.Pairs, tx: Tx, pair: Any, node: str, first: int) -> int:
        honest(self, tx, pair, node, first)
        return first

    return patch.object(pairs.Pairs, "pin", careless)


def chain_broken() -> Mutant:
    """Every commit group starts a chain of its own."""

    def forget(chain: bytes, digests: Any) -> bytes:
        return extend(genesis("nobody", "none"), digests)

    return patch.object(outbox, "extend", forget)


def _sql(module: Any, name: str, old: str, new: str) -> Mutant:
    """Another spelling of one statement; it is an error if it would be the same."""
    text = getattr(module, name)
    assert old in text, f"{name} has no {old!r}"
    return patch.object(module, name, text.replace(old, new))


def _at_start(statement: str) -> Mutant:
    """Do this to a journal whenever it is opened."""
    honest = Database.open.__func__  # type: ignore[attr-defined]

    def opened(cls: type[Database], path: Path, check: Any = "quick") -> Database:
        database: Database = honest(cls, path, check)
        database.writer.execute(statement)
        return database

    return patch.object(Database, "open", classmethod(opened))


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
        accepted_work_rerouted,
        held_forgotten,
        omissions_unnoticed,
        restore_unnoticed,
        gap_left_open,
        confirm_forgotten,
        late_receipt_reopens,
        pair_never_settled,
        moved_pair_not_held,
        chain_broken,
    )
}
