"""The owners of capabilities that this gateway trusts.

Two edge nodes may publish the same capability. The room cannot say which one was first, because a
writer can write any time: it shows the claim of the senior node. This gateway trusts the owner that
it saw first, also after a restart, so an edge node takes no capability, and no tasks with their
inputs, from a later one. An owner is given up once it has withdrawn its claim or is revoked, or if
a backbone node publishes the capability.
"""

from collections.abc import Container, Mapping

from gatepost.core.gateway_core import Core
from gatepost.journal import Tx
from gatepost.room.records import CapabilityRecord

_MAX_KNOWN = 20_000
_KEEP = "INSERT OR REPLACE INTO capability_owner (capability, owner_agent) VALUES (?, ?)"
_FORGET = "DELETE FROM capability_owner WHERE capability = ?"


class CapabilityOwners:
    """Until the owners are loaded, no owner is fixed."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._known: dict[str, str] | None = None

    async def load_owners(self) -> None:
        if self._known is None:
            self._known = await self._core.read(_read_owners)

    def choose_claim(
        self, id: str, chosen: CapabilityRecord, rivals: Mapping[str, CapabilityRecord]
    ) -> CapabilityRecord:
        """The claim that this gateway trusts; `chosen` is the room's choice."""
        if self._known is None:
            return chosen
        known = self._known.get(id)
        if known is not None and known in rivals:
            return rivals[known]
        if known != chosen.owner_agent_id:
            self._known[id] = owner = chosen.owner_agent_id
            self._core.submit(lambda tx: tx.execute(_KEEP, (id, owner)))
        return chosen

    def forget_others(self, ids: Container[str]) -> None:
        """Forget capabilities that the room does not show, if there are too many."""
        if self._known is not None and len(self._known) > _MAX_KNOWN:
            gone = [(id,) for id in self._known if id not in ids]
            self._known = {id: owner for id, owner in self._known.items() if id in ids}
            self._core.submit(lambda tx: tx.execute_many(_FORGET, gone))


def _read_owners(tx: Tx) -> dict[str, str]:
    return dict(tx.fetch_all("SELECT capability, owner_agent FROM capability_owner"))
