"""Anything may happen at the door in any order, with a crash anywhere, against a simple model.

The model says what each attempt must be answered, code by code. Few names, and some of them
swapped, make every mix-up likely; the journal is a real file, closed and opened at any moment.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec import Struct

from gatepost.access import node_invites, node_sessions, retention
from gatepost.access.auth_messages import ExchangeRequest
from gatepost.errors import GatepostError
from gatepost.journal import Tx
from tests.access.harness import DAY, HOUR, AccessHarness, key
from tests.conftest import choose

T = TypeVar("T")
Who = tuple[str, str]  # id and name of the key
OK = "ok"

A, B = ("node-a", "key-1"), ("node-b", "key-2")
WHO = st.sampled_from(
    [A, A, A, B, B, ("node-a", "key-2"), ("node-c", "key-1"), ("node-c", "key-3")]
)
IDS = st.sampled_from(["node-a", "node-a", "node-b", "node-c"])
# How far back in the past; mostly not far.
BACK = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 8])
TTL = st.sampled_from([20_000, HOUR, HOUR])
MEANWHILE = st.sampled_from(["nothing", "nothing", "invites", "tickets", "revoke", "withdraw"])
CRASH = st.sampled_from(["no", "no", "no", "before commit", "after commit"])
PAUSES = st.sampled_from([1, 1, 1000, 1000, 20_000, 45_000, 31 * DAY])


def recent(things: list[T], back: int) -> T:
    return things[-1 - back % len(things)]


class InviteModel(Struct, eq=False):
    token: str
    id: str
    expected: str | None
    expires_at: int
    used_by: Who | None = None
    revoked: bool = False
    forgotten: bool = False


class Made(Struct, eq=False):
    """An exchange as it was sent, so that it can be sent again."""

    request: ExchangeRequest
    who: Who
    invite: InviteModel | None
    expires_at: int
    earned: bool = False


class TicketModel(Struct, eq=False):
    text: str
    who: Who
    invite: InviteModel | None
    expires_at: int
    used: bool = False


class DoorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.harness = AccessHarness(Path(self.folder.name) / "journal.db")
        self.invites: list[InviteModel] = []
        self.made: list[Made] = []
        self.tickets: list[TicketModel] = []
        self.admitted: dict[str, str] = {}
        self.revoked: dict[str, str] = {}
        self.admitted_by_invite: dict[str, set[Who]] = {}
        self.connected: dict[str, str] = {}

    def teardown(self) -> None:
        self.harness.close()
        self.folder.cleanup()

    @property
    def now(self) -> int:
        return self.harness.clock.now()

    # -- what the model expects

    def identity(self, who: Who) -> str:
        id, name = who
        if id in self.revoked or name in self.revoked.values():
            return "revoked"
        holders = {(i, k) for i, k in self.admitted.items() if i == id or k == name}
        return "node_mismatch" if holders - {who} else OK

    def by_invite(self, invite: InviteModel, who: Who) -> str:
        if invite.forgotten:
            return "invalid_token"
        if invite.used_by is not None:
            return "token_already_used"
        if invite.revoked:
            return "revoked"
        if self.now >= invite.expires_at:
            return "expired_token"
        return "node_mismatch" if invite.expected not in {None, who[0]} else self.identity(who)

    def by_proof(self, who: Who, expires_at: int) -> str:
        id, name = who
        known = self.revoked.get(id, self.admitted.get(id))
        if known != name or self.now >= expires_at:
            return "invalid_proof"
        return "revoked" if id in self.revoked else OK

    def exchanging(self, made: Made) -> str:
        if made.invite is not None:
            verdict = self.by_invite(made.invite, made.who)
        else:
            verdict = self.by_proof(made.who, made.expires_at)
        return "replay_detected" if verdict == OK and made.earned else verdict

    def entering(self, ticket: TicketModel) -> str:
        invite_ends = ticket.expires_at if ticket.invite is None else ticket.invite.expires_at
        if self.now >= min(ticket.expires_at, invite_ends):
            return "expired_ticket"
        if ticket.used:
            return "ticket_already_used"
        if (verdict := self.identity(ticket.who)) != OK:
            return verdict
        if ticket.invite is None:
            return OK
        if ticket.invite.revoked:
            return "revoked"
        taken = ticket.invite.used_by not in {None, ticket.who}
        return "token_already_used" if taken else OK

    # -- what happens

    @rule(expected=st.none() | IDS, ttl=TTL)
    def invite(self, expected: str | None, ttl: int) -> None:
        issued = self.harness.invite(expected, ttl=ttl)
        model = InviteModel(issued.token, issued.invite.id, expected, self.now + ttl)
        self.invites.append(model)

    @precondition(lambda self: self.invites)
    @rule(back=BACK)
    def withdraw(self, back: int) -> None:
        invite = recent(self.invites, back)
        if not invite.forgotten and invite.used_by is None:
            self.harness.run(lambda tx: node_invites.revoke_node_invite(tx, invite.id, "operator"))
            invite.revoked = True

    @precondition(lambda self: self.invites)
    @rule(back=BACK, who=WHO, crash=CRASH)
    def exchange_invite(self, back: int, who: Who, crash: str) -> None:
        invite = recent(self.invites, back)
        request = self.harness.joiner(who[1], node_id=who[0]).with_invite(invite.token)
        self.made.append(Made(request, who, invite, invite.expires_at))
        self.exchange(0, crash)

    @rule(who=WHO, crash=CRASH, sent=st.booleans())
    def exchange_proof(self, who: Who, crash: str, sent: bool) -> None:
        challenge = self.harness.challenge()
        joiner = self.harness.joiner(who[1], node_id=who[0])
        request = joiner.with_challenge(challenge, self.harness.issuer.key.fingerprint)
        self.made.append(Made(request, who, None, challenge.expires_at))
        if sent:
            self.exchange(0, crash)

    @initialize(who=WHO)
    def begin(self, who: Who) -> None:
        """So that there is somebody to whom things can happen."""
        self.join(who, "no")

    @rule(who=WHO, crash=CRASH)
    def join(self, who: Who, crash: str) -> None:
        """The whole way in."""
        self.invite(None, HOUR)
        self.exchange_invite(0, who, "no")
        if self.tickets:
            self.admit(0, crash)

    @rule(one=WHO, other=WHO, expected=st.none() | IDS, ttl=TTL, crash=CRASH, meanwhile=MEANWHILE)
    def race(
        self, one: Who, other: Who, expected: str | None, ttl: int, crash: str, meanwhile: str
    ) -> None:
        """Two with one invite, something in between, and then all that can still be tried."""
        self.invite(expected, ttl)
        self.exchange_invite(0, one, "no")
        self.exchange_invite(0, other, "no")
        if meanwhile == "withdraw":
            self.withdraw(0)
        elif meanwhile == "revoke":
            self.revoke(one[0], True)
        elif meanwhile != "nothing":
            self.wait_for_the_end(meanwhile, 0, False)
        for back in range(min(2, len(self.tickets))):
            self.admit(back, crash)
        self.exchange(0, "no")

    @rule(who=WHO, crash=CRASH)
    def come_back(self, who: Who, crash: str) -> None:
        self.exchange_proof(who, "no", True)
        if self.tickets:
            self.admit(0, crash)

    @precondition(lambda self: self.made)
    @rule(back=BACK, crash=CRASH)
    def exchange(self, back: int, crash: str) -> None:
        """Also again: a request once sent is known to whoever overheard it."""
        made = recent(self.made, back)
        answer = self.attempt(
            lambda tx: self.harness.door.issue_ticket(tx, made.request),
            self.exchanging(made),
            crash,
        )
        if answer is not None:
            made.earned = True
            ticket = TicketModel(answer.ws_ticket, made.who, made.invite, answer.expires_at)
            self.tickets.append(ticket)

    @precondition(lambda self: self.tickets)
    @rule(back=BACK, crash=CRASH)
    def admit(self, back: int, crash: str) -> None:
        ticket = recent(self.tickets, back)
        entered = self.attempt(
            lambda tx: self.harness.door.redeem_ticket(tx, ticket.text),
            self.entering(ticket),
            crash,
        )
        if entered is None:
            return
        assert (entered.node_id, entered.public_key) == (ticket.who[0], key(ticket.who[1]).public)
        ticket.used = True
        if crash == "no":
            self.connected[entered.session_id] = ticket.who[0]
        if ticket.invite is not None:
            ticket.invite.used_by = ticket.who
            self.admitted_by_invite.setdefault(ticket.invite.id, set()).add(ticket.who)
            self.admitted[ticket.who[0]] = ticket.who[1]

    def attempt(self, act: Callable[[Tx], T], expected: str, crash: str) -> T | None:
        """What `act` gave; None if it was refused, as expected, or lost in a crash."""
        try:
            value = None if crash == "before commit" else self.harness.run(act)
            if crash == "before commit":
                self.harness.crash_during(act)
        except GatepostError as error:
            assert error.code == expected
            return None
        assert expected == OK
        if crash != "no":
            self.reopen()
        return value

    @rule(id=IDS, sure=st.sampled_from([True, False, False]))
    def revoke(self, id: str, sure: bool) -> None:
        if not sure or (id not in self.admitted and id not in self.revoked):
            return
        out = self.harness.revoke(id)
        self.revoked.setdefault(id, self.admitted[id])
        named = {session for session, node in self.connected.items() if node == id}
        assert set(out.sessions) == named
        for session in named:
            del self.connected[session]

    @rule(ms=PAUSES)
    def wait(self, ms: int) -> None:
        self.harness.clock.advance(ms)
        self.prune()

    @rule(kind=st.sampled_from(["invites", "made", "tickets"]), back=BACK, early=st.booleans())
    def wait_for_the_end(self, kind: str, back: int, early: bool) -> None:
        """Where mistakes are: the moment something ends, and the one before."""
        things = getattr(self, kind)
        if things:
            end = recent(things, back).expires_at - early
            self.harness.clock.set(max(self.now, end))
            self.prune()

    def prune(self) -> None:
        self.harness.run(lambda tx: retention.prune_expired(tx, self.harness.policy, 1000))
        for invite in self.invites:
            invite.forgotten |= invite.expires_at <= self.now - self.harness.policy.remember

    @rule()
    def reopen(self) -> None:
        self.harness.reopen()
        self.harness.run(node_sessions.close_all_node_sessions)
        self.connected.clear()

    # -- what must hold whatever happened

    @invariant()
    def one_invite_admits_one_node_at_most(self) -> None:
        assert all(len(whos) == 1 for whos in self.admitted_by_invite.values())

    @invariant()
    def the_journal_says_what_the_model_says(self) -> None:
        admitted = {a.node_id: a.public_key for a in self.harness.admissions()}
        assert admitted == {id: key(name).public for id, name in self.admitted.items()}
        assert set(self.harness.revoked_nodes()) == set(self.revoked)

    @invariant()
    def no_revoked_node_is_connected(self) -> None:
        connected = self.harness.connected_nodes()
        assert connected == self.connected
        assert not set(connected.values()) & set(self.revoked)


DoorMachine.TestCase.settings = settings(
    max_examples=choose(40, 2000), stateful_step_count=50, deadline=None
)
TestDoor = DoorMachine.TestCase
