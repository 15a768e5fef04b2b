"""Blobs in the journal: the key and size of each, and the mail that refers to it."""

from gatepost.errors import UnknownBlob
from gatepost.events import Blob, PayloadRef
from gatepost.journal.transaction import Tx

_SELECT_BLOB = "SELECT key, size FROM blob WHERE digest = ?"
_KEEP_BLOB = "INSERT OR IGNORE INTO blob (digest, key, size, created_at) VALUES (?, ?, ?, ?)"
_KEEP_UPLOAD = """
INSERT OR IGNORE INTO blob (digest, key, size, created_at, content, uploader)
VALUES (?, ?, ?, ?, ?, ?)
"""
_SELECT_CONTENT = "SELECT content FROM blob WHERE digest = ?"
# The blobs of an agent: those it uploaded, those of its mail, of the messages it sent, and of the
# replies to them.
_SELECT_KEY_OF_AGENT = """
SELECT key FROM blob WHERE digest = ?1 AND (
    uploader = ?2
    OR EXISTS (
        SELECT 1 FROM blob_use u JOIN mail m ON m.id = u.mail JOIN mailbox b ON b.id = m.mailbox
        WHERE u.digest = ?1 AND b.name = ?2
    )
    OR EXISTS (SELECT 1 FROM delivery d WHERE d.digest = ?1 AND d.from_agent = ?2)
    OR EXISTS (SELECT 1 FROM delivery d WHERE d.reply_ref = ?1 AND d.from_agent = ?2)
)
"""
_SELECT_UNSENT_BYTES = """
SELECT coalesce(sum(size), 0) FROM blob b WHERE uploader = ?1
AND NOT EXISTS (SELECT 1 FROM delivery d WHERE d.digest = b.digest)
AND NOT EXISTS (SELECT 1 FROM delivery d WHERE d.reply_ref = b.digest)
"""
_SELECT_MAIL_ID = """
SELECT m.id FROM mail m JOIN mailbox b ON b.id = m.mailbox WHERE b.name = ? AND m.msg_id = ?
"""
_USE_BLOB = "INSERT OR IGNORE INTO blob_use (digest, mail) VALUES (?, ?)"


def find_blob(tx: Tx, digest: str) -> tuple[bytes, int]:
    """(content key, size) of a blob this gateway has."""
    row = tx.fetch_one(_SELECT_BLOB, (digest,))
    if row is None:
        raise UnknownBlob(f"no blob {digest} on this gateway; upload it first")
    return row[0], row[1]


def find_key_for_agent(tx: Tx, digest: str, agent: str) -> bytes:
    """The content key of a blob, if it belongs to mail or messages of this agent."""
    row = tx.fetch_one(_SELECT_KEY_OF_AGENT, (digest, agent))
    if row is None:
        raise UnknownBlob(f"no blob {digest} for {agent} on this gateway")
    return bytes(row[0])


def has_blob(tx: Tx, digest: str) -> bool:
    return tx.fetch_one(_SELECT_BLOB, (digest,)) is not None


def keep_blob(tx: Tx, ref: PayloadRef, key: bytes) -> None:
    """Note the key and size of a blob that was fetched."""
    tx.execute(_KEEP_BLOB, (ref.digest, key, ref.size, tx.now))


def keep_uploaded_blob(tx: Tx, blob: Blob, key: bytes, uploader: str | None = None) -> None:
    """Note the key, size and fingerprint of a blob that was uploaded here.

    `uploader` is the external agent to which the blob belongs; None for the operator.
    """
    tx.execute(_KEEP_UPLOAD, (blob.digest, key, blob.size, tx.now, blob.content, uploader))


def unsent_upload_bytes(tx: Tx, agent: str) -> int:
    """The bytes that an external agent has uploaded and named in no message or reply so far."""
    ((size,),) = tx.fetch_all(_SELECT_UNSENT_BYTES, (agent,))
    return int(size)


def blob_fingerprint(tx: Tx, digest: str) -> bytes:
    """The fingerprint of a blob's plain content; its digest, if the blob was not uploaded here."""
    row = tx.fetch_one(_SELECT_CONTENT, (digest,))
    if row is None:
        raise UnknownBlob(f"no blob {digest} on this gateway; upload it first")
    return row[0] or digest.encode()


def use_blob(tx: Tx, digest: str, mailbox: str, msg_id: str) -> None:
    """Keep a blob for as long as this mail refers to it."""
    row = tx.fetch_one(_SELECT_MAIL_ID, (mailbox, msg_id))
    if row is not None:
        tx.execute(_USE_BLOB, (digest, row[0]))
