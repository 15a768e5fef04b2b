from tests.access.harness import AccessHarness


def test_keys_for_two_purposes_differ_from_each_other_and_from_the_node_key(
    harness: AccessHarness,
) -> None:
    one, other = harness.issuer.derive_key("one"), harness.issuer.derive_key("other")
    assert len({one, other, harness.issuer.key.secret}) == 3
    assert one == harness.issuer.derive_key("one")


def test_printing_the_issuer_shows_no_key(harness: AccessHarness) -> None:
    assert harness.issuer.key.secret.hex() not in repr(harness.issuer)
    assert repr(harness.issuer.key.secret)[2:-1] not in repr(harness.issuer)
