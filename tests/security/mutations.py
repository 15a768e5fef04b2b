"""Mutations of valid inputs, from fixed seeds, for as long as the budget lasts.

Case `n` of a fuzzer depends on its seed and `n` alone, so a failure is repeated by its number.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.conftest import FULL

# In `scripts/test` a fuzzer takes moments, with `--full` all of them together take hours.
SECS, HOUR_SECS = (
    float(os.environ.get("GATEPOST_FUZZ_SECS") or (full if FULL else 0.6)) for full in (1500, 3600)
)
# A test stops long after its budget only if it hangs.
TIMEOUT_SECS, HOUR_TIMEOUT_SECS = (int(secs * 2 + 120) for secs in (SECS, HOUR_SECS))

_NUMBERS = (0, 1, -1, 127, 128, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53 - 1, 2**53, 2**63, 2**64)
_NASTY_BYTES = (
    *(b"\x00", b"\xff" * 10, b"\x80" * 12, b"\xc1", b"\xdd" + b"\xff" * 4, b"\xdf" + b"\xff" * 4),
    *(b"[" * 3000, b'{"a":' * 3000, b'"', b"\\ud800", b"\xed\xa0\x80", b"\r\n", b"\x1b[2J", b"../"),
    *(b"\x91" * 3000, b"9" * 5000, b"1e999", b"null", b"NaN"),
)
_NASTY_VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "x", "\x00", "\ud800", "../../etc/passwd", "a" * 300, "\r\n\x1b[31m"),
    *(-1, 0, 1, 2**31, 2**53, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, [], {}, [[]], {"a": {}}),
    *([None] * 50, {"x" * 100: 1}, "𝕏" * 40, "2026-01-01", "sha256:" + "0" * 64, "@", "a@b"),
)


def run_cases(
    seed: str, try_case: Callable[[int, Random], None], least: int = 50, secs: float = SECS
) -> int:
    """Call `try_case` with case after case until the budget is used up; return how many it was."""
    ends = time.monotonic() + secs
    number = 0
    while number < least or time.monotonic() < ends:
        try:
            try_case(number, Random(f"{seed}/{number}"))
        except Exception as error:
            error.add_note(f"this is case {number} of the seed {seed!r}")
            raise
        number += 1
    return number


def mutate_bytes(data: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """Change some bytes, here and there."""
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        at = random.randint(0, len(data))
        to = min(len(data), at + random.choice((1, 1, 2, 4, 8, 64)))
        other = random.choice(others) if others else b""
        change = random.choice(_BYTE_CHANGES)
        data = data[:at] + change(data[at:to], random, other) + data[to:]
        if random.random() < 0.1:
            data = data[:at]
    return data


def _insert_number(part: bytes, random: Random, _: bytes) -> bytes:
    size = random.choice((1, 2, 4, 8))
    number: int = random.choice(_NUMBERS) % 256**size
    return number.to_bytes(size, "big")


def _flip_bits(part: bytes, random: Random, _: bytes) -> bytes:
    return bytes(byte ^ 1 << random.randrange(8) for byte in part)


# What may become of some bytes; `other` is another valid input.
_BYTE_CHANGES: tuple[Callable[[bytes, Random, bytes], bytes], ...] = (
    lambda part, random, other: random.randbytes(len(part)),
    lambda part, random, other: b"",
    lambda part, random, other: part + part,
    lambda part, random, other: random.choice(_NASTY_BYTES) + part,
    lambda part, random, other: other[random.randint(0, len(other)) :],
    _insert_number,
    _flip_bits,
    _flip_bits,
)


def mutate_value(value: Any, random: Random) -> Any:
    """Change one part of a JSON or MessagePack value, somewhere inside it."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        return _mutate_dict(value, random)
    if isinstance(value, list) and value and random.random() < 0.85:
        return _mutate_list(value, random)
    if isinstance(value, str) and value and random.random() < 0.3:
        return mutate_bytes(value.encode("utf-8", "replace"), random).decode(errors="replace")
    if isinstance(value, bytes) and random.random() < 0.6:
        return mutate_bytes(value, random)
    return random.choice((*_NASTY_VALUES, random.choice(_NUMBERS)))


def _mutate_dict(value: dict[str, Any], random: Random) -> dict[str, Any]:
    key = random.choice(list(value))
    match random.randrange(8):
        case 0:
            return {k: v for k, v in value.items() if k != key}
        case 1:
            return {**value, random.choice((f"{key}x", str(key).upper(), "")): value[key]}
        case _:
            return {**value, key: mutate_value(value[key], random)}


def _mutate_list(value: list[Any], random: Random) -> list[Any]:
    at = random.randrange(len(value))
    match random.randrange(8):
        case 0:
            return value[:at] + value[at + 1 :]
        case 1:
            return value[:at] + [value[at]] * random.choice((2, 100)) + value[at:]
        case _:
            return [*value[:at], mutate_value(value[at], random), *value[at + 1 :]]


def mutate_json(body: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """Mutate a JSON text: in its values mostly, else in its bytes."""
    if random.random() < 0.25:
        return mutate_bytes(body, random, others)
    value = json.loads(body)
    for _ in range(random.choice((1, 1, 2, 4))):
        value = mutate_value(value, random)
    return json.dumps(value, default=repr).encode("utf-8", "surrogatepass")
