"""Both libraries give the same verdicts, and no key of small order counts."""

import pytest
from nacl.signing import SigningKey

from gatepost.mesh import signature_check
from gatepost.mesh.signature_check import (
    CheckSignature,
    SignatureChecker,
    find_signature_check,
    is_valid_key,
    verify_with_libsodium,
)

KEY = SigningKey(b"k" * 32)
PUBLIC = bytes(KEY.verify_key)
TEXT = b"text"
SIGNATURE = KEY.sign(TEXT).signature
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
NEUTRAL_POINT = (1).to_bytes(32, "little")


@pytest.fixture(params=[verify_with_libsodium, find_signature_check()], ids=["libsodium", "found"])
def checker(request: pytest.FixtureRequest) -> SignatureChecker:
    check: CheckSignature = request.param
    return SignatureChecker(check)


def test_a_signature_counts_for_its_key_and_its_text(checker: SignatureChecker) -> None:
    other = bytes(SigningKey(b"o" * 32).verify_key)
    assert checker.is_signed_by(PUBLIC, TEXT, SIGNATURE)
    assert not checker.is_signed_by(other, TEXT, SIGNATURE)
    assert not checker.is_signed_by(PUBLIC, b"other", SIGNATURE)


@pytest.mark.parametrize("bit", range(0, 512, 37))
def test_no_bit_of_a_signature_can_be_changed(checker: SignatureChecker, bit: int) -> None:
    changed = bytearray(SIGNATURE)
    changed[bit // 8] ^= 1 << bit % 8
    assert not checker.is_signed_by(PUBLIC, TEXT, bytes(changed))


def test_a_signature_has_one_form_only(checker: SignatureChecker) -> None:
    scalar = int.from_bytes(SIGNATURE[32:], "little") + GROUP_ORDER
    assert not checker.is_signed_by(PUBLIC, TEXT, SIGNATURE[:32] + scalar.to_bytes(32, "little"))


@pytest.mark.parametrize("signature", [b"", SIGNATURE[:-1], SIGNATURE + b"x", b"\xff" * 64])
def test_a_malformed_signature_is_no_error(checker: SignatureChecker, signature: bytes) -> None:
    assert not checker.is_signed_by(PUBLIC, TEXT, signature)


@pytest.mark.parametrize("key", [b"", PUBLIC[:-1], b"\0" * 32, b"\xff" * 32, NEUTRAL_POINT])
def test_a_key_under_which_anybody_signs_is_refused(checker: SignatureChecker, key: bytes) -> None:
    assert not is_valid_key(key)
    assert not checker.is_signed_by(key, TEXT, NEUTRAL_POINT + b"\0" * 32)
    assert not checker.is_signed_by(key, TEXT, b"\0" * 64)


def test_libsodium_checks_where_the_faster_library_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signature_check, "_verify_with_zebra", None)
    assert find_signature_check() is verify_with_libsodium
