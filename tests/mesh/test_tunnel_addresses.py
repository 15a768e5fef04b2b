import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatepost.errors import ConfigError
from gatepost.mesh.tunnel_addresses import (
    TunnelClaim,
    choose_address,
    derive_candidate,
    honoured_claims,
    parse_network,
    routed_addresses,
)

NETWORK = parse_network("10.200.0.0/16")
SMALL = parse_network("10.200.200.0/28")


def claim(node: str, address: str = "", rank: int = 0, key: str = "") -> TunnelClaim:
    return TunnelClaim(node, (rank, node), address, key or node)


def test_the_address_follows_from_the_key_and_stays() -> None:
    first = choose_address(NETWORK, claim("ann"), [])
    assert first == derive_candidate(NETWORK, "ann", 0)
    assert choose_address(NETWORK, claim("ann", first), []) == first


def test_of_two_claims_the_senior_one_counts_and_the_other_node_moves() -> None:
    address = derive_candidate(NETWORK, "k", 0)
    ann, bob = claim("ann", address, 1, "k"), claim("bob", address, 2, "k")
    assert choose_address(NETWORK, ann, [bob]) == address
    moved = choose_address(NETWORK, bob, [ann])
    assert moved != address
    assert routed_addresses(honoured_claims(NETWORK, [bob, ann])) == {"ann": address}


def test_a_senior_node_does_not_take_the_address_of_a_junior_one() -> None:
    """It could follow the junior node from address to address, so that its tunnel never stood."""
    bob = claim("bob", derive_candidate(NETWORK, "bob", 0), 2)
    eve = claim("eve", bob.address, 1)
    assert honoured_claims(NETWORK, [eve, bob]) == {bob.address: bob}
    assert choose_address(NETWORK, bob, [eve]) == bob.address
    assert choose_address(NETWORK, eve, [bob]) == derive_candidate(NETWORK, "eve", 0)


@pytest.mark.parametrize(
    "address",
    ["", "10.1.2.3", "10.200.0.0", "10.200.255.255", "x", "::1", "0.0.0.0/0", "10.200.1.2"],
)
def test_a_claim_of_another_address_than_its_own_counts_for_nothing(address: str) -> None:
    assert honoured_claims(NETWORK, [claim("eve", address)]) == {}


@given(st.permutations([f"n{number}" for number in range(14)]))
@settings(max_examples=30, deadline=None)
def test_all_nodes_of_a_full_network_end_with_different_addresses(order: list[str]) -> None:
    """Nodes look and move one after the other, in any order, until nobody moves any more."""
    claims = {name: claim(name, "", rank) for rank, name in enumerate(sorted(order))}
    for _ in range(len(order) + 1):
        before = dict(claims)
        for name in order:
            others = [each for each in claims.values() if each.node != name]
            address = choose_address(SMALL, claims[name], others)
            claims[name] = TunnelClaim(name, claims[name].rank, address, name)
        if claims == before:
            break
    assert len({each.address for each in claims.values()}) == len(order)


def test_a_full_network_and_one_without_room_are_named() -> None:
    # Nodes with one key, and so with the same candidates.
    addresses = {derive_candidate(SMALL, "k", number) for number in range(256)}
    taken = [claim(f"n{each}", each, 1, "k") for each in addresses]
    assert len(taken) == 14
    with pytest.raises(ConfigError, match="no free address"):
        choose_address(SMALL, claim("late", "", 99, "k"), taken)
    for text in ("10.0.0.1/16", "10.0.0.0/31", "224.0.0.0/8", "nonsense"):
        with pytest.raises(ConfigError, match=r"wireguard\.network"):
            parse_network(text)
