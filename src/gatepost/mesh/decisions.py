"""The decisions of the mesh: plain values that say what should happen next."""

from msgspec import Struct

from gatepost.mesh.election_states import ElectionState
from gatepost.mesh.messages import IntroPoints, MeshMessage
from gatepost.mesh.peer_states import PeerState
from gatepost.mesh.refusals import Refusal
from gatepost.wire.mesh_views import Term


class SendMessage(Struct, frozen=True):
    """Send a message to an address."""

    address: str
    message: MeshMessage


class SendDatagram(Struct, frozen=True):
    """Send a signed datagram to an address."""

    address: str
    datagram: bytes


class PeerStatusChanged(Struct, frozen=True):
    """A peer became alive, suspect or dead."""

    node: str
    state: PeerState


class ElectionChanged(Struct, frozen=True):
    """This node's state in the election, the publisher it honours, or the term changed."""

    state: ElectionState
    publisher: str | None
    term: Term | None


class IntroPointsHeard(Struct, frozen=True):
    """A peer named the points at which it can be reached."""

    node: str
    points: IntroPoints


class BackendReported(Struct, frozen=True):
    """A peer says that one of its backends is unhealthy. This is advice, not a fact."""

    node: str
    backend: str


class HintRefused(Struct, frozen=True):
    """Gossip named an address of a member that this node does not dial."""

    node: str
    address: str


class DatagramRefused(Struct, frozen=True):
    """A datagram or message was refused. `node` is its sender, if that is certain."""

    refusal: Refusal
    node: str | None = None


MeshDecision = (
    SendMessage
    | SendDatagram
    | PeerStatusChanged
    | ElectionChanged
    | IntroPointsHeard
    | BackendReported
    | HintRefused
    | DatagramRefused
)
