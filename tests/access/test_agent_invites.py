import apsw
import pytest
from msgspec.structs import replace

from gatepost.access import Scope, agent_invites
from gatepost.access.auth_messages import AgentInviteRequest
from tests.access.gate import START, Gate, refused


def exchange(gate: Gate, token: str) -> str:
    return gate.run(lambda tx: gate.agents.exchange_invite(tx, token)).agent_id


def test_an_invite_is_good_once(gate: Gate) -> None:
    token = gate.agent_invite("codex").token
    assert exchange(gate, token) == "codex"
    with refused("token_already_used"):
        exchange(gate, token)


def test_an_invite_that_expired_or_was_revoked_or_never_was_is_refused(gate: Gate) -> None:
    late, gone = gate.agent_invite(ttl_secs=1), gate.agent_invite()
    gate.run(lambda tx: agent_invites.revoke_agent_invite(tx, gone.invite.id, "operator"))
    gate.clock.advance(1000)
    with refused("expired_token"):
        exchange(gate, late.token)
    with refused("revoked"):
        exchange(gate, gone.token)
    with refused("invalid_token"):
        exchange(gate, late.token[:-43] + "A" * 43)


def test_a_node_invite_is_no_agent_invite_nor_the_reverse(gate: Gate) -> None:
    with refused("invalid_token"):
        exchange(gate, gate.invite().token)
    request = gate.joiner("mbp-jane").with_invite(gate.invite().token)
    with refused("invalid_token"):
        gate.exchange(replace(request, invite_token=gate.agent_invite().token))


def test_invites_are_listed_with_their_scopes(gate: Gate) -> None:
    issued = gate.agent_invite("codex", Scope.MESSAGE_SEND, Scope.MESSAGE_READ)
    assert gate.run(agent_invites.list_agent_invites) == [issued.invite]
    assert issued.invite.scopes == ("ansible.message.read", "ansible.message.send")
    assert issued.invite.expires_at == START + 3_600_000


def test_a_used_invite_cannot_be_revoked_nor_an_unknown_one(gate: Gate) -> None:
    issued = gate.agent_invite()
    exchange(gate, issued.token)
    with refused("wrong_state"):
        gate.run(lambda tx: agent_invites.revoke_agent_invite(tx, issued.invite.id, "operator"))
    with refused("unknown_invite"):
        gate.run(lambda tx: agent_invites.revoke_agent_invite(tx, "0" * 16, "operator"))


def test_a_session_can_hand_on_only_what_it_has(gate: Gate) -> None:
    admin = gate.authenticate(
        gate.agent("boss", Scope.ADMIN_ACCESS, Scope.MESSAGE_READ).access_token
    )

    def issue(*scopes: str) -> tuple[str, ...]:
        request = AgentInviteRequest("helper", scopes)
        return gate.run(
            lambda tx: agent_invites.issue_agent_invite(tx, gate.clock, request, "boss", admin)
        ).invite.scopes

    assert issue(Scope.MESSAGE_READ) == ("ansible.message.read",)
    for beyond in (Scope.MESSAGE_SEND, Scope.ADMIN_ALL, Scope.ADMIN_MAILBOX):
        with refused("insufficient_scope"):
            issue(Scope.MESSAGE_READ, beyond)


def test_storage_itself_keeps_a_used_invite_used(gate: Gate) -> None:
    gate.agent()
    with pytest.raises(apsw.ConstraintError, match="never changes"):
        gate.connection.execute("UPDATE agent_invite SET used_at = NULL")
