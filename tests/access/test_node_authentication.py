"""Every refusal, in the one order there is; and how a node gets in."""

import hmac
from collections.abc import Callable, Iterable
from itertools import combinations

import msgspec
import pytest
from msgspec.structs import replace

from gatepost.access import AccessPolicy, node_invites, tokens
from gatepost.access.auth_messages import Challenge, ExchangeAnswer, ExchangeRequest
from gatepost.errors import GatepostError
from gatepost.journal.transaction import Row, Tx
from tests.access.harness import HOUR, START, AccessHarness, key, refused

OPEN_POLICY = AccessPolicy(profile="development", require_proof=False)


class Attempt:
    """One exchange with an invite, right in every way until a fault is put into it."""

    def __init__(self) -> None:
        self.harness = AccessHarness()
        self.issued = self.harness.invite("mbp-jane")
        self.node_id, self.proof = "mbp-jane", "right"
        self.rooms: tuple[str, ...] = ("ansible-control",)
        self.token = self.issued.token
        self.nonce = "n" * 16

    def request(self) -> ExchangeRequest:
        joiner = self.harness.joiner("mbp-jane", node_id=self.node_id)
        joiner.new_nonce = lambda: self.nonce  # type: ignore[method-assign]
        request = joiner.with_invite(self.token, self.rooms)
        if self.proof == "right":
            return request
        return replace(request, node_proof=None if self.proof == "missing" else bytes(64))

    def unknown_token(self) -> None:
        self.token = self.token[:-43] + "A" * 43

    def used(self) -> None:
        request = self.harness.joiner("mbp-jane").with_invite(self.issued.token)
        self.harness.admit(self.harness.exchange(request).ws_ticket)

    def withdrawn(self) -> None:
        self.harness.run(
            lambda tx: node_invites.revoke_node_invite(tx, self.issued.invite.id, "operator")
        )

    def expired(self) -> None:
        self.harness.clock.advance(HOUR)

    def other_node(self) -> None:
        self.node_id = "lab-jane"

    def node_revoked(self) -> None:
        self.harness.join("mbp-jane")
        self.harness.revoke("mbp-jane")

    def no_proof(self) -> None:
        self.proof = "missing"

    def wrong_proof(self) -> None:
        self.proof = "wrong"

    def replay(self) -> None:
        self.harness.exchange(self.request())

    def closed_room(self) -> None:
        self.rooms = ("ansible-control", "ansible-secret")


# In the order in which they must be found.
INVITED_FAULTS: dict[Callable[[Attempt], None], str] = {
    Attempt.unknown_token: "invalid_token",
    Attempt.used: "token_already_used",
    Attempt.withdrawn: "revoked",
    Attempt.expired: "expired_token",
    Attempt.other_node: "node_mismatch",
    Attempt.node_revoked: "revoked",
    Attempt.no_proof: "proof_required",
    Attempt.wrong_proof: "invalid_proof",
    Attempt.replay: "replay_detected",
    Attempt.closed_room: "forbidden",
}
# Faults are committed in another order than they are found: what needs a good invite first.
COMMITTED_FIRST = (Attempt.replay, Attempt.used, Attempt.node_revoked)
EXCLUSIVE = (
    {Attempt.used, Attempt.withdrawn},
    {Attempt.no_proof, Attempt.wrong_proof},
)


def some_faults(
    faults: Iterable[Callable[..., None]], exclusive: Iterable[set[Callable[..., None]]] = ()
) -> list[tuple[Callable[..., None], ...]]:
    """All ways of being wrong in one, two or three ways at once."""
    every = [chosen for n in (1, 2, 3) for chosen in combinations(faults, n)]
    return [chosen for chosen in every if not any(both <= set(chosen) for both in exclusive)]


def names(chosen: tuple[Callable[..., None], ...]) -> str:
    return "+".join(fault.__name__ for fault in chosen)


def test_an_exchange_without_fault_earns_a_ticket() -> None:
    attempt = Attempt()
    assert attempt.harness.exchange(attempt.request()).rooms == ("ansible-control",)


