"""Access policy: required proofs, open rooms, and lifetimes of tickets and tokens."""

from typing import Literal

from msgspec import Struct

from gatepost.errors import ConfigError
from gatepost.room import CONTROL_ROOM

AccessProfile = Literal["development", "production"]
_DAY = 86_400_000


class AccessPolicy(Struct, frozen=True, kw_only=True):
    """Times are milliseconds."""

    profile: AccessProfile = "production"
    require_proof: bool = True
    # Nodes without a key may read the room, for development.
    allow_keyless: bool = False
    rooms: frozenset[str] = frozenset({CONTROL_ROOM})
    ticket_life: int = 45_000
    challenge_life: int = 60_000
    access_life: int = 900_000
    refresh_life: int = 7 * _DAY
    # How long a client may ask again for the answer to a refresh.
    refresh_grace: int = 60_000
    # How long ended invites, tokens and sessions stay listed and get a specific refusal.
    remember: int = 30 * _DAY

    def __post_init__(self) -> None:
        if self.profile == "production" and (self.allow_keyless or not self.require_proof):
            raise ConfigError(
                "a production gateway requires node proofs: leave them on,"
                " or choose the development profile"
            )
        if not 30_000 <= self.ticket_life <= 60_000:
            raise ConfigError(f"a ticket lives 30 to 60 s, not {self.ticket_life / 1000:g} s")
