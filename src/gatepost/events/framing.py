"""Unambiguous byte strings for signatures, hashes and associated data."""


def frame_parts(domain: str, *parts: bytes) -> bytes:
    """Length-prefix the domain and every part, so that no two inputs share an encoding."""
    # A list: every payload comes here, and a generator would take twice the time.
    return b"".join([len(part).to_bytes(4, "big") + part for part in (domain.encode(), *parts)])