@pytest.mark.parametrize("chosen", some_faults(INVITED_FAULTS, EXCLUSIVE), ids=names)
def test_with_an_invite_the_first_fault_is_the_answer(
    chosen: tuple[Callable[[Attempt], None], ...],
) -> None:
    attempt = Attempt()
    early = [fault for fault in COMMITTED_FIRST if fault in chosen]
    for fault in early + [fault for fault in chosen if fault not in early]:
        fault(attempt)
    with refused(INVITED_FAULTS[chosen[0]]):
        attempt.harness.exchange(attempt.request())


class Return:
    """One exchange by proof, right in every way until a fault is put into it."""

    def __init__(self) -> None:
        self.harness = AccessHarness()
        self.harness.join("mbp-jane")
        self.issuer = self.harness.issuer.key.fingerprint
        self.name, self.node_id, self.rooms = "mbp-jane", "mbp-jane", ("ansible-control",)
        self.challenge: Challenge = self.harness.challenge()
        self.missing: set[str] = set()

    def request(self) -> ExchangeRequest:
        joiner = self.harness.joiner(self.name, node_id=self.node_id)
        request = joiner.with_challenge(self.challenge, self.issuer, self.rooms)
        return replace(request, **dict.fromkeys(self.missing))

    def no_proof(self) -> None:
        self.missing.add("node_proof")

    def no_challenge(self) -> None:
        self.missing.add("challenge")

    def late(self) -> None:
        self.harness.clock.advance(60_000)

    def unknown_node(self) -> None:
        self.node_id = "lab-jane"

    def wrong_key(self) -> None:
        self.name = "eve"

    def other_gateway(self) -> None:
        self.issuer = key("lab-jane").fingerprint

    def forged_challenge(self) -> None:
        self.challenge = replace(self.challenge, challenge="A" * 75)

    def node_revoked(self) -> None:
        self.harness.revoke("mbp-jane")

    def replay(self) -> None:
        self.harness.exchange(self.request())

    def closed_room(self) -> None:
        self.rooms = ("ansible-secret",)


RETURN_FAULTS: dict[Callable[[Return], None], str] = {
    Return.no_proof: "proof_required",
    Return.no_challenge: "proof_required",
    Return.late: "invalid_proof",
    Return.unknown_node: "invalid_proof",
    Return.wrong_key: "invalid_proof",
    Return.other_gateway: "invalid_proof",
    Return.forged_challenge: "invalid_proof",
    Return.node_revoked: "revoked",
    Return.replay: "replay_detected",
    Return.closed_room: "forbidden",
}


def test_a_node_that_was_admitted_comes_back_by_proof(harness: AccessHarness) -> None:
    first = harness.join("mbp-jane", tier="backbone")
    harness.clock.advance(90 * 24 * HOUR)
    again = harness.admit(harness.exchange(harness.come_back("mbp-jane")).ws_ticket)
    assert again == replace(first, session_id=again.session_id)
    assert again.session_id != first.session_id


@pytest.mark.parametrize("chosen", some_faults(RETURN_FAULTS), ids=names)
def test_by_proof_the_first_fault_is_the_answer(
    chosen: tuple[Callable[[Return], None], ...],
) -> None:
    attempt = Return()
    for fault in sorted(chosen, key=lambda fault: fault is not Return.replay):
        fault(attempt)
    with refused(RETURN_FAULTS[chosen[0]]):
        attempt.harness.exchange(attempt.request())


class Entry:
    """One ticket presented, right in every way until a fault is put into it."""

    def __init__(self) -> None:
        self.harness = AccessHarness()
        self.issued = self.harness.invite()
        self.ticket = self.mint("mbp-jane").ws_ticket
        self.claimed: str | None = None

    def mint(self, name: str) -> ExchangeAnswer:
        return self.harness.exchange(self.harness.joiner(name).with_invite(self.issued.token))

    def forged(self) -> None:
        head, _, _ = self.ticket.rpartition(".")
        self.ticket = f"{head}.{'A' * 86}"

    def late(self) -> None:
        self.harness.clock.advance(45_000)

    def used(self) -> None:
        self.harness.admit(self.ticket)

    def other_claim(self) -> None:
        self.claimed = "lab-jane"

    def node_revoked(self) -> None:
        self.harness.join("mbp-jane")
        self.harness.revoke("mbp-jane")

    def other_was_first(self) -> None:
        self.harness.admit(self.mint("lab-jane").ws_ticket)

    def withdrawn(self) -> None:
        self.harness.run(
            lambda tx: node_invites.revoke_node_invite(tx, self.issued.invite.id, "operator")
        )


