"""API bodies of the mesh; the command line decodes the same types."""

from msgspec import Struct

from gatepost.agent_tokens import SecretValue
from gatepost.mesh.messages import Term


class MeshSecretView(SecretValue, frozen=True):
    """`join_secret` is the text for `gatepost join --via`; whoever has it can join.

    `master_onion` is the onion service of the mesh, where its nodes are in Tor.
    """

    version: int
    rotated_by: str
    join_secret: str
    master_onion: str


class MeshPeerView(Struct, frozen=True):
    """Another node of the mesh. `address` is empty until the node has proved one."""

    node: str
    state: str
    role: str
    may_lead: bool
    address: str
    priority: int | None
    term: Term | None
    silent_secs: float
    intro_points: list[str] = []


class MeshStatusView(Struct, frozen=True):
    """The mesh as this gateway sees it. Without a mesh the genesis of the room leads.

    `refused`: reason → datagrams that did not count. `changes` counts the changes of liveness and
    of the election.
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
