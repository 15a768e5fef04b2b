"""API bodies of the mesh; the command line decodes the same types."""

from typing import Annotated

from msgspec import Meta, Struct

from gatepost.events import NodeId
from gatepost.wire.agent_tokens import SecretValue

MAX_COUNTER = 2**53 - 1


class Term(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, order=True):
    """One period of office: a counter, and the node that claimed it."""

    counter: Annotated[int, Meta(ge=0, le=MAX_COUNTER)]
    node: NodeId


class MeshSecretView(SecretValue, frozen=True):
    """`join_secret` is the text for `gatepost join --via`, with which any machine can join.

    `master_onion` is the onion service of the mesh, where its nodes are in Tor.
    """

    version: int
    rotated_by: str
    join_secret: str
    master_onion: str


class MeshPeerView(Struct, frozen=True):
    """Another node of the mesh. `address` is empty until the node has proved one.

    `is_barred`: it does not claim the lease now. `state` is what the mesh concludes from datagrams;
    `state_text` is the state in words, from everything this gateway knows.
    """

    node: str
    state: str
    role: str
    may_lead: bool
    address: str
    priority: int | None
    term: Term | None
    silent_secs: float
    intro_points: list[str] = []
    is_barred: bool = False
    state_text: str = ""


class MeshStatusView(Struct, frozen=True):
    """The mesh as this gateway sees it. Without a mesh the genesis of the room leads.

    `refused`: reason → datagrams that did not count. `changes` counts the changes of liveness and
    of the election. `problems`: the actions that an operator must take, a sentence each.
    `is_barred`: this gateway does not claim the lease because of one of them.
    """

    node: str
    transport: str
    publisher: str | None
    state: str = "off"
    address: str = ""
    priority: int | None = None
    may_lead: bool = False
    term: Term | None = None
    peers: list[MeshPeerView] = []
    takeovers: int = 0
    suspicions: int = 0
    sent: int = 0
    received: int = 0
    refused: dict[str, int] = {}
    changes: int = 0
    problems: list[str] = []
    is_barred: bool = False
