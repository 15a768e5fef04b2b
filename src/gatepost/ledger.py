"""The ledger of messages: each one that was sent is in one of five terms, and they add up.

    sent = processed + in motion + waiting + dead letters + expired

A message is *waiting* until the gateway of its receiver has it, and *in motion* from then until its
turn has ended. A reply is an answer, and no entry: the message it answers is processed.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

Term = Literal["processed", "in_motion", "waiting", "dead_letters", "expired"]
TERMS: tuple[Term, ...] = ("processed", "in_motion", "waiting", "dead_letters", "expired")


class Ledger(Struct, frozen=True, kw_only=True):
    """The messages of one gateway, or of all, by outcome."""

    sent: int = 0
    processed: int = 0
    in_motion: int = 0
    waiting: int = 0
    dead_letters: int = 0
    expired: int = 0

    @property
    def adds_up(self) -> bool:
        terms = (self.processed, self.in_motion, self.waiting, self.dead_letters, self.expired)
        return self.sent == sum(terms)

    @property
    def counts(self) -> list[int]:
        """How many were sent, then the terms in their order."""
        return [self.sent, *(getattr(self, term) for term in TERMS)]

    def __str__(self) -> str:
        """The equation, in the words of all surfaces."""
        terms = (f"{getattr(self, term):,} {term.replace('_', ' ')}" for term in TERMS)
        return f"{self.sent:,} sent = {' + '.join(terms)}"


def term_of(state: str, outcome: str | None, reason: str | None) -> Term:
    """The term of a message, by its state, outcome and reason at its sender's gateway."""
    if state in ("emitted", "retry_pending"):
        return "waiting"
    if state in ("accepted", "incident"):
        return "in_motion"
    if state == "replied" or outcome in ("ok", "kept"):
        return "processed"
    # The reason of a turn is what its agent says; only that of a sender is a term.
    if outcome == "expired" or (state == "dead_letter" and reason == "expired"):
        return "expired"
    return "dead_letters"


def make_ledger(counted: Iterable[tuple[str, str | None, str | None, int]]) -> Ledger:
    """Add up messages: how many of each state, outcome and reason."""
    counts = dict.fromkeys(TERMS, 0)
    sent = 0
    for state, outcome, reason, number in counted:
        counts[term_of(state, outcome, reason)] += number
        sent += number
    return Ledger(sent=sent, **counts)


def ledger_of_counts(counts: Sequence[int]) -> Ledger:
    """The ledger with these `counts`."""
    return Ledger(**dict(zip(("sent", *TERMS), counts, strict=True)))


def add_ledgers(parts: Iterable[Ledger]) -> Ledger:
    """One ledger of the messages in all parts."""
    known = [asdict(part) for part in parts]
    return Ledger(**{name: sum(part[name] for part in known) for name in ("sent", *TERMS)})
