"""The secrets shared by all nodes: `cluster_token`, `join_secret`, and the master onion's seed.

Unlike bearer tokens they must be read back, so a hash is not enough. They are stored in the
journal, encrypted under a key derived from the node's key. A file could not change in the same
transaction as the revocation that rotates them. A copy of the journal alone does not reveal them.

The other nodes get them through the room, encrypted for each node (secret_sharing.py).
"""

from collections.abc import Callable

import msgspec
from nacl.secret import SecretBox

from gatepost.access.issuer import Issuer
from gatepost.access.tokens import encode_b64
from gatepost.journal.transaction import Tx
from gatepost.wire.agent_tokens import SecretValue

_SECRET_BYTES = 32
# Versions further ahead are ignored, so that no sender can use up all versions at once.
_MAX_STEP = 1000
_UPSERT_SECRETS = "INSERT OR REPLACE INTO mesh_secret (one, encrypted) VALUES (1, ?)"


class MeshSecrets(SecretValue, frozen=True):
    """One version of the shared secrets, made by `rotated_by`. The highest `order` is valid.

    `revoked` are the fingerprints of keys that were revoked when this version was made.
    """

    version: int
    rotated_by: str
    cluster_token: str
    join_secret: str
    revoked: tuple[str, ...] = ()
    onion_seed: str = ""

    @property
    def order(self) -> tuple[int, str]:
        return self.version, self.rotated_by


class MeshSecretStore:
    def __init__(self, issuer: Issuer) -> None:
        self._clock = issuer.clock
        self._node_id = issuer.id
        self._box = SecretBox(issuer.derive_key("mesh secrets"))

    def current_secrets(self, tx: Tx) -> MeshSecrets | None:
        """The stored secrets; None if this node has neither created nor adopted any."""
        row = tx.fetch_one("SELECT encrypted FROM mesh_secret")
        if row is None:
            return None
        return msgspec.json.decode(self._box.decrypt(row[0]), type=MeshSecrets)

    def rotate_secrets(self, tx: Tx, revoked: tuple[str, ...] = ()) -> MeshSecrets:
        """Create and store the next version of the secrets, which `revoked` keys must not get."""
        old = self.current_secrets(tx)
        version = 1 if old is None else old.version + 1
        made = (self._new_secret(), self._new_secret())
        secrets = MeshSecrets(version, self._node_id, *made, revoked, self._new_secret())
        self._store_secrets(tx, secrets)
        return secrets

    def adopt_secrets(
        self, tx: Tx, secrets: MeshSecrets, is_member: Callable[[str], bool]
    ) -> MeshSecrets:
        """Store secrets from another node, unless ours are as new; return the valid ones.

        Secrets made by a former member give way to any others.
        """
        old = self.current_secrets(tx)
        if old is not None and is_member(old.rotated_by):
            is_newer = old.order < secrets.order
            if not is_newer or secrets.version > old.version + _MAX_STEP:
                return old
        self._store_secrets(tx, secrets)
        return secrets

    def _store_secrets(self, tx: Tx, secrets: MeshSecrets) -> None:
        nonce = self._clock.random(SecretBox.NONCE_SIZE)
        encrypted = bytes(self._box.encrypt(msgspec.json.encode(secrets), nonce))
        tx.execute(_UPSERT_SECRETS, (encrypted,))

    def _new_secret(self) -> str:
        return encode_b64(self._clock.random(_SECRET_BYTES))


def forget_secrets(tx: Tx) -> None:
    """Delete the secrets of a room that this gateway leaves."""
    tx.execute("DELETE FROM mesh_secret")
