"""The key that signs agent cards: the door's own, because the node's key signs events only."""

import base64
from pathlib import Path
from typing import Any

from nacl.signing import SigningKey

from gatepost.files import write_file_atomically


class CardKey:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seed: bytes | None = None

    def load_seed(self) -> bytes:
        """The seed of the key, which is made when it is first needed."""
        if self._seed is None:
            if not self._path.exists():
                write_file_atomically(self._path, bytes(SigningKey.generate()))
            self._seed = self._path.read_bytes()
        return self._seed

    @property
    def _public(self) -> bytes:
        return bytes(SigningKey(self.load_seed()).verify_key)

    @property
    def id(self) -> str:
        return _encode(self._public)[:16]

    def describe(self) -> dict[str, Any]:
        """The key set that verifies cards (RFC 7517, RFC 8037)."""
        key = {"kty": "OKP", "crv": "Ed25519", "x": _encode(self._public)}
        return {"keys": [{**key, "kid": self.id, "alg": "EdDSA", "use": "sig"}]}


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
