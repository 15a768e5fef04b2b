"""Blobs in the journal: the key and size of each, what refers to it, and the results awaited.

A blob is kept while something refers to it: mail, an open delivery, a reply, a message that was
given up, an event that is held or offered, or something of the tasks or the mirror, which say so to
`delete_unused_blobs`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from gatepost.errors import UnknownBlob
from gatepost.events import Blob, PayloadRef
from gatepost.journal.transaction import Tx
from gatepost.mailbox.lookup import HAS_BODY_SQL, IS_MAIL_OF_SQL, find_mail_id

_SELECT_BLOB = "SELECT key, size FROM blob WHERE digest = ?"
_KEEP_BLOB = "INSERT OR IGNORE INTO blob (digest, key, size, created_at) VALUES (?, ?, ?, ?)"
_KEEP_UPLOAD = """
INSERT OR IGNORE INTO blob (digest, key, size, created_at, content, uploader)
VALUES (?, ?, ?, ?, ?, ?)
"""
_SELECT_CONTENT = "SELECT content FROM blob WHERE digest = ?"
# The blobs of an agent: those it uploaded, those of its mail, of the messages it sent, and of the
# replies to them.
_SELECT_KEY_OF_AGENT = f"""
SELECT key FROM blob WHERE digest = ?1 AND (
    uploader = ?2
    OR EXISTS (
        SELECT 1 FROM blob_use u
        WHERE u.digest = ?1 AND {IS_MAIL_OF_SQL.format(mail="u.mail", mailbox="?2")}
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
_USE_BLOB = "INSERT OR IGNORE INTO blob_use (digest, mail) VALUES (?, ?)"
# The blobs that are here, and the size of the one with the digest `{digest}`.
KNOWN_BLOBS_SQL = "(SELECT digest FROM blob)"
BLOB_SIZE_SQL = "(SELECT size FROM blob WHERE blob.digest = {digest})"
_DELETE_UNUSED = f"""
DELETE FROM blob WHERE created_at <= ? AND NOT EXISTS (
    SELECT 1 FROM blob_use u
    WHERE u.digest = blob.digest AND {HAS_BODY_SQL.format(mail="u.mail")}
) AND NOT EXISTS (
    SELECT 1 FROM delivery d WHERE d.digest = blob.digest AND d.processed_at IS NULL
) AND NOT EXISTS (
    SELECT 1 FROM delivery d WHERE d.reply_ref = blob.digest
){{uses}} AND digest NOT IN (
    SELECT digest FROM undelivered WHERE digest IS NOT NULL
    UNION ALL {{digests}}
) RETURNING digest
"""
_AWAIT_RESULT = """
INSERT OR REPLACE INTO task_blob (digest, task, source, key, size, at) VALUES (?, ?, ?, ?, ?, ?)
"""
_TAKE_AWAITED = "DELETE FROM task_blob WHERE digest = ? RETURNING task, key, size, source"


class AwaitedResult(NamedTuple):
    """A task whose result is a blob, the key and size of the blob, and the node that has it."""

    task: bytes
    key: bytes
    size: int
    source: str


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
    mail = find_mail_id(tx, mailbox, msg_id)
    if mail is not None:
        tx.execute(_USE_BLOB, (digest, mail))


def all_digests(tx: Tx) -> list[str]:
    return [row[0] for row in tx.fetch_all("SELECT digest FROM blob ORDER BY digest")]


def stored_key(tx: Tx, digest: str) -> bytes | None:
    """The content key of a blob; None if this gateway does not have the blob."""
    row = tx.fetch_one(_SELECT_BLOB, (digest,))
    return None if row is None else row[0]


def delete_unused_blobs(
    tx: Tx, before: int, uses: Iterable[str], used_digests: Iterable[str]
) -> list[str]:
    """Forget the blobs that came before that time and are not used; returns their digests.

    Other owners say what they use in SQL: `uses` are conditions on `{digest}`, for what has an
    index, and `used_digests` queries for the digests that they refer to.
    """
    sql = _DELETE_UNUSED.format(
        uses="".join(f" AND NOT {use.format(digest='blob.digest')}" for use in uses),
        digests=" UNION ALL ".join(used_digests),
    )
    digests = [row[0] for row in tx.fetch_all(sql, (before,))]
    tx.execute_many("DELETE FROM blob_use WHERE digest = ?", [(digest,) for digest in digests])
    return digests


# -- results of tasks that come as blobs


def await_result(tx: Tx, ref: PayloadRef, task: bytes, source: str, key: bytes) -> None:
    """Note that a task is completed once the blob of its result is here."""
    tx.execute(_AWAIT_RESULT, (ref.digest, task, source, key, ref.size, tx.now))


def take_awaited(tx: Tx, digest: str) -> list[AwaitedResult]:
    """The tasks that waited for this blob; they wait no longer."""
    return [AwaitedResult(*row) for row in tx.fetch_all(_TAKE_AWAITED, (digest,))]


def awaited_results(tx: Tx) -> set[tuple[str, str]]:
    """(digest, source) of each blob that a task waits for."""
    return {(row[0], row[1]) for row in tx.fetch_all("SELECT digest, source FROM task_blob")}


def awaited_size(tx: Tx, digest: str) -> int | None:
    """The size of the result that is awaited under this digest."""
    row = tx.fetch_one("SELECT size FROM task_blob WHERE digest = ? LIMIT 1", (digest,))
    return None if row is None else int(row[0])
