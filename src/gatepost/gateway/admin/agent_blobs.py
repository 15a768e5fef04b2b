"""Blobs of external agents: each agent uses only its own blobs, and uploads within limits."""

from collections import Counter
from collections.abc import AsyncIterator

from gatepost.access import AgentSession
from gatepost.delivery.abuse import AbuseKind
from gatepost.delivery.blob_records import find_key_for_agent, has_blob, unsent_upload_bytes
from gatepost.errors import RateLimited, Unavailable, UnknownBlob
from gatepost.events import check_digest
from gatepost.gateway.api.blob_upload import BlobUploads
from gatepost.gateway.api.operations import Operations
from gatepost.journal import Tx
from gatepost.wire.gateway_views import StoredBlob

_AT_ONCE = 4
_AT_ONCE_PER_AGENT = 2
# The most blobs of the largest size that an agent may upload without sending them. Unsent ones are
# deleted after an hour.
_UNSENT_BLOBS = 4


class AgentBlobs:
    def __init__(self, operations: Operations) -> None:
        self._core = operations.core
        self._uploads = BlobUploads(operations, _AT_ONCE)
        self._uploading: Counter[str] = Counter()
        self._max_unsent_bytes = _UNSENT_BLOBS * self._core.settings.limits.max_blob_bytes

    async def find_key(self, session: AgentSession, digest: str) -> bytes:
        """Return the key of an agent's blob; any other blob is unknown to it."""
        check_digest(digest)

        def find(tx: Tx) -> bytes | bool:
            try:
                return find_key_for_agent(tx, digest, session.agent_id)
            except UnknownBlob:
                return has_blob(tx, digest)

        found = await self._core.read(find)
        if isinstance(found, bytes):
            return found
        if found:
            self._core.abuse.report_abuse(
                f"agent:{session.agent_id}", AbuseKind.FOREIGN_BLOB, f"it named {digest}"
            )
        raise UnknownBlob(f"no blob {digest} for {session.agent_id} on this gateway")

    async def store_upload(self, session: AgentSession, body: AsyncIterator[bytes]) -> StoredBlob:
        agent = session.agent_id
        if self._uploading[agent] >= _AT_ONCE_PER_AGENT:
            raise Unavailable("too many uploads of this agent at once", retry_after=1.0)
        self._uploading[agent] += 1
        try:
            await self.require_quota(agent)
            return StoredBlob(*await self._uploads.store_body(body, agent))
        finally:
            self._uploading[agent] -= 1
            if not self._uploading[agent]:
                del self._uploading[agent]

    async def require_quota(self, agent: str) -> None:
        """RateLimited if an agent has reached its limit of uploaded, unsent bytes."""
        unsent = await self._core.read(lambda tx: unsent_upload_bytes(tx, agent))
        if unsent >= self._max_unsent_bytes:
            raise RateLimited(
                f"{agent} has uploaded {unsent} bytes that it has not sent; send them first",
                retry_after=60.0,
            )
