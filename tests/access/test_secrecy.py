"""No secret that was handed out is found anywhere but in the hands it was handed to."""

import base64
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gatepost.access import Scope, agent_invites, node_invites
from gatepost.access.auth_messages import ContextTokenRequest, ExchangeRequest
from gatepost.access.tokens import decode_b64
from gatepost.errors import GatepostError
from gatepost.wire.agent_tokens import AgentTokens
from tests.access.harness import AccessHarness


def spellings(token: str) -> set[bytes]:
    """A token's secret, however it might have been written down."""
    secret = token.rpartition(".")[2]
    raw = decode_b64(secret)
    printed = repr(raw)[2:-1].encode()
    return {secret.encode(), raw, raw.hex().encode(), base64.b64encode(raw).rstrip(b"="), printed}


def handed_out(harness: AccessHarness) -> tuple[list[object], set[bytes]]:
    """Go through every door once; everything the caller saw, and the secrets in it."""
    issued = harness.invite("mbp-jane")
    request = harness.joiner("mbp-jane").with_invite(issued.token)
    answer = harness.exchange(request)
    admitted = harness.admit(answer.ws_ticket)
    secrets = harness.run(harness.secrets.rotate_secrets)
    out = harness.revoke("mbp-jane")
    agent_invite = harness.agent_invite("codex", Scope.MESSAGE_READ)
    first = harness.run(lambda tx: harness.agents.exchange_invite(tx, agent_invite.token))
    second = harness.refresh(first.refresh_token)
    assert isinstance(second, AgentTokens)
    session = harness.authenticate(second.access_token)
    wanted = ContextTokenRequest((Scope.MESSAGE_READ,))
    narrow = harness.run(lambda tx: harness.agents.issue_context_token(tx, session, wanted))
    seen: list[object] = [
        issued,
        request,
        answer,
        admitted,
        secrets,
        out,
        agent_invite,
        first,
        second,
        narrow,
    ]
    seen += [session, harness.challenge(), harness.issuer]
    bearers = [issued.token, agent_invite.token, narrow.context_token]
    bearers += [t for pair in (first, second) for t in (pair.access_token, pair.refresh_token)]
    bearers += [answer.ws_ticket]
    shared = [secrets, out.secrets]
    words = {w.encode() for s in shared for w in (s.cluster_token, s.join_secret)}
    return seen, words.union(*map(spellings, bearers))


def test_there_is_something_to_find(harness: AccessHarness) -> None:
    seen, secrets = handed_out(harness)
    shown = b"".join(msgspec.json.encode(value) for value in seen[:-1])
    assert sum(secret in shown for secret in secrets) >= 12


def test_the_journals_files_hold_no_secret(tmp_path: Path) -> None:
    harness = AccessHarness(tmp_path / "journal.db")
    _, secrets = handed_out(harness)
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    harness.close()
    files += (tmp_path / "journal.db").read_bytes()
    assert b"mbp-jane" in files
    assert [secret for secret in secrets if secret in files] == []


def test_no_value_prints_a_secret(harness: AccessHarness) -> None:
    seen, secrets = handed_out(harness)
    printed = "".join(f"{value!r} {value!s} {value}" for value in seen).encode()
    assert [secret for secret in secrets if secret in printed] == []


def test_lists_hold_no_secret(harness: AccessHarness) -> None:
    _, secrets = handed_out(harness)
    lists = (
        node_invites.list_node_invites,
        agent_invites.list_agent_invites,
        harness.agents.list_sessions,
    )
    shown = b"".join(msgspec.json.encode(harness.run(list)) for list in lists)
    assert [secret for secret in secrets if secret in shown] == []


def test_no_refusal_repeats_what_was_presented(harness: AccessHarness) -> None:
    token, agent = harness.invite("lab-jane").token, harness.agent_invite().token
    request = harness.joiner("mbp-jane").with_invite(token)
    refusals = []
    for act in (
        lambda: harness.exchange(request),
        lambda: harness.exchange(replace(request, invite_token=f"{token}x")),
        lambda: harness.exchange(replace(request, invite_token=None, challenge=token)),
        lambda: harness.admit(token),
        lambda: harness.refresh(agent),
        lambda: harness.authenticate(agent),
        lambda: node_invites.read_invite_issuer(f"{token}x"),
    ):
        with pytest.raises(GatepostError) as found:
            act()
        refusals.append(f"{found.value!r} {found.value.message} {found.value.__cause__!r}")
    said = "".join(refusals).encode()
    assert [s for s in spellings(token) | spellings(agent) if s in said] == []


def test_a_request_that_does_not_decode_is_refused_without_repeating_it() -> None:
    secret = "gp1." + "s" * 300
    with pytest.raises(msgspec.ValidationError) as found:
        msgspec.convert({"nodeId": "a", "nodeKey": "", "inviteToken": secret}, ExchangeRequest)
    assert secret not in str(found.value)
