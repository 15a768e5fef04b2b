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


def claim(node: str, address: str = "", rank: int = 0) -> TunnelClaim:
    return TunnelClaim(node, (rank, node), address)


def test_the_address_follows_from_the_key_and_stays() -> None:
    first = choose_address(NETWORK, claim("ann"), "key-of-ann", [])
    assert first == derive_candidate(NETWORK, "key-of-ann", 0)
    assert choose_address(NETWORK, claim("ann", first), "key-of-ann", []) == first


def test_of_two_claims_the_senior_one_counts_and_the_other_node_moves() -> None:
    address = "10.200.1.2"
    ann, bob = claim("ann", address, 1), claim("bob", address, 2)
    assert choose_address(NETWORK, ann, "a", [bob]) == address
    moved = choose_address(NETWORK, bob, "b", [ann])
    assert moved != address
    assert routed_addresses(honoured_claims(NETWORK, [bob, ann])) == {"ann": address}


@pytest.mark.parametrize("address", ["", "10.1.2.3", "10.200.0.0", "10.200.255.255", "x", "::1"])
def test_a_claim_outside_the_network_counts_for_nothing(address: str) -> None:
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
            address = choose_address(SMALL, claims[name], name, others)
            claims[name] = TunnelClaim(name, claims[name].rank, address)
        if claims == before:
            break
    assert len({each.address for each in claims.values()}) == len(order)


def test_a_full_network_and_one_without_room_are_named() -> None:
    taken = [claim(f"n{number}", f"10.200.200.{number}", number) for number in range(1, 15)]
    with pytest.raises(ConfigError, match="no free address"):
        choose_address(SMALL, claim("late", "", 99), "late", taken)
    for text in ("10.0.0.1/16", "10.0.0.0/31", "224.0.0.0/8", "nonsense"):
        with pytest.raises(ConfigError, match=r"wireguard\.network"):
            parse_network(text)
