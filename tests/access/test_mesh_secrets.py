import pytest
from nacl.exceptions import CryptoError

from gatepost.access import Issuer, MeshSecrets, MeshSecretStore
from gatepost.journal import Tx
from tests.access.harness import AccessHarness, key


def test_there_are_none_until_some_are_made(harness: AccessHarness) -> None:
    assert harness.run(harness.secrets.current_secrets) is None
    made = harness.run(harness.secrets.rotate_secrets)
    assert harness.run(harness.secrets.current_secrets) == made
    assert made.version == 1


def test_rotation_changes_both_and_counts(harness: AccessHarness) -> None:
    first, second = (
        harness.run(harness.secrets.rotate_secrets),
        harness.run(harness.secrets.rotate_secrets),
    )
    assert second.version == 2
    assert first.cluster_token != second.cluster_token != second.join_secret
    assert first.join_secret != second.join_secret


def adopt(harness: AccessHarness, told: MeshSecrets, *members: str) -> MeshSecrets:
    return harness.run(lambda tx: harness.secrets.adopt_secrets(tx, told, members.__contains__))


def test_a_node_takes_over_newer_secrets_only(harness: AccessHarness) -> None:
    told = MeshSecrets(3, "lab", "cluster", "join")
    assert adopt(harness, told, "lab") == told
    for older in (MeshSecrets(3, "jane", "x", "y"), MeshSecrets(2, "vps", "x", "y")):
        assert adopt(harness, older, "lab", "jane", "vps") == told
    assert harness.run(harness.secrets.current_secrets) == told


def test_of_two_versions_made_at_once_all_nodes_take_the_same(harness: AccessHarness) -> None:
    one, other = MeshSecrets(2, "ann", "a", "a"), MeshSecrets(2, "bob", "b", "b")
    assert adopt(harness, one, "ann", "bob") == one
    assert adopt(harness, other, "ann", "bob") == other
    assert adopt(harness, one, "ann", "bob") == other


def test_nobody_uses_up_the_versions(harness: AccessHarness) -> None:
    known = adopt(harness, MeshSecrets(3, "lab", "a", "a"), "lab")
    assert adopt(harness, MeshSecrets(2**40, "lab", "b", "b"), "lab") == known


def test_secrets_of_a_revoked_node_give_way(harness: AccessHarness) -> None:
    adopt(harness, MeshSecrets(2**40, "eve", "a", "a"), "eve")
    later = MeshSecrets(4, "lab", "b", "b")
    assert adopt(harness, later, "lab") == later


def test_the_journal_without_the_node_key_gives_them_not_away(harness: AccessHarness) -> None:
    harness.run(harness.secrets.rotate_secrets)
    thief = MeshSecretStore(Issuer("vps-jane", key("eve"), harness.clock))
    with pytest.raises(CryptoError):
        thief.current_secrets(Tx(harness.connection, harness.clock.now()))
