"""Agent cards: what agents publish, where their doors are, and a signature over both."""

from email.utils import formatdate
from hashlib import sha256
from typing import Any

import msgspec
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.types import a2a_pb2 as pb
from a2a.utils.signing import create_agent_card_signer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from gatepost import __version__
from gatepost.a2a.card_key import CardKey
from gatepost.a2a.paths import KEYS_PATH, REST, RPC, door_path
from gatepost.a2a.task_desk import TaskDesk
from gatepost.errors import UnknownAgent
from gatepost.gateway.doors import DoorServices
from gatepost.wire.capabilities import CapabilityView

_MODES = ["text/plain", "application/json"]
_MAX_KEPT = 1000


class ServedCard(Struct, frozen=True):
    body: bytes
    etag: str
    changed: str


class AgentCards:
    def __init__(self, services: DoorServices, desk: TaskDesk, key: CardKey) -> None:
        self._services = services
        self._desk = desk
        self._key = key
        # Unsigned card → as it is served since it first looked so.
        self._served: dict[bytes, ServedCard] = {}

    def serve(self, agent: str | None, origin: str) -> ServedCard:
        """The card of an agent, or that of the gateway with the skills of all."""
        if agent is not None and not self._desk.is_reachable(agent):
            raise UnknownAgent(f"no agent {agent} can be reached through A2A here")
        card = self._describe(agent, origin)
        unsigned = card.SerializeToString(deterministic=True)
        served = self._served.get(unsigned)
        if served is None:
            if len(self._served) >= _MAX_KEPT:
                self._served.clear()
            served = self._served[unsigned] = self._sign(card, origin)
        return served

    def _sign(self, card: pb.AgentCard, origin: str) -> ServedCard:
        private = Ed25519PrivateKey.from_private_bytes(self._key.load_seed())
        header: Any = {
            "alg": "EdDSA",
            "typ": "JOSE",
            "kid": self._key.id,
            "jku": f"{origin}{KEYS_PATH}",
        }
        create_agent_card_signer(private, header)(card)  # type: ignore[arg-type]
        body = msgspec.json.encode(agent_card_to_dict(card))
        etag = f'"{sha256(body).hexdigest()[:32]}"'
        return ServedCard(body, etag, formatdate(self._services.clock.now() / 1000, usegmt=True))

    def _describe(self, agent: str | None, origin: str) -> pb.AgentCard:
        node, url = self._services.node_id, f"{origin}{door_path(agent)}"
        skills = self._desk.list_skills(agent)
        card = pb.AgentCard(
            name=agent or node,
            description=_describe_target(agent, node),
            version=_find_version(skills),
            default_input_modes=_MODES,
            default_output_modes=_MODES,
            capabilities=pb.AgentCapabilities(streaming=True, push_notifications=True),
            supported_interfaces=[
                _interface(f"{url}{RPC}", "JSONRPC", "1.0"),
                _interface(f"{url}{REST}", "HTTP+JSON", "1.0"),
                # Clients of the version before find their door by it.
                _interface(f"{url}{RPC}", "JSONRPC", "0.3"),
                _interface(f"{url}{REST}", "HTTP+JSON", "0.3"),
            ],
            skills=[_describe_skill(each) for each in skills] or [_describe_messages(agent)],
        )
        if not self._services.settings.a2a.anonymous_agent:
            bearer = pb.HTTPAuthSecurityScheme(scheme="Bearer")
            card.security_schemes["bearer"].http_auth_security_scheme.CopyFrom(bearer)
            card.security_requirements.add().schemes["bearer"].SetInParent()
        return card


def _interface(url: str, binding: str, version: str) -> pb.AgentInterface:
    return pb.AgentInterface(url=url, protocol_binding=binding, protocol_version=version)


def _describe_target(agent: str | None, node: str) -> str:
    if agent is None:
        return f"The agents behind the gateway {node}. Name a skill in metadata.skill."
    return f"The agent {agent}, by the gateway {node}."


def _find_version(skills: list[CapabilityView]) -> str:
    return max((each.version for each in skills), default=__version__)


def _describe_skill(capability: CapabilityView) -> pb.AgentSkill:
    eta = capability.default_eta_seconds
    return pb.AgentSkill(
        id=capability.capability_id,
        name=capability.name,
        description=f"{capability.name}, by {capability.owner_agent_id}, in about {eta} s",
        tags=[capability.owner_agent_id],
    )


def _describe_messages(agent: str | None) -> pb.AgentSkill:
    name = agent or "agents"
    return pb.AgentSkill(id="message", name=name, description=f"Messages for {name}", tags=[name])
