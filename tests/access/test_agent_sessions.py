import apsw
import pytest

from gatepost.access import AgentSession, RefreshTokenReuse, Scope
from gatepost.access.auth_messages import ContextToken, ContextTokenRequest
from gatepost.errors import TokenReused
from gatepost.wire.agent_tokens import AgentTokens
from tests.access.harness import DAY, START, AccessHarness, refused

MINUTE = 60_000


def rotated(harness: AccessHarness, tokens: AgentTokens) -> AgentTokens:
    outcome = harness.refresh(tokens.refresh_token)
    assert isinstance(outcome, AgentTokens)
    return outcome


def context(
    harness: AccessHarness, tokens: AgentTokens, *scopes: str, ttl_secs: int = 300, label: str = ""
) -> ContextToken:
    session = harness.authenticate(tokens.access_token)
    request = ContextTokenRequest(scopes, ttl_secs, label)
    return harness.run(lambda tx: harness.agents.issue_context_token(tx, session, request))


def test_an_access_token_speaks_for_its_agent_with_its_scopes_for_15_minutes(
    harness: AccessHarness,
) -> None:
    tokens = harness.agent("codex", Scope.MESSAGE_READ, Scope.STATUS_READ)
    end = START + 15 * MINUTE
    assert harness.authenticate(tokens.access_token) == AgentSession(
        tokens.session_id,
        "codex",
        ("ansible.message.read", "ansible.status.read"),
        "access",
        "",
        end,
        START,
        tokens.access_token.split(".")[1],
        False,
    )
    assert tokens.access_expires_at == end
    harness.clock.set(end - 1)
    harness.authenticate(tokens.access_token)
    harness.clock.set(end)
    with refused("expired_token"):
        harness.authenticate(tokens.access_token)


def test_refresh_gives_new_tokens_of_the_same_session(harness: AccessHarness) -> None:
    first = harness.agent("codex")
    harness.clock.advance(MINUTE)
    second = rotated(harness, first)
    assert second.session_id == first.session_id
    assert second.refresh_token != first.refresh_token
    assert harness.authenticate(second.access_token).seen_at == START + MINUTE
    assert second.refresh_expires_at == START + MINUTE + 7 * DAY


def test_a_refresh_token_lasts_7_days(harness: AccessHarness) -> None:
    first = harness.agent()
    harness.clock.advance(7 * DAY - 1)
    second = rotated(harness, first)
    harness.clock.advance(7 * DAY)
    with refused("expired_token"):
        harness.refresh(second.refresh_token)


def test_a_refresh_token_that_comes_again_ends_its_whole_family(harness: AccessHarness) -> None:
    first = harness.agent("codex")
    bystander = harness.agent("codex")
    second = rotated(harness, first)
    third = rotated(harness, second)
    narrow = context(harness, third, Scope.MESSAGE_READ)
    outcome = harness.refresh(first.refresh_token)
    assert outcome == RefreshTokenReuse(first.session_id, "codex", (first.session_id,))
    assert isinstance(outcome, RefreshTokenReuse)
    assert isinstance(outcome.as_error(), TokenReused)
    for token in (first, second, third):
        with refused("revoked"):
            harness.authenticate(token.access_token)
        with refused("revoked"):
            harness.refresh(token.refresh_token)
    with refused("revoked"):
        harness.authenticate(narrow.context_token)
    harness.authenticate(bystander.access_token)


def test_reuse_is_noticed_after_the_token_would_have_expired(harness: AccessHarness) -> None:
    first = harness.agent()
    harness.clock.advance(6 * DAY)
    rotated(harness, first)
    harness.clock.advance(2 * DAY)
    assert isinstance(harness.refresh(first.refresh_token), RefreshTokenReuse)


def test_tokens_of_one_kind_are_not_taken_for_another(harness: AccessHarness) -> None:
    tokens = harness.agent()
    narrow = context(harness, tokens, Scope.MESSAGE_READ).context_token
    for wrong in (tokens.refresh_token, harness.agent_invite().token, "", "gps1.x.y"):
        with refused("invalid_token"):
            harness.authenticate(wrong)
    for wrong in (tokens.access_token, narrow):
        with refused("invalid_token"):
            harness.refresh(wrong)
        with refused("invalid_token"):
            harness.refresh(wrong.replace("gps1", "gpr1").replace("gpc1", "gpr1"))
    with refused("invalid_token"):
        harness.authenticate(narrow.replace("gpc1", "gps1"))


def test_a_context_token_has_fewer_scopes_and_says_what_it_is_for(harness: AccessHarness) -> None:
    tokens = harness.agent("codex", Scope.MESSAGE_READ, Scope.MESSAGE_SEND)
    narrow = context(harness, tokens, Scope.MESSAGE_READ, label="conversation 7")
    session = harness.authenticate(narrow.context_token)
    assert (session.kind, session.agent_id, session.label) == ("context", "codex", "conversation 7")
    assert session.scopes == narrow.scopes == ("ansible.message.read",)
    with refused("insufficient_scope"):
        context(harness, tokens, Scope.MESSAGE_READ, Scope.STATUS_READ)


def test_a_context_token_does_not_outlive_its_parent(harness: AccessHarness) -> None:
    tokens = harness.agent()
    harness.clock.advance(14 * MINUTE)
    assert context(harness, tokens, Scope.MESSAGE_READ).expires_at == tokens.access_expires_at
    shorter = context(harness, tokens, Scope.MESSAGE_READ, ttl_secs=5)
    assert shorter.expires_at == START + 14 * MINUTE + 5000


