"""Addresses in the tunnel, allotted without a server: derived from the node key, and collisions.

Every node derives a row of candidates from its key, and takes the first that nobody senior claims.
Two nodes may claim the same address before they know of each other. Then the claim of the senior
node counts everywhere, and the other one takes its next candidate. No node routes an address to a
claimant whose claim does not count, so a node cannot take over the traffic of a senior one.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from itertools import count

from msgspec import Struct

from gatepost.errors import ConfigError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# As many addresses are tried before the network counts as full.
_MAX_CANDIDATES = 10_000
_MIN_ADDRESSES = 4


class TunnelClaim(Struct, frozen=True):
    """A node that claims a tunnel address. `rank` orders nodes by seniority, senior ones first."""

    node: str
    rank: tuple[object, ...]
    address: str


def parse_network(text: str) -> Network:
    """The network of tunnel addresses; ConfigError if it has no room for a mesh."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(f"wireguard.network is no network: {error}") from None
    if network.num_addresses < _MIN_ADDRESSES or network.is_multicast:
        raise ConfigError(f"wireguard.network {text} has no room for two nodes")
    return network


def honoured_claims(network: Network, claims: Iterable[TunnelClaim]) -> dict[str, TunnelClaim]:
    """Address → the claim that counts: the senior one of those inside the network."""
    found: dict[str, TunnelClaim] = {}
    for claim in sorted(claims, key=lambda claim: claim.rank):
        address = _address_in(network, claim.address)
        if address is not None:
            found.setdefault(address, claim)
    return found


def choose_address(
    network: Network, own: TunnelClaim, key: str, others: Iterable[TunnelClaim]
) -> str:
    """The address of this node: the present one if its claim counts, else its next candidate."""
    honoured = honoured_claims(network, [own, *others])
    present = _address_in(network, own.address)
    if present is not None and honoured[present].node == own.node:
        return present
    taken = honoured.keys()
    for number in count():
        if number == _MAX_CANDIDATES:
            raise ConfigError("wireguard.network has no free address left; use a larger one")
        candidate = derive_candidate(network, key, number)
        if candidate not in taken:
            return candidate
    raise AssertionError("unreachable")


def derive_candidate(network: Network, key: str, number: int) -> str:
    """The candidate of this number for a key; neither the first nor the last address."""
    seed = blake2b(f"{network} {key} {number}".encode(), digest_size=16).digest()
    usable = network.num_addresses - 2
    return str(network[1 + int.from_bytes(seed, "big") % usable])


def routed_addresses(honoured: Mapping[str, TunnelClaim]) -> dict[str, str]:
    """Node → its address in the tunnel, for the nodes whose claims count."""
    return {claim.node: address for address, claim in honoured.items()}


def _address_in(network: Network, text: str) -> str | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    inside = address in network and address not in {network[0], network[-1]}
    return str(address) if inside else None
