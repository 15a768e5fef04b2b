"""Byte strings that mean one thing only, for signing, hashing and associated data."""


def frame(domain: str, *parts: bytes) -> bytes:
    """Length-prefix the domain and every part, so that no two inputs share an encoding."""
    return b"".join(len(p).to_bytes(4, "big") + p for p in (domain.encode(), *parts))
