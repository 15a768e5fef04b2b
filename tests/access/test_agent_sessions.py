import apsw
import pytest

from gatepost.access import AgentSession, RefreshTokenReuse, Scope
from gatepost.access.auth_messages import AgentTokens, ContextToken, ContextTokenRequest
from gatepost.errors import TokenReused
from tests.access.gate import DAY, START, Gate, refused

MINUTE = 60_000


def rotated(gate: Gate, tokens: AgentTokens) -> AgentTokens:
    outcome = gate.refresh(tokens.refresh_token)
    assert isinstance(outcome, AgentTokens)
    return outcome


def context(
    gate: Gate, tokens: AgentTokens, *scopes: str, ttl_secs: int = 300, label: str = ""
) -> ContextToken:
    session = gate.authenticate(tokens.access_token)
    request = ContextTokenRequest(scopes, ttl_secs, label)
    return gate.run(lambda tx: gate.agents.issue_context_token(tx, session, request))


def test_an_access_token_speaks_for_its_agent_with_its_scopes_for_15_minutes(gate: Gate) -> None:
    tokens = gate.agent("codex", Scope.MESSAGE_READ, Scope.STATUS_READ)
    end = START + 15 * MINUTE
    assert gate.authenticate(tokens.access_token) == AgentSession(
        tokens.session_id,
        "codex",
        ("ansible.message.read", "ansible.status.read"),
        "access",
        "",
        end,
        START,
    )
    assert tokens.access_expires_at == end
    gate.clock.set(end - 1)
    gate.authenticate(tokens.access_token)
    gate.clock.set(end)
    with refused("expired_token"):
        gate.authenticate(tokens.access_token)


def test_refresh_gives_new_tokens_of_the_same_session(gate: Gate) -> None:
    first = gate.agent("codex")
    gate.clock.advance(MINUTE)
    second = rotated(gate, first)
    assert second.session_id == first.session_id
    assert second.refresh_token != first.refresh_token
    assert gate.authenticate(second.access_token).seen_at == START + MINUTE
    assert second.refresh_expires_at == START + MINUTE + 7 * DAY


def test_a_refresh_token_lasts_7_days(gate: Gate) -> None:
    first = gate.agent()
    gate.clock.advance(7 * DAY - 1)
    second = rotated(gate, first)
    gate.clock.advance(7 * DAY)
    with refused("expired_token"):
        gate.refresh(second.refresh_token)


def test_a_refresh_token_that_comes_again_ends_its_whole_family(gate: Gate) -> None:
    first = gate.agent("codex")
    bystander = gate.agent("codex")
    second = rotated(gate, first)
    third = rotated(gate, second)
    narrow = context(gate, third, Scope.MESSAGE_READ)
    outcome = gate.refresh(first.refresh_token)
    assert outcome == RefreshTokenReuse(first.session_id, "codex")
    assert isinstance(outcome, RefreshTokenReuse)
    assert isinstance(outcome.as_error(), TokenReused)
    for token in (first, second, third):
        with refused("revoked"):
            gate.authenticate(token.access_token)
        with refused("revoked"):
            gate.refresh(token.refresh_token)
    with refused("revoked"):
        gate.authenticate(narrow.context_token)
    gate.authenticate(bystander.access_token)


def test_reuse_is_noticed_after_the_token_would_have_expired(gate: Gate) -> None:
    first = gate.agent()
    gate.clock.advance(6 * DAY)
    rotated(gate, first)
    gate.clock.advance(2 * DAY)
    assert isinstance(gate.refresh(first.refresh_token), RefreshTokenReuse)


def test_tokens_of_one_kind_are_not_taken_for_another(gate: Gate) -> None:
    tokens = gate.agent()
    narrow = context(gate, tokens, Scope.MESSAGE_READ).context_token
    for wrong in (tokens.refresh_token, gate.agent_invite().token, "", "gps1.x.y"):
        with refused("invalid_token"):
            gate.authenticate(wrong)
    for wrong in (tokens.access_token, narrow):
        with refused("invalid_token"):
            gate.refresh(wrong)
        with refused("invalid_token"):
            gate.refresh(wrong.replace("gps1", "gpr1").replace("gpc1", "gpr1"))
    with refused("invalid_token"):
        gate.authenticate(narrow.replace("gpc1", "gps1"))


