"""The owners of agents that this replica trusts.

They outlive the document, because a node that was away must not believe the first claim it hears.
They are kept in the journal. An owner is forgotten once it has withdrawn its claim.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from gatepost.room.agent_ownership import IsDead, KnownOwner


class OwnerChange(Struct, frozen=True):
    """A change of an agent's owner; None stands for no owner."""

    agent: str
    before: str | None
    after: str | None


class KnownOwners:
    """`is_dead` tells whether a member was silent for so long that it may be overridden."""

    def __init__(
        self,
        known: Mapping[str, KnownOwner] | None = None,
        is_dead: IsDead = lambda member: False,
    ) -> None:
        self.known = dict(known or {})
        self.is_dead = is_dead
        self._unsaved: dict[str, KnownOwner | None] = {}
        self._changes: list[OwnerChange] = []

    def keep_owner(self, agent: str, owner: KnownOwner | None) -> None:
        """Trust this owner from now on; with None, the agent is free."""
        before = self.known.get(agent)
        if owner is not None and before is not None and owner.gateway == before.gateway:
            # An owner that was restored may show an earlier epoch. Transfers up to the known one
            # must not count again.
            owner = replace(owner, epoch=max(owner.epoch, before.epoch))
        if owner == before:
            return
        self._unsaved[agent] = owner
        if owner is None:
            del self.known[agent]
        else:
            self.known[agent] = owner
        was, now = before.gateway if before else None, owner.gateway if owner else None
        if was != now:
            self._changes.append(OwnerChange(agent, was, now))

    def forget_all(self) -> None:
        for agent in list(self.known):
            self.keep_owner(agent, None)

    def take_unsaved(self) -> dict[str, KnownOwner | None]:
        """The owners that changed since the last call; None for an agent that is free."""
        found, self._unsaved = self._unsaved, {}
        return found

    def take_changes(self) -> list[OwnerChange]:
        """The changes of owners since the last call."""
        found, self._changes = self._changes, []
        return found
