from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.access import tokens
from gatepost.access.tokens import BearerToken, TokenKind, matches_hash, mint_token, parse_token
from gatepost.testing import ManualClock


@given(st.sampled_from(TokenKind), st.integers(), st.sampled_from(["", "ab" * 16]))
def test_a_token_is_read_as_it_was_written(kind: TokenKind, seed: int, extra: str) -> None:
    token = mint_token(ManualClock(seed=seed), kind, extra)
    assert parse_token(token.text, kind) == token
    assert matches_hash(parse_token(token.text, kind), token.hash)


def test_the_secret_has_256_bits_and_only_its_sha256_is_kept() -> None:
    token = mint_token(ManualClock(), TokenKind.ACCESS)
    assert len(token.secret) == 32
    assert token.hash == sha256(token.secret).digest()


@given(st.text() | st.from_regex(r"gp1\.[0-9a-f]{16}\.[A-Za-z0-9_-]{40,45}"))
def test_what_is_no_token_finds_no_row_and_raises_nothing(text: str) -> None:
    token = parse_token(text, TokenKind.ACCESS)
    assert token.id == ""
    assert not matches_hash(token, None)


def test_a_token_of_another_kind_is_no_token() -> None:
    refresh = mint_token(ManualClock(), TokenKind.REFRESH).text
    assert parse_token(refresh, TokenKind.ACCESS, TokenKind.CONTEXT).id == ""


def test_a_zero_secret_does_not_match_a_row_that_is_not_there() -> None:
    zero = BearerToken(TokenKind.ACCESS, "", b"")
    assert not matches_hash(zero, None)


def test_secrets_are_compared_in_constant_time_also_when_there_is_nothing_to_compare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(tokens, "compare_digest", compare)
    token = mint_token(ManualClock(), TokenKind.ACCESS)
    matches_hash(token, token.hash)
    matches_hash(token, None)
    assert compared == [(token.hash, token.hash), (token.hash, bytes(32))]


def test_no_form_of_printing_shows_the_secret() -> None:
    token = mint_token(ManualClock(), TokenKind.ACCESS)
    assert repr(token) == str(token) == f"{token}" == "<BearerToken>"
    assert token.__rich_repr__() == []