def test_a_context_token_has_fewer_scopes_and_says_what_it_is_for(gate: Gate) -> None:
    tokens = gate.agent("codex", Scope.MESSAGE_READ, Scope.MESSAGE_SEND)
    narrow = context(gate, tokens, Scope.MESSAGE_READ, label="conversation 7")
    session = gate.authenticate(narrow.context_token)
    assert (session.kind, session.agent_id, session.label) == ("context", "codex", "conversation 7")
    assert session.scopes == narrow.scopes == ("ansible.message.read",)
    with refused("insufficient_scope"):
        context(gate, tokens, Scope.MESSAGE_READ, Scope.STATUS_READ)


def test_a_context_token_does_not_outlive_its_parent(gate: Gate) -> None:
    tokens = gate.agent()
    gate.clock.advance(14 * MINUTE)
    assert context(gate, tokens, Scope.MESSAGE_READ).expires_at == tokens.access_expires_at
    shorter = context(gate, tokens, Scope.MESSAGE_READ, ttl_secs=5)
    assert shorter.expires_at == START + 14 * MINUTE + 5000


def test_a_context_token_begets_no_other(gate: Gate) -> None:
    tokens = gate.agent()
    narrow = gate.authenticate(context(gate, tokens, Scope.MESSAGE_READ).context_token)
    request = ContextTokenRequest((Scope.MESSAGE_READ,))
    with refused("forbidden"):
        gate.run(lambda tx: gate.agents.issue_context_token(tx, narrow, request))


def test_revoking_an_agent_ends_all_its_sessions_and_open_invites_and_nobody_elses(
    gate: Gate,
) -> None:
    first, second, other = gate.agent("codex"), gate.agent("codex"), gate.agent("claude")
    unused = gate.agent_invite("codex").token
    ended = gate.run(lambda tx: gate.agents.revoke_agent(tx, "codex", "jane"))
    assert set(ended) == {first.session_id, second.session_id}
    with refused("revoked"):
        gate.authenticate(first.access_token)
    with refused("revoked"):
        gate.run(lambda tx: gate.agents.exchange_invite(tx, unused))
    gate.authenticate(other.access_token)
    assert gate.run(lambda tx: gate.agents.revoke_agent(tx, "codex", "jane")) == []


def test_sessions_are_listed_with_their_last_use_and_who_ended_them(gate: Gate) -> None:
    tokens = gate.agent("codex")
    gate.clock.advance(MINUTE)
    gate.authenticate(tokens.access_token)
    gate.run(lambda tx: gate.agents.touch_session(tx, tokens.session_id))
    (session,) = gate.run(gate.agents.list_sessions)
    assert (session.agent_id, session.created_at, session.seen_at) == (
        "codex",
        START,
        START + MINUTE,
    )
    assert (session.expires_at, session.revoked_at) == (START + 7 * DAY, None)
    gate.run(lambda tx: gate.agents.revoke_agent(tx, "codex", "jane"))
    (session,) = gate.run(gate.agents.list_sessions)
    assert (session.revoked_at, session.revoked_by) == (START + MINUTE, "jane")


def test_authenticating_writes_nothing(gate: Gate) -> None:
    tokens = gate.agent()
    gate.clock.advance(MINUTE)
    before = gate.connection.total_changes()
    gate.authenticate(tokens.access_token)
    assert gate.connection.total_changes() == before


def test_storage_itself_keeps_a_revoked_session_revoked(gate: Gate) -> None:
    gate.agent("codex")
    gate.run(lambda tx: gate.agents.revoke_agent(tx, "codex", "jane"))
    with pytest.raises(apsw.ConstraintError, match="never changes"):
        gate.connection.execute("UPDATE agent_session SET revoked_at = NULL")
