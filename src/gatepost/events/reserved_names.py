"""Reserved names: those that speak for a gateway, its hub or its operator and never for an agent.

Every boundary asks the functions here: the registration of an agent, an invite, an agent file, the
sender of an operation, a claim in the room, a route, and an event of another gateway. Case does not
matter, and the grammar of ids permits ASCII only, so no other letter looks like one of these.

Only a gateway itself speaks under a reserved name, and only for its own node. On the wire that is
`source_agent_id` and `source_node_id`. A receiver shows both as one name, `operator@vps`, so that
mail "from operator" is always from the operator of the gateway where it is read.
"""

from typing import Annotated

from msgspec import Meta

from gatepost.errors import ReservedName
from gatepost.events.ids import NAME_PATTERN

GATEWAY = "gateway"
HUB = "hub"
OPERATOR = "operator"
CLI = "cli"
RESERVED_NAMES = frozenset((GATEWAY, HUB, OPERATOR, CLI))

# The sender of mail: an agent, or a reserved name with the gateway that it speaks for.
SenderName = Annotated[str, Meta(pattern=rf"\A{NAME_PATTERN}(@{NAME_PATTERN})?\Z", max_length=257)]

# Whoever has the local token is the operator, and may send under these.
_OPERATOR_NAMES = frozenset((OPERATOR, CLI))


def is_reserved_name(name: str) -> bool:
    return name.lower() in RESERVED_NAMES


def require_agent_name(name: str) -> str:
    """Return the name of an agent; ReservedName if no agent may have it."""
    if is_reserved_name(name):
        raise ReservedName(
            f"no agent can have the name {name!r}: it stands for the gateway, its hub or its"
            " operator; choose another one"
        )
    return name


def require_sender_name(name: str) -> str:
    """Return the sender of a local operation; ReservedName if only the gateway speaks so."""
    return name if name in _OPERATOR_NAMES else require_agent_name(name)


def qualify_sender(name: str, node: str) -> str:
    """The sender of an event of another node, as readers here see it."""
    return f"{name}@{node}" if is_reserved_name(name) else name


def unqualify_sender(name: str) -> str:
    """The sender of mail as its own gateway knows it."""
    return name.partition("@")[0]


def is_qualified(name: str) -> bool:
    return "@" in name