ENTRY_FAULTS: dict[Callable[[Entry], None], str] = {
    Entry.forged: "invalid_ticket",
    Entry.late: "expired_ticket",
    Entry.used: "ticket_already_used",
    Entry.other_claim: "node_mismatch",
    Entry.node_revoked: "revoked",
    Entry.other_was_first: "token_already_used",
    Entry.withdrawn: "revoked",
}
ENTRY_EXCLUSIVE = (
    {Entry.used, Entry.other_was_first},
    {Entry.used, Entry.withdrawn},
    {Entry.other_was_first, Entry.withdrawn},
)
ENTRY_FIRST = (Entry.used, Entry.other_was_first, Entry.node_revoked)


@pytest.mark.parametrize("chosen", some_faults(ENTRY_FAULTS, ENTRY_EXCLUSIVE), ids=names)
def test_at_entry_the_first_fault_is_the_answer(
    chosen: tuple[Callable[[Entry], None], ...],
) -> None:
    entry = Entry()
    early = [fault for fault in ENTRY_FIRST if fault in chosen]
    for fault in early + [fault for fault in chosen if fault not in early]:
        fault(entry)
    with refused(ENTRY_FAULTS[chosen[0]]):
        entry.harness.admit(entry.ticket, entry.claimed)


# -- getting in


def test_whoever_claims_the_node_of_the_ticket_enters() -> None:
    entry = Entry()
    assert entry.harness.admit(entry.ticket, "mbp-jane").node_id == "mbp-jane"


def test_entry_consumes_the_invite_binds_the_key_and_admits_in_one_transaction() -> None:
    entry = Entry()
    harness = entry.harness
    before = harness.run(_everything)
    harness.crash_during(lambda tx: harness.door.redeem_ticket(tx, entry.ticket))
    assert harness.run(_everything) == before
    admitted = harness.admit(entry.ticket)
    (invite,) = harness.run(node_invites.list_node_invites)
    assert (invite.used_at, invite.used_by, invite.used_key) == (
        START,
        "mbp-jane",
        key("mbp-jane").public,
    )
    assert harness.admissions() == [admitted.admission]
    assert list(harness.connected_nodes()) == [admitted.session_id]


def _everything(tx: Tx) -> list[list[Row]]:
    tables = ("invite", "ticket", "admission", "node_session")
    return [tx.fetch_all(f"SELECT * FROM {table}") for table in tables]


def test_an_exchange_alone_consumes_nothing(harness: AccessHarness) -> None:
    token = harness.invite("mbp-jane").token
    harness.exchange(harness.joiner("mbp-jane").with_invite(token))
    (invite,) = harness.run(node_invites.list_node_invites)
    assert invite.state_at(START) == "open"
    assert harness.admissions() == []


def test_an_invite_earns_another_ticket_when_the_first_expired_unused(
    harness: AccessHarness,
) -> None:
    token = harness.invite("mbp-jane").token
    harness.exchange(harness.joiner("mbp-jane").with_invite(token))
    harness.clock.advance(45_000)
    second = harness.exchange(harness.joiner("mbp-jane").with_invite(token))
    assert harness.admit(second.ws_ticket).node_id == "mbp-jane"


def test_two_live_tickets_of_one_invite_admit_one_node() -> None:
    entry = Entry()
    rival = entry.mint("lab-jane").ws_ticket
    entry.harness.admit(entry.ticket)
    with refused("token_already_used"):
        entry.harness.admit(rival)
    assert [a.node_id for a in entry.harness.admissions()] == ["mbp-jane"]


def test_two_live_tickets_of_the_same_node_both_open_a_connection() -> None:
    entry = Entry()
    second = entry.mint("mbp-jane").ws_ticket
    first = entry.harness.admit(entry.ticket)
    entry.harness.clock.advance(1000)
    assert entry.harness.admit(second).admission == first.admission


def test_two_invites_and_one_name_admit_the_first_key_only(harness: AccessHarness) -> None:
    mine, theirs = (
        harness.exchange(
            harness.joiner(name, "mbp-jane").with_invite(harness.invite("mbp-jane").token)
        )
        for name in ("jane", "eve")
    )
    harness.admit(mine.ws_ticket)
    with refused("node_mismatch"):
        harness.admit(theirs.ws_ticket)


