"""Receipts and dead letters say enough to act on."""

import msgspec
import pytest

from gatepost.events.envelope import DeadLetterNotice, Receipt


@pytest.mark.parametrize(
    ("receipt", "wire"),
    [
        (Receipt(status="accepted"), b'{"status":"accepted"}'),
        (
            Receipt(status="accepted", eta_at=5, eta_seconds=1, plan="read, then write"),
            b'{"status":"accepted","etaAt":5,"etaSeconds":1,"plan":"read, then write"}',
        ),
        (
            Receipt(status="refused", reason="mailbox_full"),
            b'{"status":"refused","reason":"mailbox_full"}',
        ),
        (
            Receipt(status="processed", outcome="dead_letter"),
            b'{"status":"processed","outcome":"dead_letter"}',
        ),
    ],
)
def test_receipt_on_the_wire(receipt: Receipt, wire: bytes) -> None:
    assert msgspec.json.encode(receipt) == wire
    assert msgspec.json.decode(wire, type=Receipt) == receipt


@pytest.mark.parametrize(
    "wire",
    [
        b'{"status":"seen"}',
        b'{"status":"processed"}',
        b'{"status":"processed","outcome":"great"}',
        b'{"status":"accepted","outcome":"ok"}',
        b'{"status":"refused"}',
        b'{"status":"refused","reason":""}',
        b'{"status":"accepted","etaAt":1.5}',
        b'{"status":"accepted","etaSeconds":-1}',
    ],
)
def test_a_receipt_that_says_too_little_or_too_much_is_refused(wire: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(wire, type=Receipt)


def test_dead_letter_on_the_wire() -> None:
    letter = DeadLetterNotice(reason="max_attempts", attempts=15, pair_seq=3)
    wire = msgspec.json.encode(letter)
    assert wire == b'{"reason":"max_attempts","attempts":15,"pairSeq":3}'
    assert msgspec.json.decode(wire, type=DeadLetterNotice) == letter
