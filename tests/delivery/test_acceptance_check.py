"""The reasons against accepting an event."""

from typing import Any

import pytest
from msgspec.structs import replace

from gatepost.delivery.acceptance_check import AcceptanceCheck
from gatepost.events import Envelope, EventKind, PayloadRef
from gatepost.mailbox import MailboxPolicy, NewMail
from gatepost.routing import AgentHome, RoutingDirectory
from tests.delivery.mesh import START, Gate, Mesh


@pytest.fixture
def b() -> Gate:
    return Mesh("a", "b")["b"]


def event_for(gate: Gate, **fields: Any) -> Envelope:
    given: dict[str, Any] = {"to_agent_id": "B", "kind": EventKind.MESSAGE, **fields}
    return Envelope(
        event_id=gate.node.event_ids.next_id(),
        seq=1,
        source_node_id="a",
        to_node_id="b",
        source_agent_id="A",
        created_at=START,
        **given,
    )


def make_check(gate: Gate) -> AcceptanceCheck:
    return AcceptanceCheck(gate.core.parts, "a", START)


def reason(gate: Gate, **fields: Any) -> str:
    envelope = event_for(gate, **fields)
    found: str = gate.do(lambda tx: make_check(gate).reason_against(tx, envelope))
    return found


def test_an_event_for_an_agent_here_can_be_accepted(b: Gate) -> None:
    assert reason(b) == ""
    assert reason(b, expires_at=START + 1) == ""


def test_an_event_that_expired_is_refused(b: Gate) -> None:
    assert reason(b, expires_at=START) == "expired"


def test_an_agent_that_is_not_here_is_unknown_or_moved(b: Gate) -> None:
    assert reason(b, to_agent_id="GHOST") == "no_agent"
    assert reason(b, to_agent_id="A") == "moved", "the room says who has it"
    b.see(RoutingDirectory(b.directory.gateways, {"GHOST": AgentHome(None)}))
    assert reason(b, to_agent_id="GHOST") == "no_agent"


def test_a_reply_needs_no_agent_here(b: Gate) -> None:
    assert reason(b, to_agent_id="GHOST", kind=EventKind.REPLY) == ""


def test_a_full_mailbox_has_no_capacity(b: Gate) -> None:
    b.dispatcher.policy = replace(MailboxPolicy(), max_pending=1)
    b.do(lambda tx: b.dispatcher.enqueue(tx, "B", "A", [NewMail("m", b"1")]))
    assert reason(b) == "full"


def test_a_blob_that_cannot_be_opened_is_not_waited_for(b: Gate) -> None:
    ref = PayloadRef("sha256:" + "a" * 64, 9, {})
    assert reason(b, payload_ref=ref) == "", "it is refused when it is opened"
