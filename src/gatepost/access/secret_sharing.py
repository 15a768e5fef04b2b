"""Passing the mesh secrets on through the room, encrypted for each node that may have them.

A record `secrets.<fingerprint>@<writer>` is encrypted for the node with this key. Only backbone
nodes write such records, and only for members. These nodes are responsible for a member: the maker
of the version, the node that admitted the member, and the publisher. So a version reaches every
member even if its maker is lost, and is rarely written twice.

A revoked node gets no later version. The maker of a version knows of the revocation that led to it.
Other nodes pass a version on only if they know all the revocations it names.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct
from nacl.exceptions import CryptoError
from nacl.public import SealedBox
from nacl.signing import VerifyKey

from gatepost.access.mesh_secrets import MeshSecrets
from gatepost.errors import EncryptionError
from gatepost.events import NodeKey, fingerprint_key
from gatepost.room import MeshSecretRecord, RoomMember, SharedRoom, claim_key
from gatepost.room.admission_chain import chain_issuer
from gatepost.room.records import key_subject
from gatepost.room.roles import may_write

SECRETS_MAP = "secrets"


class _SecretTexts(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The encrypted part. Version and maker are in it too, so that they cannot be exchanged."""

    version: int
    rotated_by: str
    cluster_token: str
    join_secret: str
    onion_seed: str


def encrypt_secrets(secrets: MeshSecrets, public_key: bytes) -> MeshSecretRecord:
    """Make the record with these secrets for the node with this key."""
    shared = (secrets.cluster_token, secrets.join_secret, secrets.onion_seed)
    texts = _SecretTexts(*secrets.order, *shared)
    try:
        box = SealedBox(VerifyKey(public_key).to_curve25519_public_key())
    except (CryptoError, RuntimeError):
        raise EncryptionError(f"{fingerprint_key(public_key)} is not a usable node key") from None
    return MeshSecretRecord(
        version=secrets.version,
        rotated_by=secrets.rotated_by,
        revoked=secrets.revoked,
        encrypted=box.encrypt(msgspec.json.encode(texts)),
    )


def decrypt_secrets(record: MeshSecretRecord, key: NodeKey) -> MeshSecrets:
    """Read a record for this node; raise EncryptionError if it is not what it says."""
    try:
        plain = SealedBox(key.exchange_key).decrypt(record.encrypted)
        texts = msgspec.json.decode(plain, type=_SecretTexts)
    except (CryptoError, ValueError):
        raise EncryptionError("the mesh secrets in the room cannot be decrypted") from None
    shared = (texts.cluster_token, texts.join_secret)
    identity = (texts.version, texts.rotated_by)
    secrets = MeshSecrets(*identity, *shared, record.revoked, texts.onion_seed)
    if secrets.order != (record.version, record.rotated_by):
        raise EncryptionError("the mesh secrets in the room are of another version than they say")
    return secrets


class SecretSharing:
    """Decides for which members this node writes the secrets. `room` is its replica."""

    def __init__(self, room: SharedRoom, node_id: str, key: NodeKey) -> None:
        self._room = room
        self._node_id = node_id
        self._key = key

    def received_record(self) -> MeshSecretRecord | None:
        """The latest version that the room has for this node."""
        return self._room.effective.mesh_secrets.get(self._key.fingerprint)

    def plan_records(
        self, secrets: MeshSecrets, *, is_publisher: bool
    ) -> dict[tuple[str, str], RoomMember | None]:
        """Records to write: map and key → the member to encrypt for, None to delete the record."""
        planned: dict[tuple[str, str], RoomMember | None] = dict.fromkeys(self._obsolete_records())
        if self._may_share(secrets):
            for member in self._uninformed_members(secrets):
                if is_publisher or self._is_responsible(secrets, member):
                    fingerprint = fingerprint_key(member.public_key)
                    planned[SECRETS_MAP, claim_key(fingerprint, self._node_id)] = member
        return planned

    def _may_share(self, secrets: MeshSecrets) -> bool:
        own = self._room.effective.nodes.get(self._node_id)
        if own is None or not may_write(own.role, MeshSecretRecord):
            return False
        known = {fingerprint_key(key) for _, key in self._room.effective.membership.revoked}
        return secrets.rotated_by == self._node_id or known.issuperset(secrets.revoked)

    def _uninformed_members(self, secrets: MeshSecrets) -> Iterable[RoomMember]:
        shared = self._room.effective.mesh_secrets
        for member in self._room.effective.nodes.values():
            fingerprint = fingerprint_key(member.public_key)
            record = shared.get(fingerprint)
            is_informed = record is not None and (
                (record.version, record.rotated_by) >= secrets.order
            )
            if not is_informed and fingerprint not in {self._key.fingerprint, *secrets.revoked}:
                yield member

    def _is_responsible(self, secrets: MeshSecrets, member: RoomMember) -> bool:
        admitted_by = chain_issuer(self._room.genesis, member.chain)
        return self._node_id in {secrets.rotated_by, admitted_by}

    def _obsolete_records(self) -> list[tuple[str, str]]:
        """Our records for nodes that are no longer members: they were revoked."""
        if not self._room.effective.membership.revoked:
            return []
        members = {fingerprint_key(m.public_key) for m in self._room.effective.nodes.values()}
        return [
            (signed.map, signed.key)
            for signed in self._room.document
            if signed.map == SECRETS_MAP
            and signed.public_key == self._key.public
            and signed.data is not None
            and key_subject(signed.key) not in members
        ]
