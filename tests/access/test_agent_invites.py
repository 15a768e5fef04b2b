import apsw
import pytest
from msgspec.structs import replace

from gatepost.access import Scope, agent_invites
from gatepost.access.auth_messages import AgentInviteRequest
from tests.access.harness import START, AccessHarness, refused


def exchange(harness: AccessHarness, token: str) -> str:
    return harness.run(lambda tx: harness.agents.exchange_invite(tx, token)).agent_id


def test_an_invite_is_good_once(harness: AccessHarness) -> None:
    token = harness.agent_invite("codex").token
    assert exchange(harness, token) == "codex"
    with refused("token_already_used"):
        exchange(harness, token)


def test_an_invite_that_expired_or_was_revoked_or_never_was_is_refused(
    harness: AccessHarness,
) -> None:
    late, gone = harness.agent_invite(ttl_secs=1), harness.agent_invite("gone")
    harness.run(lambda tx: agent_invites.revoke_open_invites(tx, "gone"))
    harness.clock.advance(1000)
    with refused("expired_token"):
        exchange(harness, late.token)
    with refused("revoked"):
        exchange(harness, gone.token)
    with refused("invalid_token"):
        exchange(harness, late.token[:-43] + "A" * 43)


def test_a_node_invite_is_no_agent_invite_nor_the_reverse(harness: AccessHarness) -> None:
    with refused("invalid_token"):
        exchange(harness, harness.invite().token)
    request = harness.joiner("mbp-jane").with_invite(harness.invite().token)
    with refused("invalid_token"):
        harness.exchange(replace(request, invite_token=harness.agent_invite().token))


def test_invites_are_listed_with_their_scopes(harness: AccessHarness) -> None:
    issued = harness.agent_invite("codex", Scope.MESSAGE_SEND, Scope.MESSAGE_READ)
    assert harness.run(agent_invites.list_agent_invites) == [issued.invite]
    assert issued.invite.scopes == ("ansible.message.read", "ansible.message.send")
    assert issued.invite.expires_at == START + 3_600_000


def test_a_session_can_hand_on_only_what_it_has(harness: AccessHarness) -> None:
    admin = harness.authenticate(
        harness.agent("boss", Scope.ADMIN_ACCESS, Scope.MESSAGE_READ).access_token
    )

    def issue(*scopes: str) -> tuple[str, ...]:
        request = AgentInviteRequest("helper", scopes)
        return harness.run(
            lambda tx: agent_invites.issue_agent_invite(tx, harness.clock, request, "boss", admin)
        ).invite.scopes

    assert issue(Scope.MESSAGE_READ) == ("ansible.message.read",)
    for beyond in (Scope.MESSAGE_SEND, Scope.ADMIN_ALL, Scope.ADMIN_MAILBOX):
        with refused("insufficient_scope"):
            issue(Scope.MESSAGE_READ, beyond)


def test_storage_itself_keeps_a_used_invite_used(harness: AccessHarness) -> None:
    harness.agent()
    with pytest.raises(apsw.ConstraintError, match="never changes"):
        harness.connection.execute("UPDATE agent_invite SET used_at = NULL")