def test_a_joiner_that_lost_the_answer_to_its_entry_comes_back_by_proof() -> None:
    entry = Entry()
    entry.harness.admit(entry.ticket)
    with refused("token_already_used"):
        entry.mint("mbp-jane")
    again = entry.harness.admit(
        entry.harness.exchange(entry.harness.come_back("mbp-jane")).ws_ticket
    )
    assert again.admission is not None


def test_a_node_this_gateway_has_forgotten_cannot_enter_with_an_old_ticket(
    harness: AccessHarness,
) -> None:
    harness.join("mbp-jane")
    ticket = harness.exchange(harness.come_back("mbp-jane")).ws_ticket
    harness.connection.execute("DELETE FROM admission")
    with refused("invalid_ticket"):
        harness.admit(ticket)


# -- proof


def test_only_the_expected_key_may_use_an_invite_bound_to_a_key(harness: AccessHarness) -> None:
    token = harness.invite("mbp-jane", expected_key=key("mbp-jane").public).token
    with refused("invalid_proof"):
        harness.exchange(harness.joiner("eve", node_id="mbp-jane").with_invite(token))
    harness.exchange(harness.joiner("mbp-jane").with_invite(token))


def test_without_required_proof_a_key_is_bound_unproven_but_a_wrong_proof_stays_wrong() -> None:
    harness = AccessHarness(policy=OPEN_POLICY)
    request = harness.joiner("mbp-jane").with_invite(harness.invite("mbp-jane").token)
    with refused("invalid_proof"):
        harness.exchange(replace(request, node_proof=bytes(64)))
    ticket = harness.exchange(replace(request, node_proof=None)).ws_ticket
    assert harness.admit(ticket).public_key == key("mbp-jane").public


def test_without_required_proof_an_expected_key_is_still_expected() -> None:
    harness = AccessHarness(policy=OPEN_POLICY)
    token = harness.invite(expected_key=key("mbp-jane").public).token
    request = harness.joiner("eve").with_invite(token)
    with refused("invalid_proof"):
        harness.exchange(replace(request, node_proof=None))


def test_coming_back_needs_a_proof_whatever_the_policy() -> None:
    harness = AccessHarness(policy=OPEN_POLICY)
    harness.join("mbp-jane")
    with refused("proof_required"):
        harness.exchange(replace(harness.come_back("mbp-jane"), node_proof=None))


def test_a_proof_made_for_an_invite_is_no_answer_to_a_challenge(harness: AccessHarness) -> None:
    invited = harness.joiner("mbp-jane").with_invite(harness.invite("mbp-jane").token)
    harness.admit(harness.exchange(invited).ws_ticket)
    challenge = harness.challenge().challenge
    with refused("invalid_proof"):
        harness.exchange(replace(invited, invite_token=None, challenge=challenge))


# -- no oracle


