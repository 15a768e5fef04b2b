from base64 import b64decode, b64encode

import pytest

from gatepost.mesh.wireguard_keys import WireGuardIdentity, is_owner_proven

ANN, EVE = WireGuardIdentity(b"a" * 32), WireGuardIdentity(b"e" * 32)
NODE_KEY = b"n" * 32


def test_a_key_is_proved_for_its_own_node_alone() -> None:
    proof = ANN.prove_owner(NODE_KEY)
    assert is_owner_proven(ANN.public_key, proof, NODE_KEY)
    assert not is_owner_proven(ANN.public_key, proof, b"e" * 32), "another node"
    assert not is_owner_proven(EVE.public_key, proof, NODE_KEY), "another key"
    assert not is_owner_proven(ANN.public_key, EVE.prove_owner(NODE_KEY), NODE_KEY)


@pytest.mark.parametrize("proof", ["", "A" * 128, "=", b64encode(b"x" * 96).decode(), "é"])
def test_other_texts_prove_nothing(proof: str) -> None:
    assert not is_owner_proven(ANN.public_key, proof, NODE_KEY)


def test_a_point_of_small_order_proves_nothing() -> None:
    """The zero key of WireGuard belongs to nobody."""
    signature = b64decode(ANN.prove_owner(NODE_KEY))[32:]
    for point in (bytes(32), b"\x01" + bytes(31)):
        proof = b64encode(point + signature).decode()
        assert not is_owner_proven(b64encode(bytes(32)).decode(), proof, NODE_KEY)
