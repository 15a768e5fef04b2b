"""What a session may pass on: less than it has, for as long as it lasts."""

import pytest

from gatepost.access import Scope, agent_invites, grants
from gatepost.access.agent_invites import IssuedAgentInvite
from gatepost.access.auth_messages import AgentInviteRequest, ContextTokenRequest
from gatepost.wire.agent_tokens import AgentTokens
from tests.access.harness import DAY, AccessHarness, refused

ADMIN = (Scope.ADMIN_ACCESS, Scope.MESSAGE_READ)
READ = (Scope.MESSAGE_READ,)


def grant(
    harness: AccessHarness,
    token: str,
    agent: str,
    *scopes: str,
    ttl_secs: int = 3600,
    is_known: bool = False,
) -> IssuedAgentInvite:
    session = harness.authenticate(token)
    request = AgentInviteRequest(agent, scopes or READ, ttl_secs)
    return harness.run(
        lambda tx: agent_invites.issue_agent_invite(
            tx, harness.clock, request, session.agent_id, session, is_known=is_known
        )
    )


def opened(harness: AccessHarness, invite: IssuedAgentInvite) -> AgentTokens:
    return harness.run(lambda tx: harness.agents.exchange_invite(tx, invite.token))


def granted(harness: AccessHarness, token: str, agent: str, *scopes: str) -> AgentTokens:
    return opened(harness, grant(harness, token, agent, *scopes))


def test_a_context_token_grants_nothing(harness: AccessHarness) -> None:
    access = harness.authenticate(harness.agent("admin", *ADMIN).access_token)
    request = ContextTokenRequest(ADMIN)
    context = harness.run(lambda tx: harness.agents.issue_context_token(tx, access, request))
    with refused("forbidden"):
        grant(harness, context.context_token, "admin")


def test_a_session_without_the_scope_grants_nothing(harness: AccessHarness) -> None:
    with refused("insufficient_scope"):
        grant(harness, harness.agent("plain", *READ).access_token, "friend")


def test_sessions_end_with_the_one_that_granted_them_and_so_do_open_invites(
    harness: AccessHarness,
) -> None:
    admin = harness.agent("admin", *ADMIN)
    child = granted(harness, admin.access_token, "child", *ADMIN)
    grandchild = granted(harness, child.access_token, "grandchild")
    unused = grant(harness, child.access_token, "later")
    bystander = harness.agent("bystander")
    ended = harness.run(lambda tx: harness.agents.revoke_agent(tx, "admin", "operator"))
    assert set(ended) == {each.session_id for each in (admin, child, grandchild)}
    for tokens in (admin, child, grandchild):
        with refused("revoked"):
            harness.authenticate(tokens.access_token)
        with refused("revoked"):
            harness.refresh(tokens.refresh_token)
    with refused("revoked"):
        opened(harness, unused)
    harness.authenticate(bystander.access_token)


def test_a_stolen_refresh_token_ends_what_it_granted_too(harness: AccessHarness) -> None:
    admin = harness.agent("admin", *ADMIN)
    child = granted(harness, admin.access_token, "child")
    harness.refresh(admin.refresh_token)
    harness.refresh(admin.refresh_token)
    with refused("revoked"):
        harness.authenticate(child.access_token)


def test_a_grant_lasts_no_longer_than_the_session_that_gave_it(harness: AccessHarness) -> None:
    admin = harness.agent("admin", *ADMIN)
    invite = grant(harness, admin.access_token, "child", ttl_secs=30 * 86_400)
    assert invite.invite.expires_at == admin.refresh_expires_at
    harness.clock.set(admin.refresh_expires_at - 60_000)
    child = opened(harness, invite)
    assert child.refresh_expires_at == admin.refresh_expires_at
    assert child.access_expires_at == admin.refresh_expires_at
    harness.clock.set(admin.refresh_expires_at)
    with refused("expired_token"):
        harness.refresh(child.refresh_token)


def test_a_grant_goes_on_while_its_grantor_is_refreshed(harness: AccessHarness) -> None:
    admin = harness.agent("admin", *ADMIN)
    harness.clock.advance(60_000)
    child = granted(harness, admin.access_token, "child")
    harness.clock.advance(5 * DAY)
    again = harness.refresh(admin.refresh_token)
    assert isinstance(again, AgentTokens)
    later = harness.refresh(child.refresh_token)
    assert isinstance(later, AgentTokens)
    assert later.refresh_expires_at == again.refresh_expires_at > child.refresh_expires_at


def test_an_agent_of_somebody_else_cannot_be_taken_by_a_grant(harness: AccessHarness) -> None:
    admin, other = harness.agent("admin", *ADMIN), harness.agent("other", *ADMIN)
    harness.agent("boss")
    for agent, is_known in (("boss", False), ("local", True), ("other", False)):
        with refused("forbidden"):
            grant(harness, admin.access_token, agent, is_known=is_known)
    granted(harness, admin.access_token, "newcomer")
    grant(harness, admin.access_token, "newcomer", is_known=True)
    grant(harness, admin.access_token, "admin", is_known=True)
    with refused("forbidden"):
        grant(harness, other.access_token, "newcomer", is_known=True)


def test_the_open_invites_of_a_session_are_counted(
    harness: AccessHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "MAX_OPEN_INVITES", 2)
    admin = harness.agent("admin", *ADMIN).access_token
    first = grant(harness, admin, "a")
    grant(harness, admin, "b")
    with refused("rate_limited"):
        grant(harness, admin, "c")
    opened(harness, first)
    grant(harness, admin, "c")
