import pytest
from nacl.exceptions import CryptoError

from gatepost.access import Issuer, MeshSecrets, MeshSecretStore
from gatepost.journal import Tx
from tests.access.gate import Gate, key


def test_there_are_none_until_some_are_made(gate: Gate) -> None:
    assert gate.run(gate.secrets.current_secrets) is None
    made = gate.run(gate.secrets.rotate_secrets)
    assert gate.run(gate.secrets.current_secrets) == made
    assert made.version == 1


def test_rotation_changes_both_and_counts(gate: Gate) -> None:
    first, second = gate.run(gate.secrets.rotate_secrets), gate.run(gate.secrets.rotate_secrets)
    assert second.version == 2
    assert first.cluster_token != second.cluster_token != second.join_secret
    assert first.join_secret != second.join_secret


def test_a_node_takes_over_newer_secrets_only(gate: Gate) -> None:
    told = MeshSecrets(3, "cluster", "join")
    assert gate.run(lambda tx: gate.secrets.adopt_secrets(tx, told)) == told
    other = MeshSecrets(3, "x", "y")
    assert gate.run(lambda tx: gate.secrets.adopt_secrets(tx, other)) == told
    assert gate.run(gate.secrets.current_secrets) == told


def test_the_journal_without_the_node_key_gives_them_not_away(gate: Gate) -> None:
    gate.run(gate.secrets.rotate_secrets)
    thief = MeshSecretStore(Issuer("vps-jane", key("eve"), gate.clock))
    with pytest.raises(CryptoError):
        thief.current_secrets(Tx(gate.connection, gate.clock.now()))
