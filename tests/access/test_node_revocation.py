import apsw
import pytest

from gatepost.access import KnownNode, MeshSecretStore, NodeRevoker, node_revocation, node_sessions
from tests.access.gate import START, Gate, key, refused
from tests.access.test_node_directory import Told


def test_a_revocation_says_who_what_stands_and_up_to_where(gate: Gate) -> None:
    gate.join("mbp-jane")
    out = gate.revoke("mbp-jane", last_seq=41, reason="stolen").revocation
    assert (out.node_id, out.public_key) == ("mbp-jane", key("mbp-jane").public)
    assert (out.issuer, out.revoked_at, out.last_seq) == ("vps-jane", START, 41)
    assert (out.standing, out.reason) == ((), "stolen")
    assert gate.run(lambda tx: node_revocation.load_revocation(tx, "mbp-jane")) == out


def test_it_names_the_live_sessions_to_end_and_only_those(gate: Gate) -> None:
    gone = gate.join("mbp-jane").session_id
    gate.run(lambda tx: node_sessions.close_node_session(tx, gone))
    live = {gate.admit(gate.exchange(gate.come_back("mbp-jane")).ws_ticket) for _ in range(2)}
    other = gate.join("lab-jane").session_id
    assert set(gate.revoke("mbp-jane").sessions) == {admitted.session_id for admitted in live}
    assert list(gate.connected_nodes()) == [other]


def test_it_rotates_the_secrets_the_node_knew(gate: Gate) -> None:
    gate.join("mbp-jane")
    before = gate.run(gate.secrets.rotate_secrets)
    after = gate.revoke("mbp-jane").secrets
    assert gate.run(gate.secrets.current_secrets) == after
    assert after.version == before.version + 1
    assert after.cluster_token != before.cluster_token
    assert after.join_secret != before.join_secret


def test_revoking_twice_is_revoking_once(gate: Gate) -> None:
    gate.join("mbp-jane")
    first = gate.revoke("mbp-jane", last_seq=1)
    gate.clock.advance(1000)
    second = gate.revoke("mbp-jane", last_seq=9)
    assert second.revocation == first.revocation
    assert second.secrets == first.secrets


def test_a_revoked_node_gets_in_by_no_way(gate: Gate) -> None:
    gate.join("mbp-jane")
    ticket = gate.exchange(gate.come_back("mbp-jane")).ws_ticket
    invited = gate.joiner("mbp-jane").with_invite(gate.invite("mbp-jane").token)
    gate.revoke("mbp-jane")
    with refused("revoked"):
        gate.admit(ticket)
    with refused("revoked"):
        gate.exchange(gate.come_back("mbp-jane"))
    with refused("revoked"):
        gate.exchange(invited)


@pytest.mark.parametrize(("id", "name"), [("mbp-jane", "new key"), ("new-id", "mbp-jane")])
def test_neither_its_id_nor_its_key_comes_back_in_other_company(
    gate: Gate, id: str, name: str
) -> None:
    gate.join("mbp-jane")
    gate.revoke("mbp-jane")
    with refused("revoked"):
        gate.exchange(gate.joiner(name, node_id=id).with_invite(gate.invite().token))


def test_who_does_not_hold_its_key_does_not_learn_that_it_was_revoked(gate: Gate) -> None:
    gate.join("mbp-jane")
    gate.revoke("mbp-jane")
    forged = gate.joiner("eve", node_id="mbp-jane").with_challenge(
        gate.challenge(), gate.issuer.key.fingerprint
    )
    with refused("invalid_proof"):
        gate.exchange(forged)


def revoker(gate: Gate) -> NodeRevoker:
    """One who knows, from the room, of a backbone node and whom it admitted."""
    admitted = tuple(KnownNode(name, key(name).public, "edge", False) for name in "abc")
    told = Told(KnownNode("lab", b"k" * 32, "backbone", False), admitted=admitted)
    return NodeRevoker(gate.issuer, told, MeshSecretStore(gate.issuer))


def test_all_it_admitted_stay_unless_some_are_chosen(gate: Gate) -> None:
    all = gate.run(lambda tx: revoker(gate).revoke_node(tx, "lab", actor="jane", last_seq=1))
    assert set(all.revocation.standing) == {key(name).fingerprint for name in "abc"}


def test_the_chosen_ones_stay(gate: Gate) -> None:
    chosen = ["c", "a"]
    some = gate.run(
        lambda tx: revoker(gate).revoke_node(tx, "lab", actor="jane", last_seq=1, standing=chosen)
    )
    assert set(some.revocation.standing) == {key(name).fingerprint for name in "ac"}


def test_none_stay_if_none_are_chosen(gate: Gate) -> None:
    none = gate.run(
        lambda tx: revoker(gate).revoke_node(tx, "lab", actor="jane", last_seq=1, standing=())
    )
    assert none.revocation.standing == ()


def test_what_it_did_not_admit_cannot_stand(gate: Gate) -> None:
    with refused("invalid_request"):
        gate.run(
            lambda tx: revoker(gate).revoke_node(
                tx, "lab", actor="jane", last_seq=1, standing=["z"]
            )
        )


def test_nobody_revokes_itself_or_whom_it_does_not_know(gate: Gate) -> None:
    with refused("invalid_request"):
        gate.revoke("vps-jane")
    with refused("unknown_node"):
        gate.revoke("mbp-jane")


def test_an_edge_node_cannot_revoke() -> None:
    with refused("forbidden"):
        Gate(tier="edge").revoke("mbp-jane")


@pytest.mark.parametrize("sql", ["DELETE FROM revocation", "UPDATE revocation SET last_seq = 99"])
def test_storage_itself_keeps_a_revocation(gate: Gate, sql: str) -> None:
    gate.join("mbp-jane")
    gate.revoke("mbp-jane")
    with pytest.raises(apsw.ConstraintError, match="revocation never"):
        gate.connection.execute(sql)
