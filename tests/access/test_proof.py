import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gatepost.access.proof import Challenges, Statement, by_challenge, by_invite
from tests.access.gate import START, Gate, key

JANE = key("jane")
STATEMENT = Statement(by_invite("0a"), "n" * 16, "f" * 32, "jane", JANE.public)


OTHERS = [
    replace(STATEMENT, ground=by_challenge("0a")),
    replace(STATEMENT, nonce="m" * 16),
    replace(STATEMENT, issuer="e" * 32),
    replace(STATEMENT, node_id="joan"),
]


def test_a_proof_is_good_for_its_own_statement() -> None:
    assert STATEMENT.signed_by(JANE.public, STATEMENT.sign(JANE))


@pytest.mark.parametrize("other", OTHERS)
def test_a_proof_is_good_for_no_other_statement(other: Statement) -> None:
    assert not other.signed_by(JANE.public, STATEMENT.sign(JANE))


def test_a_proof_is_no_good_for_another_key() -> None:
    eve = key("eve")
    assert not STATEMENT.signed_by(eve.public, STATEMENT.sign(JANE))
    # Signed by Eve, about Jane's key.
    assert not STATEMENT.signed_by(eve.public, STATEMENT.sign(eve))


def challenges(gate: Gate) -> Challenges:
    return Challenges(gate.issuer, 60_000)


def test_a_challenge_is_recognised_until_it_ends_and_after_a_restart(gate: Gate) -> None:
    text, end = challenges(gate).make(START)
    assert end == START + 60_000
    restarted = challenges(gate)
    assert restarted.end_of(text, end - 1) == end
    assert restarted.end_of(text, end) is None


def test_two_challenges_of_one_moment_differ(gate: Gate) -> None:
    one = challenges(gate)
    assert one.make(START) != one.make(START)


@given(st.text(max_size=80) | st.from_regex(r"[A-Za-z0-9_-]{74,75}"))
def test_whatever_is_not_ours_is_no_challenge(text: str) -> None:
    assert challenges(Gate()).end_of(text, 0) is None


def test_a_challenge_changed_in_any_character_is_no_challenge(gate: Gate) -> None:
    text, _ = challenges(gate).make(START)
    for i, letter in enumerate(text):
        changed = text[:i] + ("A" if letter != "A" else "B") + text[i + 1 :]
        assert challenges(gate).end_of(changed, START) is None
