"""Keeps the mesh secrets of this gateway up to date, and passes them on through the room."""

import asyncio
import contextlib
import logging
from itertools import islice

from gatepost.access import MeshSecrets, MeshSecretStore
from gatepost.access.secret_sharing import SecretSharing, decrypt_secrets, encrypt_secrets
from gatepost.errors import EncryptionError
from gatepost.room import MeshSecretRecord, RoomChange
from gatepost.room.service.current_publisher import CurrentPublisher
from gatepost.room.service.record_announcer import RecordAnnouncer

log = logging.getLogger(__name__)

# An unannounced change, for example another publisher, is noticed within this time.
_CHECK_SECS = 5.0
# The most records that are signed before the event loop does other work.
_RECORDS_AT_ONCE = 64
_RELEVANT_MAPS = {"nodes", "secrets", "standing"}


class MeshSecretSharing:
    """The current publisher makes the first secrets, and sends them to all members."""

    def __init__(self, announcer: RecordAnnouncer, current: CurrentPublisher) -> None:
        self._announcer = announcer
        self._replica = announcer.replica
        self._core = announcer.replica.core
        self._is_publisher = current.is_this_node
        self._changed = asyncio.Event()
        self._unreadable: MeshSecretRecord | None = None
        self._replica.watch_changes(self._note_change)

    async def current_secrets(self) -> MeshSecrets | None:
        """The secrets of the room, as far as this gateway knows them."""
        return await self._core.read(self._create_store().current_secrets)

    async def rotate_secrets(self) -> MeshSecrets:
        """Make new secrets, and pass them on."""
        store = self._create_store()
        old = await self.current_secrets()
        revoked = () if old is None else old.revoked
        secrets = await self._core.commit(lambda tx: store.rotate_secrets(tx, revoked))
        self._changed.set()
        return secrets

    async def share_once(self) -> None:
        """One turn of the background loop: share, then wait for a change."""
        self._changed.clear()
        if self._announcer.is_ready:
            await self.share_secrets()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CHECK_SECS):
                await self._changed.wait()

    async def share_secrets(self) -> None:
        """Take over newer secrets from the room, then inform the members that lack them."""
        sharing = self._create_sharing()
        secrets = await self._adopt_secrets(sharing)
        if secrets is None and self._is_publisher():
            secrets = await self._core.commit(self._create_store().rotate_secrets)
        if secrets is None:
            return
        planned = sharing.plan_records(secrets, is_publisher=self._is_publisher())
        await self._announcer.publish_records(
            {
                slot: None if member is None else encrypt_secrets(secrets, member.public_key)
                for slot, member in islice(planned.items(), _RECORDS_AT_ONCE)
            }
        )
        if len(planned) > _RECORDS_AT_ONCE:
            self._changed.set()

    async def _adopt_secrets(self, sharing: SecretSharing) -> MeshSecrets | None:
        record = sharing.received_record()
        known = await self.current_secrets()
        if record is None or (known is not None and known.order == _order_of(record)):
            return known
        try:
            received = decrypt_secrets(record, self._core.node.key)
        except EncryptionError as error:
            if record != self._unreadable:
                log.warning("%s; they were made by %s", error.message, record.rotated_by)
            self._unreadable = record
            return known
        members = self._replica.current_room.effective.nodes
        store = self._create_store()
        return await self._core.commit(
            lambda tx: store.adopt_secrets(tx, received, members.__contains__)
        )

    def _create_sharing(self) -> SecretSharing:
        node = self._core.node
        return SecretSharing(self._replica.current_room, node.id, node.key)

    def _create_store(self) -> MeshSecretStore:
        return MeshSecretStore(self._replica.create_issuer())

    def _note_change(self, change: RoomChange | None) -> None:
        if change is None or any(signed.map in _RELEVANT_MAPS for signed in change.changed):
            self._changed.set()


def _order_of(record: MeshSecretRecord) -> tuple[int, str]:
    return record.version, record.rotated_by
