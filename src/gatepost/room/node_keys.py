"""The key of each node id: the first key seen by this replica counts until it is revoked.

A backbone node could admit a second key under the id of another node, and get its mail. Times and
versions do not prove which admission is older, because their issuer chooses them. So a replica
trusts the key it already knows. A record of a second key is not stored, so it does not spread to
nodes that join later. The replica reports who admitted the second key.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from gatepost.room.admission_chain import AdmissionLink, Genesis
from gatepost.room.membership import NodeIdentity
from gatepost.room.signed_record import SignedRecord

_CACHED_CHAINS = 20_000
# The most keys that a node admitted by the genesis and all nodes behind it bring in.
_MAX_NODES_PER_BRANCH = 8192


class NodeKeys:
    """Node id → its keys. All but one of them are revoked."""

    def __init__(self, genesis: Genesis, known: Iterable[NodeIdentity] = ()) -> None:
        self._keys: dict[str, set[bytes]] = {genesis.node: {genesis.key}}
        self._bound_chains: set[tuple[AdmissionLink, ...]] = set()
        self._branch_counts: Counter[bytes] = Counter()
        for node, key in known:
            self._keys.setdefault(node, set()).add(key)

    def identities(self) -> list[NodeIdentity]:
        return [(node, key) for node, keys in self._keys.items() for key in keys]

    def find_second_key(
        self, signed: SignedRecord, find_revoked: Callable[[], Collection[NodeIdentity]]
    ) -> AdmissionLink | None:
        """The admission in the record's chain that gives a known node another key."""
        if signed.chain in self._bound_chains:
            return None
        for link in signed.chain:
            keys = self._keys.get(link.node, set())
            if keys and link.key not in keys:
                revoked = find_revoked()
                if any((link.node, key) not in revoked for key in keys):
                    return link
        return None

    def has_capacity_for(self, chain: tuple[AdmissionLink, ...]) -> bool:
        """Whether the branch of this chain may add the nodes that are new here."""
        new = sum(link.node not in self._keys for link in chain)
        return self._branch_counts[chain[0].key] + new <= _MAX_NODES_PER_BRANCH

    def bind_chain(self, chain: tuple[AdmissionLink, ...]) -> None:
        """Note the key of every node in the chain."""
        if chain in self._bound_chains:
            return
        if len(self._bound_chains) >= _CACHED_CHAINS:
            self._bound_chains.clear()
        self._bound_chains.add(chain)
        for link in chain:
            self._branch_counts[chain[0].key] += link.node not in self._keys
            self._keys.setdefault(link.node, set()).add(link.key)