def test_a_context_token_begets_no_other(harness: AccessHarness) -> None:
    tokens = harness.agent()
    narrow = harness.authenticate(context(harness, tokens, Scope.MESSAGE_READ).context_token)
    request = ContextTokenRequest((Scope.MESSAGE_READ,))
    with refused("forbidden"):
        harness.run(lambda tx: harness.agents.issue_context_token(tx, narrow, request))


def test_revoking_an_agent_ends_all_its_sessions_and_open_invites_and_nobody_elses(
    harness: AccessHarness,
) -> None:
    first, second, other = harness.agent("codex"), harness.agent("codex"), harness.agent("claude")
    unused = harness.agent_invite("codex").token
    ended = harness.run(lambda tx: harness.agents.revoke_agent(tx, "codex", "jane"))
    assert set(ended) == {first.session_id, second.session_id}
    with refused("revoked"):
        harness.authenticate(first.access_token)
    with refused("revoked"):
        harness.run(lambda tx: harness.agents.exchange_invite(tx, unused))
    harness.authenticate(other.access_token)
    assert harness.run(lambda tx: harness.agents.revoke_agent(tx, "codex", "jane")) == []


def test_sessions_are_listed_with_their_last_use_and_who_ended_them(harness: AccessHarness) -> None:
    tokens = harness.agent("codex")
    harness.clock.advance(MINUTE)
    harness.authenticate(tokens.access_token)
    harness.run(lambda tx: harness.agents.touch_session(tx, tokens.session_id))
    (session,) = harness.run(harness.agents.list_sessions)
    assert (session.agent_id, session.created_at, session.seen_at) == (
        "codex",
        START,
        START + MINUTE,
    )
    assert (session.expires_at, session.revoked_at) == (START + 7 * DAY, None)
    harness.run(lambda tx: harness.agents.revoke_agent(tx, "codex", "jane"))
    (session,) = harness.run(harness.agents.list_sessions)
    assert (session.revoked_at, session.revoked_by) == (START + MINUTE, "jane")


def test_authenticating_writes_nothing(harness: AccessHarness) -> None:
    tokens = harness.agent()
    harness.clock.advance(MINUTE)
    before = harness.connection.total_changes()
    harness.authenticate(tokens.access_token)
    assert harness.connection.total_changes() == before


def test_storage_itself_keeps_a_revoked_session_revoked(harness: AccessHarness) -> None:
    harness.agent("codex")
    harness.run(lambda tx: harness.agents.revoke_agent(tx, "codex", "jane"))
    with pytest.raises(apsw.ConstraintError, match="never changes"):
        harness.connection.execute("UPDATE agent_session SET revoked_at = NULL")


ATTEMPT, OTHER_ATTEMPT = "first-attempt-0001", "other-attempt-0002"


def test_a_client_asks_again_for_an_answer_that_was_lost(harness: AccessHarness) -> None:
    first = harness.agent("codex")
    lost = harness.refresh(first.refresh_token, ATTEMPT)
    harness.clock.advance(MINUTE - 1)
    again = harness.refresh(first.refresh_token, ATTEMPT)
    assert isinstance(lost, AgentTokens)
    assert isinstance(again, AgentTokens)
    assert again.session_id == first.session_id
    assert harness.authenticate(again.access_token).agent_id == "codex"
    with refused("expired_token"):
        harness.authenticate(lost.access_token)
    assert isinstance(rotated(harness, again), AgentTokens)


def test_the_void_refresh_token_of_a_lost_answer_ends_the_session(harness: AccessHarness) -> None:
    first = harness.agent("codex")
    lost = harness.refresh(first.refresh_token, ATTEMPT)
    again = harness.refresh(first.refresh_token, ATTEMPT)
    assert isinstance(lost, AgentTokens)
    assert isinstance(again, AgentTokens)
    assert isinstance(harness.refresh(lost.refresh_token, ATTEMPT), RefreshTokenReuse)
    with refused("revoked"):
        harness.authenticate(again.access_token)


@pytest.mark.parametrize("attempt", [None, OTHER_ATTEMPT])
def test_another_client_within_the_grace_is_a_thief(
    harness: AccessHarness, attempt: str | None
) -> None:
    first = harness.agent("codex")
    harness.refresh(first.refresh_token, ATTEMPT)
    assert isinstance(harness.refresh(first.refresh_token, attempt), RefreshTokenReuse)


def test_a_refresh_without_an_attempt_has_no_grace(harness: AccessHarness) -> None:
    first = harness.agent("codex")
    harness.refresh(first.refresh_token)
    assert isinstance(harness.refresh(first.refresh_token, ATTEMPT), RefreshTokenReuse)


def test_the_grace_is_short_and_is_not_prolonged(harness: AccessHarness) -> None:
    first = harness.agent("codex")
    for _ in range(2):
        assert isinstance(harness.refresh(first.refresh_token, ATTEMPT), AgentTokens)
        harness.clock.advance(MINUTE // 2)
    assert isinstance(harness.refresh(first.refresh_token, ATTEMPT), RefreshTokenReuse)


@pytest.mark.parametrize("used", ["access", "refresh"])
def test_an_answer_whose_tokens_were_used_was_not_lost(harness: AccessHarness, used: str) -> None:
    first = harness.agent("codex")
    second = harness.refresh(first.refresh_token, ATTEMPT)
    assert isinstance(second, AgentTokens)
    if used == "access":
        token_id = harness.authenticate(second.access_token).token_id
        harness.run(lambda tx: harness.agents.mark_token_used(tx, token_id))
        assert harness.authenticate(second.access_token).is_token_used
    else:
        rotated(harness, second)
    assert isinstance(harness.refresh(first.refresh_token, ATTEMPT), RefreshTokenReuse)
