"""The election of the publisher, as one node sees it: a pure state machine.

Ranks decide between nodes: the lower priority number, then the lower node id. Terms decide what is
new: a node honours a publisher only if the counter of its term is higher than that of every
publisher it honoured before. So it never honours two publishers of one term, and a late claim, or
one from a healed partition, is recognized by its old counter.

A publisher that learns of another term with a counter as high as its own claims again, with a
higher one, unless the other publisher has the better rank: then it steps down.
"""

from msgspec import Struct

from gatepost.mesh.election_states import TRANSITIONS, ElectionInput, ElectionState
from gatepost.mesh.mesh_time import MeshTimers
from gatepost.wire.mesh_views import MAX_COUNTER, Term

# (priority, node id): the lower one is better.
Rank = tuple[int, str]

# A report further ahead than this is a lie: no honest node claims that often.
MAX_TERM_JUMP = 1_000_000


class ElectionView(Struct, frozen=True):
    """The view of the peers for an election. `is_barred`: this node must not claim now."""

    is_alone: bool
    is_best: bool
    is_barred: bool = False


class Election:
    """`honoured` is the term of the last honoured publisher; it is kept over restarts."""

    def __init__(
        self, rank: Rank, may_lead: bool, timers: MeshTimers, now: int, honoured: Term | None = None
    ) -> None:
        self.rank = rank
        self.may_lead = may_lead
        self.state = ElectionState.STANDBY
        self.honoured = honoured
        self.highest = honoured
        self.heard_at = now
        self.takeovers = 0
        self._timers = timers
        self._is_contested = False

    @property
    def me(self) -> str:
        return self.rank[1]

    @property
    def is_publisher(self) -> bool:
        return self.state is ElectionState.PUBLISHER

    @property
    def publisher(self) -> str | None:
        """The node this one believes to be in office; None if the office is vacant."""
        if self.honoured is None or self.state is ElectionState.VACANT:
            return None
        return (
            None if self.honoured.node == self.me and not self.is_publisher else self.honoured.node
        )

    @property
    def reported(self) -> Term | None:
        """The term to tell others: the honoured one, unless a higher counter is known.

        A publisher that hears another node claim its counter claims a higher one.
        """
        if self.highest is None or self.honoured is None:
            return self.highest
        return self.highest if self.highest.counter > self.honoured.counter else self.honoured

    # -- hearing others

    def hear_publisher(self, rank: Rank, term: Term, now: int) -> bool:
        """Take a heartbeat or a claim of a publisher. False if its term is impossible."""
        if term.node != rank[1] or not self._note_term(term):
            return False
        if self.is_publisher:
            if self._is_better(rank):
                self._step_down(now)
                self._honour_term(term)
        elif self._honour_term(term):
            self.heard_at = now
            self._move(ElectionInput.HEARD)
        elif self.state is not ElectionState.STANDBY or self._is_better(rank):
            # Its term is older than one that ended. It will claim again when it hears of that one.
            self.heard_at = now
        return True

    def hear_report(self, term: Term, rank: Rank | None, now: int) -> bool:
        """Take a term reported by another node. `rank` is its owner's, if that is known here."""
        if not self._note_term(term):
            return False
        is_newer = self.is_publisher and self.honoured is not None and term > self.honoured
        if is_newer and rank is not None and term.node != self.me and self._is_better(rank):
            self._step_down(now)
        return True

    def is_new_term(self, term: Term) -> bool:
        """Whether this term is later than all known ones, or contests that of this publisher."""
        if self.is_publisher and self.honoured is not None:
            return term.counter >= self.honoured.counter and term != self.honoured
        return self.highest is None or term.counter > self.highest.counter

    def hear_release(self, node: str, term: Term | None) -> bool:
        """A publisher gave up its lease. False if it is not the one that is honoured."""
        if self.honoured is None or self.honoured.node != node or self.is_publisher:
            return False
        if term is not None and term != self.honoured:
            return False
        if self.state is not ElectionState.VACANT:
            self._move(ElectionInput.RELEASE)
        return True

    # -- time

    def check_timers(self, now: int, view: ElectionView) -> None:
        """Make the transitions that are due. Called on every heartbeat."""
        if self.is_publisher:
            if self._is_contested:
                self._claim_next_term()
            return
        if view.is_alone and self.may_lead and not view.is_barred:
            self._take_office(ElectionInput.ALONE)
            return
        silence = now - self.heard_at
        if self.state is ElectionState.STANDBY and silence >= self._timers.suspect_ms:
            self._move(ElectionInput.SILENCE)
        if self.state is ElectionState.SUSPECT and self._is_grace_over(silence):
            self._move(ElectionInput.GRACE_OVER)
        self.take_vacant_office(view)

    def take_vacant_office(self, view: ElectionView) -> None:
        may_claim = self.may_lead and view.is_best and not view.is_barred
        if self.state is ElectionState.VACANT and may_claim:
            self._take_office(ElectionInput.ELECTED)

    def skip_time(self, gap: int, now: int) -> None:
        """This process was suspended for this long, so the silence of others proves nothing."""
        self.heard_at += gap
        if self.is_publisher and gap >= self._timers.takeover_ms:
            self.heard_at = now
            self._move(ElectionInput.LAPSE)

    def release_lease(self) -> None:
        if self.is_publisher:
            self._move(ElectionInput.RELEASE)

    # -- moves

    def _is_grace_over(self, silence: int) -> bool:
        # A node whose own lease ended with its process knows that no other node holds it.
        held_by_me = self.honoured is not None and self.honoured.node == self.me
        return held_by_me or silence >= self._timers.takeover_ms

    def _is_better(self, rank: Rank) -> bool:
        return rank < self.rank

    def _note_term(self, term: Term) -> bool:
        """Remember the highest term. False if it is too far ahead to be true."""
        known = 0 if self.highest is None else self.highest.counter
        if term.counter > min(known + MAX_TERM_JUMP, MAX_COUNTER - MAX_TERM_JUMP):
            return False
        if self.highest is None or term > self.highest:
            self.highest = term
        own = self.honoured
        if self.is_publisher and own is not None and own != term:
            self._is_contested |= term.counter >= own.counter
        return True

    def _honour_term(self, term: Term) -> bool:
        """Honour the publisher of this term, unless an equal or later term was honoured."""
        if term == self.honoured:
            return True
        if self.honoured is not None and term.counter <= self.honoured.counter:
            return False
        self.honoured = term
        return True

    def _step_down(self, now: int) -> None:
        self.heard_at = now
        self._is_contested = False
        self._move(ElectionInput.BETTER)

    def _take_office(self, cause: ElectionInput) -> None:
        self._move(cause)
        self.takeovers += 1
        self._claim_next_term()

    def _claim_next_term(self) -> None:
        counter = 0 if self.highest is None else self.highest.counter
        self.highest = self.honoured = Term(counter + 1, self.me)
        self._is_contested = False

    def _move(self, input: ElectionInput) -> None:
        self.state = TRANSITIONS[self.state, input]
