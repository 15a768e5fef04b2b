"""The theory of incarnations and restores, and the line of events that they leave of an outbox.

A journal that comes back from a backup has forgotten what it did since. Other gateways have not.
So a restored journal begins a new *incarnation*, and these rules keep anything from being done
twice:

1. A new incarnation continues after the last event of its backup, with a new chain. Events
   that the earlier incarnation wrote after that backup are off the line: a position behind the
   fork counts as the fork itself (`position_after`).
2. Readers keep a cursor for each incarnation, so they notice a rewound outbox, and read on from
   the fork. The first event for a reader in an incarnation names the last one before the fork
   that was for it, so what is left out in between is noticed too.
3. In a restored journal, nothing open goes on by itself. Mail becomes dead letters; held and
   offered events are handed back to their senders; the owner of every open delivery is asked what
   it did, and no event is sent again. Pairs go on behind their last number, on any route.
4. When a reader names another incarnation than before, its peer gives up every open message that
   the lost journal may have heard of (`sent_seq` beyond the reader's position), and skips those
   events: no gateway can tell what was done with them. It tells the reader which numbers never
   come again.
5. A relay does not know what the lost journal heard of. A restored reader takes no event through
   relays from a source before that source itself has answered its question (`inbox/resuming.py`).
6. An undelivered message is safe to replay only by the verdict of a journal that was not lost.
7. A duplicate is recognized by its event id, which every incarnation shares; a pair number is not
   proof of anything across incarnations (`InboxPair.begin_incarnation`).

`gatepost.delivery.restore` begins an incarnation, `gatepost.delivery.recover` answers those of
readers, and `inbox/cursors.py` follows those of sources.
"""

from collections.abc import Sequence

from gatepost.delivery.frames import Incarnation, Position

_NO_END = 2**53


def incarnation_at(incarnations: Sequence[Incarnation], seq: int) -> Incarnation:
    """The incarnation that wrote event `seq`; the first one for anything before it."""
    started = (each for each in incarnations if each[1] <= seq)
    return max(started, key=_first_seq, default=incarnations[0])


def next_stretch(incarnations: Sequence[Incarnation], after: int) -> tuple[Incarnation, int]:
    """The incarnation of the event after `after`, and the last seq of that incarnation."""
    incarnation = incarnation_at(incarnations, after + 1)
    return incarnation, last_seq_of(incarnations, incarnation)


def last_seq_of(incarnations: Sequence[Incarnation], incarnation: Incarnation) -> int:
    later = (first - 1 for _, first in incarnations if first > incarnation[1])
    return min(later, default=_NO_END)


def position_after(
    incarnations: Sequence[Incarnation], positions: Sequence[Position], source: str
) -> int:
    """How far a reader at these positions has read the events that are still on the line."""
    known = {incarnation: seq for node, incarnation, seq in positions if node == source}
    for incarnation in sorted(incarnations, key=_first_seq, reverse=True):
        name, first = incarnation
        if name in known:
            return min(max(known[name], first - 1), last_seq_of(incarnations, incarnation))
    return incarnations[0][1] - 1


def _first_seq(incarnation: Incarnation) -> int:
    return incarnation[1]
