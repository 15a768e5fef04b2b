"""The two secrets all nodes share: `cluster_token` and `join_secret`.

Unlike a bearer token they must be read again, so a hash will not do. They lie in the journal,
encrypted under a key derived from the node's: a file could not change in one transaction with
the revocation that rotates them, and a copy of the journal alone gives nothing away.
"""

import msgspec
from nacl.secret import SecretBox

from gatepost.access.issuer import Issuer
from gatepost.access.tokens import Guarded, b64
from gatepost.journal.tx import Tx

_SIZE = 32
_STORE = "INSERT OR REPLACE INTO mesh_secret VALUES (1, ?, ?, ?)"


class MeshSecrets(Guarded, frozen=True):
    """The higher `version` counts."""

    version: int
    cluster_token: str
    join_secret: str


class SecretStore:
    def __init__(self, issuer: Issuer) -> None:
        self._clock = issuer.clock
        self._box = SecretBox(issuer.derive("mesh secrets"))

    def current(self, tx: Tx) -> MeshSecrets | None:
        """None on a node that has neither made nor been told any."""
        row = tx.one("SELECT sealed FROM mesh_secret")
        if row is None:
            return None
        return msgspec.json.decode(self._box.decrypt(row[0]), type=MeshSecrets)

    def rotate(self, tx: Tx) -> MeshSecrets:
        """New secrets in place of the old, or the first ones."""
        old = self.current(tx)
        version = 1 if old is None else old.version + 1
        secrets = MeshSecrets(version, self._fresh(), self._fresh())
        self._keep(tx, secrets)
        return secrets

    def adopt(self, tx: Tx, secrets: MeshSecrets) -> MeshSecrets:
        """Take over what another node told us, unless ours are as new."""
        old = self.current(tx)
        if old is not None and old.version >= secrets.version:
            return old
        self._keep(tx, secrets)
        return secrets

    def _keep(self, tx: Tx, secrets: MeshSecrets) -> None:
        nonce = self._clock.random(SecretBox.NONCE_SIZE)
        sealed = bytes(self._box.encrypt(msgspec.json.encode(secrets), nonce))
        tx.run(_STORE, (secrets.version, sealed, tx.now))

    def _fresh(self) -> str:
        return b64(self._clock.random(_SIZE))
