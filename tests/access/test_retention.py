from gatepost.access import retention
from tests.access.gate import DAY, HOUR, Gate, refused


def prune(gate: Gate) -> int:
    return gate.run(lambda tx: retention.prune_expired(tx, gate.policy, 1000))


def rows(gate: Gate, table: str) -> int:
    return gate.run(lambda tx: tx.fetch_all(f"SELECT count(*) FROM {table}"))[0][0]  # type: ignore[no-any-return]


def test_a_replay_guard_stays_as_long_as_its_invite_could_be_presented(gate: Gate) -> None:
    request = gate.joiner("mbp-jane").with_invite(gate.invite("mbp-jane", ttl=HOUR).token)
    gate.exchange(request)
    gate.clock.advance(HOUR - 1)
    assert prune(gate) == 0
    with refused("replay_detected"):
        gate.exchange(request)
    gate.clock.advance(1)
    assert prune(gate) == 1
    with refused("expired_token"):
        gate.exchange(request)


def test_a_challenge_is_remembered_until_it_ends(gate: Gate) -> None:
    gate.join("mbp-jane")
    request = gate.come_back("mbp-jane")
    gate.exchange(request)
    gate.clock.advance(59_999)
    prune(gate)
    with refused("replay_detected"):
        gate.exchange(request)
    gate.clock.advance(1)
    prune(gate)
    with refused("invalid_proof"):
        gate.exchange(request)


def test_a_used_ticket_forgotten_is_an_expired_ticket(gate: Gate) -> None:
    gate.join("mbp-jane")
    ticket = gate.exchange(gate.come_back("mbp-jane")).ws_ticket
    gate.admit(ticket)
    gate.clock.advance(2 * HOUR)
    prune(gate)
    assert rows(gate, "ticket") == 0
    with refused("expired_ticket"):
        gate.admit(ticket)


def test_what_ended_is_listed_for_a_while_and_then_forgotten(gate: Gate) -> None:
    gate.join("mbp-jane")
    gate.agent("codex")
    gate.clock.advance(30 * DAY)
    prune(gate)
    tables = ("invite", "agent_invite", "agent_session")
    assert [rows(gate, table) for table in tables] == [1, 1, 1]
    gate.clock.advance(8 * DAY)
    prune(gate)
    assert [rows(gate, table) for table in tables] == [0, 0, 0]


def test_admissions_and_revocations_are_never_forgotten(gate: Gate) -> None:
    gate.join("mbp-jane")
    gate.join("lab-jane")
    gate.revoke("lab-jane")
    gate.clock.advance(3650 * DAY)
    prune(gate)
    assert (rows(gate, "admission"), rows(gate, "revocation")) == (2, 1)


def test_a_batch_is_bounded(gate: Gate) -> None:
    token = gate.invite().token
    for _ in range(3):
        gate.exchange(gate.joiner("mbp-jane").with_invite(token))
    gate.clock.advance(HOUR)
    assert gate.run(lambda tx: retention.prune_expired(tx, gate.policy, 2)) == 2
    assert prune(gate) == 1
