from tests.access.gate import Gate


def test_keys_for_two_purposes_differ_from_each_other_and_from_the_node_key(gate: Gate) -> None:
    one, other = gate.issuer.derive_key("one"), gate.issuer.derive_key("other")
    assert len({one, other, gate.issuer.key.secret}) == 3
    assert one == gate.issuer.derive_key("one")


def test_printing_the_issuer_shows_no_key(gate: Gate) -> None:
    assert gate.issuer.key.secret.hex() not in repr(gate.issuer)
    assert repr(gate.issuer.key.secret)[2:-1] not in repr(gate.issuer)
