"""Addresses in the tunnel without a server: derived from node keys, with rules for collisions.

Every node derives a row of candidates from its key, and takes the first that no senior node claims.
Two nodes may claim the same address before they know of each other. Then the claim of the senior
node counts everywhere, and the other one takes its next candidate. No node routes an address to a
claimant whose claim does not count, so a node cannot take over the traffic of a senior one. A node
claims its own candidates only: a senior node cannot follow a junior one from address to address.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b

from msgspec import Struct

from gatepost.errors import ConfigError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# The number of candidates before the network counts as full.
_MAX_CANDIDATES = 256
_CACHED = 4096
_MIN_ADDRESSES = 4


class TunnelClaim(Struct, frozen=True):
    """A node that claims a tunnel address. `rank` orders nodes by seniority, senior ones first.

    `key` is the fingerprint of its node key.
    """

    node: str
    rank: tuple[object, ...]
    address: str
    key: str


def parse_network(text: str) -> Network:
    """The network of tunnel addresses; ConfigError if it is too small for a mesh."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(f"wireguard.network is no network: {error}") from None
    if network.num_addresses < _MIN_ADDRESSES or network.is_multicast:
        raise ConfigError(f"wireguard.network {text} has no room for two nodes")
    return network


def honoured_claims(network: Network, claims: Iterable[TunnelClaim]) -> dict[str, TunnelClaim]:
    """Address → the claim that counts: the senior one of those whose candidate it is."""
    found: dict[str, TunnelClaim] = {}
    for claim in sorted(claims, key=lambda claim: claim.rank):
        if _is_candidate(network, claim.key, claim.address):
            found.setdefault(claim.address, claim)
    return found


def choose_address(network: Network, own: TunnelClaim, others: Iterable[TunnelClaim]) -> str:
    """The address of this node: the present one if its claim counts, else its next candidate."""
    honoured = honoured_claims(network, [own, *others])
    present = honoured.get(own.address)
    if present is not None and present.node == own.node:
        return own.address
    for number in range(_MAX_CANDIDATES):
        candidate = derive_candidate(network, own.key, number)
        if candidate not in honoured:
            return candidate
    raise ConfigError("wireguard.network has no free address left; use a larger one")


def derive_candidate(network: Network, key: str, number: int) -> str:
    """The candidate of this number for a key; neither the first nor the last address."""
    seed = blake2b(f"{network} {key} {number}".encode(), digest_size=16).digest()
    usable = network.num_addresses - 2
    return str(network[1 + int.from_bytes(seed, "big") % usable])


def routed_addresses(honoured: Mapping[str, TunnelClaim]) -> dict[str, str]:
    """Node → its address in the tunnel, for the nodes whose claims count."""
    return {claim.node: address for address, claim in honoured.items()}


@lru_cache(maxsize=_CACHED)
def _is_candidate(network: Network, key: str, address: str) -> bool:
    """Whether a key gives this address; usually the first candidate is it."""
    candidates = (derive_candidate(network, key, number) for number in range(_MAX_CANDIDATES))
    return address in candidates
