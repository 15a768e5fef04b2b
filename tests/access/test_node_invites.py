import apsw
import pytest

from gatepost.access import AccessPolicy, node_invites
from gatepost.errors import WrongState
from tests.access.harness import DAY, HOUR, START, AccessHarness, key, refused


def test_an_invite_names_its_issuer_by_fingerprint(harness: AccessHarness) -> None:
    token = harness.invite("mbp-jane").token
    assert token.startswith("gp1.")
    assert node_invites.read_invite_issuer(token).fingerprint == harness.issuer.key.fingerprint


def test_an_invite_names_the_certificate_of_a_gateway_that_made_its_own(
    harness: AccessHarness,
) -> None:
    pin = "0123456789abcdef" * 4
    issued = harness.run(
        lambda tx: node_invites.issue_node_invite(
            tx, harness.issuer, tier="edge", ttl=HOUR, actor="operator", tls_pin=pin
        )
    )
    found = node_invites.read_invite_issuer(issued.token)
    assert (found.fingerprint, found.tls_pin) == (harness.issuer.key.fingerprint, pin)
    request = harness.joiner("mbp-jane").with_invite(issued.token)
    assert harness.exchange(request).issuer_id == harness.issuer.id


@pytest.mark.parametrize("digits", [0, 31, 33, 95, 97, 112])
def test_what_is_no_invite_names_no_issuer(digits: int) -> None:
    secret = "s" * 43
    for text in ("gp1.what.ever", f"gp1.{'0' * 16}{'a' * digits}.{secret}"):
        with refused("invalid_token"):
            node_invites.read_invite_issuer(text)


def test_an_issued_invite_is_listed_with_all_but_its_secret(harness: AccessHarness) -> None:
    issued = harness.invite("mbp-jane", tier="backbone", expected_key=key("mbp-jane").public)
    (listed,) = harness.run(node_invites.list_node_invites)
    assert listed == issued.invite
    assert (listed.tier, listed.expected_node_id) == ("backbone", "mbp-jane")
    assert listed.expected_key == key("mbp-jane").public
    assert (listed.created_by, listed.created_at, listed.expires_at) == (
        "operator",
        START,
        START + HOUR,
    )
    assert listed.state_at(START) == "open"
    assert listed.state_at(START + HOUR) == "expired"


def test_an_edge_node_cannot_invite() -> None:
    with refused("forbidden"):
        AccessHarness(tier="edge").invite()


@pytest.mark.parametrize("ttl", [0, -1, 30 * DAY + 1])
def test_an_invite_lasts_some_time_and_not_for_ever(harness: AccessHarness, ttl: int) -> None:
    with refused("invalid_request"):
        harness.invite(ttl=ttl)


def test_an_invite_for_an_impossible_name_is_refused(harness: AccessHarness) -> None:
    with refused("invalid_id"):
        harness.invite("../etc")


def test_a_revoked_invite_says_so_and_revoking_again_changes_nothing(
    harness: AccessHarness,
) -> None:
    id = harness.invite().invite.id
    first = harness.run(lambda tx: node_invites.revoke_node_invite(tx, id, "operator"))
    harness.clock.advance(HOUR)
    assert harness.run(lambda tx: node_invites.revoke_node_invite(tx, id, "operator")) == first
    assert first.state_at(START) == "revoked"


def test_a_used_invite_cannot_be_revoked(harness: AccessHarness) -> None:
    harness.join("mbp-jane")
    (invite,) = harness.run(node_invites.list_node_invites)
    assert (invite.state_at(START), invite.used_by) == ("used", "mbp-jane")
    with pytest.raises(WrongState, match="mbp-jane"):
        harness.run(lambda tx: node_invites.revoke_node_invite(tx, invite.id, "operator"))


def test_an_unknown_invite_cannot_be_revoked(harness: AccessHarness) -> None:
    with refused("unknown_invite"):
        harness.run(lambda tx: node_invites.revoke_node_invite(tx, "0" * 16, "operator"))


def test_storage_itself_keeps_a_used_invite_used(harness: AccessHarness) -> None:
    harness.join("mbp-jane")
    with pytest.raises(apsw.ConstraintError, match="never changes"):
        harness.connection.execute("UPDATE invite SET used_at = NULL")


def test_issuing_and_revoking_are_audited(harness: AccessHarness) -> None:
    id = harness.invite("mbp-jane").invite.id
    harness.run(lambda tx: node_invites.revoke_node_invite(tx, id, "jane"))
    rows = harness.run(lambda tx: tx.fetch_all("SELECT actor, action, subject FROM audit"))
    assert rows == [("operator", "invite.issue", id), ("jane", "invite.revoke", id)]


def test_default_policy_is_the_strict_one() -> None:
    assert AccessHarness().policy == AccessPolicy(profile="production", require_proof=True)
