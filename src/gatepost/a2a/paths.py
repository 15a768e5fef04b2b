"""Paths of the door: one door for each agent, and one for the whole gateway."""

import re

from msgspec import Struct

from gatepost.events.ids import NAME_PATTERN

BASE = "/a2a"
RPC, REST, CARD = "/rpc", "/rest", "/.well-known/agent-card.json"
KEYS_PATH = f"{BASE}/keys.json"

_DOOR = re.compile(rf"\A/a2a(?:/agents/({NAME_PATTERN}))?(/.*)\Z")


class DoorPath(Struct, frozen=True):
    """A path below a door; `agent` is None at the door of the whole gateway."""

    agent: str | None
    rest: str


def door_path(agent: str | None) -> str:
    return BASE if agent is None else f"{BASE}/agents/{agent}"


def parse_path(path: str) -> DoorPath | None:
    found = _DOOR.match(path)
    return None if found is None else DoorPath(found.group(1), found.group(2))
