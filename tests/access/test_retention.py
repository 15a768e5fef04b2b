from gatepost.access import retention
from tests.access.harness import DAY, HOUR, AccessHarness, refused


def prune(harness: AccessHarness) -> int:
    return harness.run(lambda tx: retention.prune_expired(tx, harness.policy, 1000))


def rows(harness: AccessHarness, table: str) -> int:
    return harness.run(lambda tx: tx.fetch_all(f"SELECT count(*) FROM {table}"))[0][0]  # type: ignore[no-any-return]


def test_a_replay_guard_stays_as_long_as_its_invite_could_be_presented(
    harness: AccessHarness,
) -> None:
    request = harness.joiner("mbp-jane").with_invite(harness.invite("mbp-jane", ttl=HOUR).token)
    harness.exchange(request)
    harness.clock.advance(HOUR - 1)
    assert prune(harness) == 0
    with refused("replay_detected"):
        harness.exchange(request)
    harness.clock.advance(1)
    assert prune(harness) == 1
    with refused("expired_token"):
        harness.exchange(request)


def test_a_challenge_is_remembered_until_it_ends(harness: AccessHarness) -> None:
    harness.join("mbp-jane")
    request = harness.come_back("mbp-jane")
    harness.exchange(request)
    harness.clock.advance(59_999)
    prune(harness)
    with refused("replay_detected"):
        harness.exchange(request)
    harness.clock.advance(1)
    prune(harness)
    with refused("invalid_proof"):
        harness.exchange(request)


def test_a_used_ticket_forgotten_is_an_expired_ticket(harness: AccessHarness) -> None:
    harness.join("mbp-jane")
    ticket = harness.exchange(harness.come_back("mbp-jane")).ws_ticket
    harness.admit(ticket)
    harness.clock.advance(2 * HOUR)
    prune(harness)
    assert rows(harness, "ticket") == 0
    with refused("expired_ticket"):
        harness.admit(ticket)


def test_what_ended_is_listed_for_a_while_and_then_forgotten(harness: AccessHarness) -> None:
    harness.join("mbp-jane")
    harness.agent("codex")
    harness.clock.advance(30 * DAY)
    prune(harness)
    tables = ("invite", "agent_invite", "agent_session")
    assert [rows(harness, table) for table in tables] == [1, 1, 1]
    harness.clock.advance(8 * DAY)
    prune(harness)
    assert [rows(harness, table) for table in tables] == [0, 0, 0]


def test_admissions_and_revocations_are_never_forgotten(harness: AccessHarness) -> None:
    harness.join("mbp-jane")
    harness.join("lab-jane")
    harness.revoke("lab-jane")
    harness.clock.advance(3650 * DAY)
    prune(harness)
    assert (rows(harness, "admission"), rows(harness, "revocation")) == (2, 1)


def test_a_batch_is_bounded(harness: AccessHarness) -> None:
    token = harness.invite().token
    for _ in range(3):
        harness.exchange(harness.joiner("mbp-jane").with_invite(token))
    harness.clock.advance(HOUR)
    assert harness.run(lambda tx: retention.prune_expired(tx, harness.policy, 2)) == 2
    assert prune(harness) == 1
