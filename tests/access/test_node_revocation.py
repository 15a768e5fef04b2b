import apsw
import pytest

from gatepost.access import KnownNode, MeshSecretStore, NodeRevoker, node_revocation, node_sessions
from tests.access.harness import START, AccessHarness, key, refused
from tests.access.test_node_directory import Told


def test_a_revocation_says_who_what_stands_and_up_to_where(harness: AccessHarness) -> None:
    harness.join("mbp-jane")
    out = harness.revoke("mbp-jane", last_seq=41, reason="stolen").revocation
    assert (out.node_id, out.public_key) == ("mbp-jane", key("mbp-jane").public)
    assert (out.issuer, out.revoked_at, out.last_seq) == ("vps-jane", START, 41)
    assert (out.standing, out.reason) == ((), "stolen")
    assert harness.run(lambda tx: node_revocation.load_revocation(tx, "mbp-jane")) == out


def test_it_names_the_live_sessions_to_end_and_only_those(harness: AccessHarness) -> None:
    gone = harness.join("mbp-jane").session_id
    harness.run(lambda tx: node_sessions.close_node_session(tx, gone))
    live = {
        harness.admit(harness.exchange(harness.come_back("mbp-jane")).ws_ticket) for _ in range(2)
    }
    other = harness.join("lab-jane").session_id
    assert set(harness.revoke("mbp-jane").sessions) == {admitted.session_id for admitted in live}
    assert list(harness.connected_nodes()) == [other]


def test_it_rotates_the_secrets_the_node_knew(harness: AccessHarness) -> None:
    harness.join("mbp-jane")
    before = harness.run(harness.secrets.rotate_secrets)
    after = harness.revoke("mbp-jane").secrets
    assert harness.run(harness.secrets.current_secrets) == after
    assert after.version == before.version + 1
    assert after.cluster_token != before.cluster_token
    assert after.join_secret != before.join_secret


def test_revoking_twice_is_revoking_once(harness: AccessHarness) -> None:
    harness.join("mbp-jane")
    first = harness.revoke("mbp-jane", last_seq=1)
    harness.clock.advance(1000)
    second = harness.revoke("mbp-jane", last_seq=9)
    assert second.revocation == first.revocation
    assert second.secrets == first.secrets


def test_a_revoked_node_gets_in_by_no_way(harness: AccessHarness) -> None:
    harness.join("mbp-jane")
    ticket = harness.exchange(harness.come_back("mbp-jane")).ws_ticket
    invited = harness.joiner("mbp-jane").with_invite(harness.invite("mbp-jane").token)
    harness.revoke("mbp-jane")
    with refused("revoked"):
        harness.admit(ticket)
    with refused("revoked"):
        harness.exchange(harness.come_back("mbp-jane"))
    with refused("revoked"):
        harness.exchange(invited)


@pytest.mark.parametrize(("id", "name"), [("mbp-jane", "new key"), ("new-id", "mbp-jane")])
def test_neither_its_id_nor_its_key_comes_back_in_other_company(
    harness: AccessHarness, id: str, name: str
) -> None:
    harness.join("mbp-jane")
    harness.revoke("mbp-jane")
    with refused("revoked"):
        harness.exchange(harness.joiner(name, node_id=id).with_invite(harness.invite().token))


def test_who_does_not_hold_its_key_does_not_learn_that_it_was_revoked(
    harness: AccessHarness,
) -> None:
    harness.join("mbp-jane")
    harness.revoke("mbp-jane")
    forged = harness.joiner("eve", node_id="mbp-jane").with_challenge(
        harness.challenge(), harness.issuer.key.fingerprint
    )
    with refused("invalid_proof"):
        harness.exchange(forged)


def revoker(harness: AccessHarness) -> NodeRevoker:
    """One who knows, from the room, of a backbone node and whom it admitted."""
    admitted = tuple(KnownNode(name, key(name).public, "edge", False) for name in "abc")
    told = Told(KnownNode("lab", b"k" * 32, "backbone", False), admitted=admitted)
    return NodeRevoker(harness.issuer, told, MeshSecretStore(harness.issuer))


def test_all_it_admitted_stay_unless_some_are_chosen(harness: AccessHarness) -> None:
    all = harness.run(lambda tx: revoker(harness).revoke_node(tx, "lab", actor="jane", last_seq=1))
    assert set(all.revocation.standing) == {key(name).fingerprint for name in "abc"}


def test_the_chosen_ones_stay(harness: AccessHarness) -> None:
    chosen = ["c", "a"]
    some = harness.run(
        lambda tx: revoker(harness).revoke_node(
            tx, "lab", actor="jane", last_seq=1, standing=chosen
        )
    )
    assert set(some.revocation.standing) == {key(name).fingerprint for name in "ac"}


def test_none_stay_if_none_are_chosen(harness: AccessHarness) -> None:
    none = harness.run(
        lambda tx: revoker(harness).revoke_node(tx, "lab", actor="jane", last_seq=1, standing=())
    )
    assert none.revocation.standing == ()


def test_what_it_did_not_admit_cannot_stand(harness: AccessHarness) -> None:
    with refused("invalid_request"):
        harness.run(
            lambda tx: revoker(harness).revoke_node(
                tx, "lab", actor="jane", last_seq=1, standing=["z"]
            )
        )


def test_nobody_revokes_itself_or_whom_it_does_not_know(harness: AccessHarness) -> None:
    with refused("invalid_request"):
        harness.revoke("vps-jane")
    with refused("unknown_node"):
        harness.revoke("mbp-jane")


def test_an_edge_node_cannot_revoke() -> None:
    with refused("forbidden"):
        AccessHarness(tier="edge").revoke("mbp-jane")


@pytest.mark.parametrize("sql", ["DELETE FROM revocation", "UPDATE revocation SET last_seq = 99"])
def test_storage_itself_keeps_a_revocation(harness: AccessHarness, sql: str) -> None:
    harness.join("mbp-jane")
    harness.revoke("mbp-jane")
    with pytest.raises(apsw.ConstraintError, match="revocation never"):
        harness.connection.execute(sql)
