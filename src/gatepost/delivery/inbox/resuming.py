"""A restored gateway that reads through relays: in doubt until the source itself has resumed it.

The lost journal may have dealt with any event that a relay brings now. On its own link a source
says which events it skips. A relay cannot know them: so this gateway tells the source through its
outbox that it was restored, and takes nothing from relays until the source's answer `resumed` is
among the events they bring. The answer says through which event the source gave up all messages
that may have been read. If the source was restored too, its own question is the only event that is
answered meanwhile. Clocks play no part in this.
"""

import contextlib
from collections.abc import Iterable, Iterator

from gatepost.delivery.decisions import ReaderRestored
from gatepost.delivery.inbox.cursors import read_positions
from gatepost.delivery.outbox_writer import OutboxWriter
from gatepost.errors import GatepostError
from gatepost.events import Envelope, EventKind, Signal, decode_payload
from gatepost.journal.facts import was_restored
from gatepost.journal.transaction import Tx

# How long the answer to `restored` may take. The source may have been restored as well.
_ASK_AGAIN_MS = 30_000

_SELECT_RESUMING = "SELECT asked_at, resumed FROM resuming WHERE source = ?"
_SAVE_ASKED = """
INSERT INTO resuming (source, asked_at) VALUES (?1, ?2)
ON CONFLICT (source) DO UPDATE SET asked_at = ?2
"""
_SAVE_RESUMED = """
INSERT INTO resuming (source, asked_at, resumed) VALUES (?1, ?2, 1)
ON CONFLICT (source) DO UPDATE SET resumed = 1
"""


def is_in_doubt(tx: Tx, source: str) -> bool:
    """Whether this journal was restored, and this source has not resumed it yet."""
    if not was_restored(tx):
        return False
    row = tx.fetch_one(_SELECT_RESUMING, (source,))
    return row is None or not row[1]


def ask_to_resume(tx: Tx, source: str, writer: OutboxWriter, incarnation: str) -> None:
    """Tell the source that this journal was restored, unless it was told a moment ago."""
    row = tx.fetch_one(_SELECT_RESUMING, (source,))
    # The clock may have gone back: then the time since the last question is negative.
    if row is not None and 0 <= tx.now - row[0] < _ASK_AGAIN_MS:
        return
    tx.execute(_SAVE_ASKED, (source, tx.now))
    _, read, through = (read_positions(tx, [source]) or [(source, "", 0)])[-1]
    signal = Signal(signal="restored", text=incarnation, incarnation=read or None, through=through)
    writer.append_signal(tx, source, None, signal)


def note_resumed(tx: Tx, source: str) -> None:
    """The source has given up all that the lost journal may have heard of."""
    tx.execute(_SAVE_RESUMED, (source, tx.now))


def find_resumed(envelopes: Iterable[Envelope], incarnation: str) -> int | None:
    """The seq through which the source has given up its events, if its answer is in this batch.

    The answer to an earlier incarnation of this journal says nothing about what was lost since.
    """
    for signal in _read_signals(envelopes):
        if (signal.signal, signal.text) == ("resumed", incarnation):
            return signal.through
    return None


def find_restored(
    source: str, envelopes: Iterable[Envelope], incarnation: str
) -> list[ReaderRestored]:
    """The questions of a source that was restored too, while both wait for each other."""
    return [
        ReaderRestored(source, incarnation, signal.incarnation or "", signal.through)
        for signal in _read_signals(envelopes)
        if (signal.signal, signal.text) == ("restored", incarnation)
    ]


def _read_signals(envelopes: Iterable[Envelope]) -> Iterator[Signal]:
    for envelope in envelopes:
        if envelope.kind == EventKind.SIGNAL:
            with contextlib.suppress(GatepostError):
                yield decode_payload(envelope, Signal)


def forget_resumed(tx: Tx) -> None:
    """After a restore every source has to resume this gateway again."""
    tx.execute("DELETE FROM resuming")