def test_an_unknown_id_a_wrong_secret_and_a_foreign_invite_are_one_answer_at_one_cost(
    harness: AccessHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = harness.invite("mbp-jane").token
    prefix, public, secret = token.split(".")
    foreign = f"{public[:16]}{key('eve').fingerprint}"
    wrong = [
        f"{prefix}.{'0' * 16}{public[16:]}.{secret}",
        f"{prefix}.{public}.{'A' * 43}",
        f"{prefix}.{foreign}.{secret}",
        "gibberish",
        "",
    ]
    request = harness.joiner("mbp-jane").with_invite(token)
    answers, work = set(), []

    def compare(a: bytes, b: bytes) -> bool:
        work.append((len(a), len(b)))
        return hmac.compare_digest(a, b)

    monkeypatch.setattr(tokens, "compare_digest", compare)
    for text in wrong:
        with pytest.raises(GatepostError) as found:
            harness.exchange(replace(request, invite_token=text))
        answers.add((found.value.code, found.value.message))
    assert len(answers) == 1
    assert work == [(32, 32)] * len(wrong)


def test_an_unknown_node_a_wrong_key_and_an_old_challenge_are_one_answer() -> None:
    answers = set()
    for fault in (Return.late, Return.unknown_node, Return.wrong_key, Return.forged_challenge):
        attempt = Return()
        fault(attempt)
        with pytest.raises(GatepostError) as found:
            attempt.harness.exchange(attempt.request())
        answers.add((found.value.code, found.value.message))
    assert len(answers) == 1


# -- as it travels


def test_a_request_travels_with_the_names_of_the_protocol(harness: AccessHarness) -> None:
    request = harness.joiner("mbp-jane").with_invite(harness.invite("mbp-jane").token)
    encoded = msgspec.json.encode(request)
    assert set(msgspec.json.decode(encoded)) == {
        "inviteToken",
        "encryptedInvite",
        "nodeId",
        "nodeKey",
        "nodeProof",
        "nonce",
        "challenge",
        "requestedRooms",
    }
    assert msgspec.json.decode(encoded, type=ExchangeRequest) == request


def test_the_control_room_is_asked_for_unless_others_are() -> None:
    least = {"nodeId": "a", "nodeKey": "A" * 43 + "=", "nonce": "n" * 16, "inviteToken": "x"}
    request = msgspec.convert(least, ExchangeRequest, builtin_types=())
    assert request.requested_rooms == ("ansible-control",)


def test_an_answer_travels_with_the_names_of_the_protocol(harness: AccessHarness) -> None:
    answer = harness.exchange(
        harness.joiner("mbp-jane").with_invite(harness.invite("mbp-jane").token)
    )
    names = {"wsTicket", "expiresAt", "rooms", "sessionId", "issuerId", "issuerKey"}
    assert set(msgspec.json.decode(msgspec.json.encode(answer))) == names


KEYLESS_POLICY = AccessPolicy(profile="development", allow_keyless=True)


def test_a_node_without_a_key_is_admitted_in_development_only() -> None:
    """The body of the exchange is then the token, the node's id and a nonce."""
    for policy, admits in ((None, False), (OPEN_POLICY, False), (KEYLESS_POLICY, True)):
        harness = AccessHarness(policy=policy)
        body = {"inviteToken": harness.invite("pad").token, "nodeId": "pad", "nonce": "n" * 24}
        request = msgspec.convert(body, ExchangeRequest)
        if not admits:
            with refused("proof_required"):
                harness.exchange(request)
            continue
        admitted = harness.admit(harness.exchange(request).ws_ticket)
        assert (admitted.node_id, admitted.tier) == ("pad", "edge")


def test_a_keyless_node_has_one_identity_that_no_other_node_takes() -> None:
    harness = AccessHarness(policy=KEYLESS_POLICY)

    def request(node: str) -> ExchangeRequest:
        token = harness.invite().token
        nonce = f"nonce-of-{token[4:20]}"
        return ExchangeRequest(node_id=node, nonce=nonce, invite_token=token)

    first = harness.admit(harness.exchange(request("pad")).ws_ticket)
    again = harness.admit(harness.exchange(request("pad")).ws_ticket)
    other = harness.admit(harness.exchange(request("phone")).ws_ticket)
    assert first.public_key == again.public_key != other.public_key
    with refused("node_mismatch"):
        harness.exchange(harness.joiner("eve", "pad").with_invite(harness.invite().token))


def test_a_second_ticket_of_a_used_invite_opens_nothing_for_a_keyless_node() -> None:
    """With a key, the same node comes back with such a ticket: it proved the key for it."""
    harness = AccessHarness(policy=KEYLESS_POLICY)
    token = harness.invite("pad").token
    first, second = (
        harness.exchange(ExchangeRequest(node_id="pad", nonce=nonce * 24, invite_token=token))
        for nonce in ("n", "m")
    )
    harness.admit(first.ws_ticket)
    with refused("token_already_used"):
        harness.admit(second.ws_ticket)


def test_a_node_with_a_key_proves_it_though_others_need_none() -> None:
    harness = AccessHarness(policy=KEYLESS_POLICY)
    request = harness.joiner("mbp-jane").with_invite(harness.invite().token)
    with refused("proof_required"):
        harness.exchange(replace(request, node_proof=None))
    with refused("invalid_proof"):
        harness.exchange(replace(request, node_key=None))
    with refused("proof_required"):
        harness.exchange(replace(harness.come_back("mbp-jane"), node_key=None))
