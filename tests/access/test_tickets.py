"""Forged, foreign and tampered tickets; what a right one holds."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from hypothesis import given
from hypothesis import strategies as st

from gatepost.access import tickets
from gatepost.access.auth_messages import ExchangeAnswer
from gatepost.access.tokens import encode_b64
from gatepost.events import NodeKey
from tests.access.harness import START, AccessHarness, key, refused

Claims = dict[str, Any]


def ticket_of(harness: AccessHarness) -> ExchangeAnswer:
    return harness.exchange(
        harness.joiner("mbp-jane").with_invite(harness.invite("mbp-jane").token)
    )


def claims_of(ticket: str) -> Claims:
    found: Claims = jwt.decode(ticket, options={"verify_signature": False})
    return found


def signed(claims: Claims, by: NodeKey, typ: str = "gatepost-ticket+jwt") -> str:
    private = Ed25519PrivateKey.from_private_bytes(by.secret)
    return jwt.encode(claims, private, "EdDSA", headers={"typ": typ})


def by_hand(header: dict[str, Any], claims: Claims, sign: Callable[[bytes], bytes]) -> str:
    parts = [json.dumps(part).encode() for part in (header, claims)]
    body = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    return (body + b"." + base64.urlsafe_b64encode(sign(body)).rstrip(b"=")).decode()


def test_a_ticket_has_every_claim(harness: AccessHarness) -> None:
    issued = harness.invite("mbp-jane")
    request = harness.joiner("mbp-jane").with_invite(issued.token)
    answer = harness.exchange(request)
    claims = claims_of(answer.ws_ticket)
    assert claims.pop("jti")
    assert claims == {
        "iss": "vps-jane",
        "sub": "mbp-jane",
        "aud": "ansible-yjs",
        "rooms": ["ansible-control"],
        "inviteId": issued.invite.id,
        "iat": START // 1000,
        "exp": START // 1000 + 45,
        "sid": answer.session_id,
        "nonce": request.nonce,
        "cnf": {"jwk": {"kty": "OKP", "crv": "Ed25519", "x": encode_b64(key("mbp-jane").public)}},
    }
    assert answer.expires_at == claims["exp"] * 1000


def test_a_ticket_re_signed_by_its_issuer_would_be_good_so_the_forgeries_below_fail_for_cause(
    harness: AccessHarness,
) -> None:
    claims = claims_of(ticket_of(harness).ws_ticket)
    assert harness.admit(signed(claims, harness.issuer.key)).node_id == "mbp-jane"


@pytest.mark.parametrize(
    "change",
    [
        {"iss": "lab-jane"},
        {"aud": "ansible-other"},
        {"aud": ["ansible-yjs"]},
        {"aud": ["ansible-yjs", "ansible-other"]},
        {"exp": "2099"},
        {"exp": 4e9 + 0.5},
        {"rooms": "ansible-control"},
        {"cnf": {}},
        {"cnf": {"jwk": {"kty": "OKP", "crv": "Ed448", "x": "A" * 43}}},
        {"sub": "../etc"},
        {"sub": None},
        {"jti": 7},
        {"jti": "of-no-ticket-here"},
    ],
)
def test_claims_that_are_not_a_tickets_are_refused_even_if_signed(
    harness: AccessHarness, change: Claims
) -> None:
    claims = claims_of(ticket_of(harness).ws_ticket) | change
    with refused("invalid_ticket"):
        harness.admit(signed(claims, harness.issuer.key))


@pytest.mark.parametrize(
    "missing", ["iss", "sub", "aud", "rooms", "inviteId", "jti", "iat", "exp", "sid", "cnf"]
)
def test_no_claim_may_be_missing(harness: AccessHarness, missing: str) -> None:
    claims = claims_of(ticket_of(harness).ws_ticket)
    del claims[missing]
    with refused("invalid_ticket"):
        harness.admit(signed(claims, harness.issuer.key))


def test_a_ticket_by_another_key_is_refused(harness: AccessHarness) -> None:
    claims = claims_of(ticket_of(harness).ws_ticket)
    with refused("invalid_ticket"):
        harness.admit(signed(claims, key("eve")))


def test_another_jwt_of_the_same_key_is_no_ticket(harness: AccessHarness) -> None:
    claims = claims_of(ticket_of(harness).ws_ticket)
    with refused("invalid_ticket"):
        harness.admit(signed(claims, harness.issuer.key, typ="JWT"))


@pytest.mark.parametrize("algorithm", ["none", "None", "", "HS256", "HS512", "RS256", "Ed25519"])
def test_the_header_does_not_choose_the_algorithm(harness: AccessHarness, algorithm: str) -> None:
    claims = claims_of(ticket_of(harness).ws_ticket)
    public = harness.issuer.key.public

    def sign(body: bytes) -> bytes:
        return hmac.digest(public, body, hashlib.sha512 if "512" in algorithm else "sha256")

    header = {"alg": algorithm, "typ": "gatepost-ticket+jwt"}
    for signature in (sign, lambda body: b"", harness.issuer.key.sign):
        with refused("invalid_ticket"):
            harness.admit(by_hand(header, claims, signature))


def test_a_key_in_the_header_is_not_trusted(harness: AccessHarness) -> None:
    claims, eve = claims_of(ticket_of(harness).ws_ticket), key("eve")
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": encode_b64(eve.public)}
    header = {"alg": "EdDSA", "typ": "gatepost-ticket+jwt", "jwk": jwk, "kid": "eve"}
    with refused("invalid_ticket"):
        harness.admit(by_hand(header, claims, eve.sign))


def test_an_rsa_ticket_is_refused(harness: AccessHarness) -> None:
    claims = claims_of(ticket_of(harness).ws_ticket)
    rsa = generate_private_key(65537, 2048)
    with refused("invalid_ticket"):
        harness.admit(jwt.encode(claims, rsa, "RS256", headers={"typ": "gatepost-ticket+jwt"}))


def test_a_ticket_tampered_with_anywhere_is_refused_and_costs_the_right_one_nothing(
    harness: AccessHarness,
) -> None:
    ticket = ticket_of(harness).ws_ticket
    for i in range(0, len(ticket) - 2, 7):
        tampered = ticket[:i] + ("A" if ticket[i] != "A" else "B") + ticket[i + 1 :]
        with refused("invalid_ticket"):
            harness.admit(tampered)
    assert harness.admit(ticket).node_id == "mbp-jane"


@given(st.text(max_size=200) | st.from_regex(r"eyJ[\w-]{0,40}\.[\w-]{0,40}\.[\w-]{0,90}"))
def test_any_text_is_refused_the_same_way(text: str) -> None:
    with refused("invalid_ticket"):
        tickets.read_ticket(text, "vps-jane", key("vps-jane").public)


def test_a_deep_or_a_huge_ticket_is_refused(harness: AccessHarness) -> None:
    deep = base64.urlsafe_b64encode(b"[" * 2500).decode()
    for text in (f"{deep}.e.e", f"e.{deep}.e", "e" * 1_000_000):
        with refused("invalid_ticket"):
            harness.admit(text)


def test_a_ticket_expires_on_the_second(harness: AccessHarness) -> None:
    answer = ticket_of(harness)
    harness.clock.set(answer.expires_at - 1)
    harness.crash_during(lambda tx: harness.door.redeem_ticket(tx, answer.ws_ticket))
    harness.clock.set(answer.expires_at)
    with refused("expired_ticket"):
        harness.admit(answer.ws_ticket)


def test_a_ticket_never_outlives_its_invite(harness: AccessHarness) -> None:
    token = harness.invite(ttl=10_000).token
    answer = harness.exchange(harness.joiner("mbp-jane").with_invite(token))
    assert answer.expires_at == START + 10_000
