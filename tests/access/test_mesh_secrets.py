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


def test_a_node_takes_over_newer_secrets_only(harness: AccessHarness) -> None:
    told = MeshSecrets(3, "cluster", "join")
    assert harness.run(lambda tx: harness.secrets.adopt_secrets(tx, told)) == told
    other = MeshSecrets(3, "x", "y")
    assert harness.run(lambda tx: harness.secrets.adopt_secrets(tx, other)) == told
    assert harness.run(harness.secrets.current_secrets) == told


def test_the_journal_without_the_node_key_gives_them_not_away(harness: AccessHarness) -> None:
    harness.run(harness.secrets.rotate_secrets)
    thief = MeshSecretStore(Issuer("vps-jane", key("eve"), harness.clock))
    with pytest.raises(CryptoError):
        thief.current_secrets(Tx(harness.connection, harness.clock.now()))
