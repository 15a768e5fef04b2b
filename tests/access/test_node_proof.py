import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gatepost.access.node_proof import (
    ChallengeIssuer,
    ProofStatement,
    challenge_ground,
    invite_ground,
)
from tests.access.harness import START, AccessHarness, key

JANE = key("jane")
STATEMENT = ProofStatement(invite_ground("0a"), "n" * 16, "f" * 32, "jane", JANE.public)


OTHERS = [
    replace(STATEMENT, ground=challenge_ground("0a")),
    replace(STATEMENT, nonce="m" * 16),
    replace(STATEMENT, issuer="e" * 32),
    replace(STATEMENT, node_id="joan"),
]


def test_a_proof_is_good_for_its_own_statement() -> None:
    assert STATEMENT.is_signed_by(JANE.public, STATEMENT.sign_with(JANE))


@pytest.mark.parametrize("other", OTHERS)
def test_a_proof_is_good_for_no_other_statement(other: ProofStatement) -> None:
    assert not other.is_signed_by(JANE.public, STATEMENT.sign_with(JANE))


def test_a_proof_is_no_good_for_another_key() -> None:
    eve = key("eve")
    assert not STATEMENT.is_signed_by(eve.public, STATEMENT.sign_with(JANE))
    # Signed by Eve, about Jane's key.
    assert not STATEMENT.is_signed_by(eve.public, STATEMENT.sign_with(eve))


def challenges(harness: AccessHarness) -> ChallengeIssuer:
    return ChallengeIssuer(harness.issuer, 60_000)


def test_a_challenge_is_recognised_until_it_ends_and_after_a_restart(
    harness: AccessHarness,
) -> None:
    text, end = challenges(harness).make_challenge(START)
    assert end == START + 60_000
    restarted = challenges(harness)
    assert restarted.challenge_expiry(text, end - 1) == end
    assert restarted.challenge_expiry(text, end) is None


def test_two_challenges_of_one_moment_differ(harness: AccessHarness) -> None:
    one = challenges(harness)
    assert one.make_challenge(START) != one.make_challenge(START)


@given(st.text(max_size=80) | st.from_regex(r"[A-Za-z0-9_-]{74,75}"))
def test_whatever_is_not_ours_is_no_challenge(text: str) -> None:
    assert challenges(AccessHarness()).challenge_expiry(text, 0) is None


def test_a_challenge_changed_in_any_character_is_no_challenge(harness: AccessHarness) -> None:
    text, _ = challenges(harness).make_challenge(START)
    for i, letter in enumerate(text):
        changed = text[:i] + ("A" if letter != "A" else "B") + text[i + 1 :]
        assert challenges(harness).challenge_expiry(changed, START) is None
